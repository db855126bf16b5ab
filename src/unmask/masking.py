"""A masking: which positions are masked, at what time, and with what weight their terms count.

It is a pure function of uniforms, made by ``by_time`` (Eq. 6) or ``by_count`` (Prop. 3.1 with Eq. 8). ``where``
restricts the process to some positions; the others are given. A canvas with H maskable positions of L starts at t_start
= alpha^-1(1 - H/L), as in sampling. At t < t_start each of them is masked with probability
(1 - alpha_t) / (1 - alpha_{t_start}), and

    -log p(masked | given) <= integral_0^{t_start} -alpha'_t / (1 - alpha_t) E[sum of cross-entropies at x_t] dt

because the rate at which a masked token is revealed, -alpha' / (1 - alpha), does not depend on the start. At the times
when 1, 2, ..., H are masked, 1 - alpha has the order statistics of H uniforms on (0, H/L): Eq. 8.

A network with block attention is a masked model of each block given those before it, and its bound is the sum of their
bounds. Each block has its own process: ``of_blocks`` cuts sequences into blocks, ``in_blocks`` joins their maskings,
and all terms come from one pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional

from unmask.devices import upload
from unmask.forward import beside, holes, masked_by_count, masked_by_time
from unmask.schedule import Linear, Schedule


@dataclass(frozen=True)
class Uniforms:
    """The random numbers of a masking, all U(0, 1): of a pass of a bound, or of a step of training."""

    t: Tensor  # float64 [B]: the time, or the quantile of the count
    keys: Tensor  # float64 [B, L]: which positions are masked
    hits: Tensor  # float64 [B, L]: the time of a count (Eq. 8)
    when: Tensor | None = None  # float64 [B, L]: the order in which the others became visible

    def rows(self, some: Tensor) -> Uniforms:
        """Some of the sequences."""
        return Uniforms(*(getattr(self, one.name)[some] for one in fields(self) if getattr(self, one.name) is not None))


@dataclass(frozen=True)
class Masking:
    """The masked positions of each sequence, the time given to the network, and the weight of the terms."""

    masked: Tensor  # bool [B, L]: the positions that contribute terms
    time: Tensor  # float64 [B]: for a network that reads the time
    weight: Tensor  # float64 [B], or [B, N] for N blocks: the weight of the summed terms
    # float64 [B, L]: when a visible token became visible, for any-order networks; [B, L, 2] for insertion
    when: Tensor | None = None
    # int64 [2, M], for a device where finding them would make the host wait: sequence and position of each term
    index: Tensor | None = None

    @property
    def at(self) -> tuple[Tensor, ...]:
        """The sequence and the position of each term, int64 [M], in row-major order."""
        return self.masked.nonzero(as_tuple=True) if self.index is None else self.index.unbind()

    @property
    def n(self) -> Tensor:
        return self.masked.sum(1)

    def hide(self, x0: Tensor, mask_id: int) -> Tensor:
        return torch.where(self.masked, mask_id, x0)

    def rows(self, some: Tensor | slice) -> Masking:
        """Some of the sequences."""
        return self.map(lambda part: part[some])

    def to(self, device: torch.device) -> Masking:
        """The masking on a device, where float64 may become float32; the host does not wait."""
        there = self.map(lambda part: upload(part, device))
        if device.type == "cpu" or self.masked.device.type != "cpu":
            return there
        return replace(there, index=upload(torch.stack(self.at), device))

    def map(self, function: Callable[[Tensor], Tensor]) -> Masking:
        return Masking(*(function(part) for part in self.tensors()))

    def in_blocks(self, batch: int, length: int) -> Masking:
        """The masking of sequences [B, L] from that of their blocks [B N, K]."""
        time, weight = self.time.view(batch, -1)[:, 0], self.weight.view(batch, -1)
        return Masking(self.masked.view(batch, -1)[:, :length], time, weight)

    def parts(self, block: int | None = None) -> Tensor:
        """For each masked position the index of its weight, int64 [M]: its sequence's or its block's."""
        row, position = self.at
        return row if block is None else row * self.weight.shape[1] + position // block

    def summed(self, values: Tensor, block: int | None = None) -> Tensor:
        """Sum packed values [M] at masked positions by weight: by sequence [B], or by block [B, N]."""
        into = values.new_zeros(self.weight.numel())
        return into.index_add(0, self.parts(block), values).view_as(self.weight)

    def weighted(self, terms: Tensor) -> Tensor:
        """Each sequence's estimate [B] from its summed terms."""
        return (self.weight.to(terms) * terms).view(len(terms), -1).sum(1)

    def tensors(self) -> tuple[Tensor, ...]:
        parts = (self.masked, self.time, self.weight, self.when)
        return tuple(part for part in parts if part is not None)


def joined(parts: Sequence[Masking]) -> Masking:
    """The sequences of several maskings, one after the other."""
    return Masking(*(torch.cat(some) for some in zip(*(part.tensors() for part in parts), strict=True)))


def by_time(
    t: Tensor,
    keys: Tensor,
    *,
    schedule: Schedule | None = None,
    where: Tensor | None = None,
    when: Tensor | None = None,
) -> Masking:
    """Equation 6 at t_start times t, uniform [B]; keys and when are uniforms [B, L], one for each position.

    The weight is that of the integral over (0, t_start): -t_start alpha'/(1 - alpha).
    """
    schedule, where = schedule or Linear(), beside(where, keys)
    first = 1 - holes(keys, where) / keys.shape[1]  # alpha at t_start
    start = schedule.inverse(first)
    # The weight is infinite at t = 0, which U(0, 1) reaches once in 2^53 draws.
    t = (start * t.to(keys.device)).clamp(min=2.0**-53)
    masked = masked_by_time((schedule.alpha(t) - first) / (1 - first), keys, where)
    return Masking(masked, t, -start * schedule.weight(t), _given_first(when, where))


def by_count(
    n: Tensor,
    keys: Tensor,
    hits: Tensor,
    *,
    weight: Tensor | float | None = None,
    schedule: Schedule | None = None,
    where: Tensor | None = None,
    when: Tensor | None = None,
) -> Masking:
    """Equation 7 at n masked tokens [B]; keys, hits and when are uniforms [B, L].

    Another weight than H/n makes it another loss of Sec. 3.2: see ``weighted_cross_entropy``.
    """
    where = beside(where, keys)
    masked = masked_by_count(n, keys, where)
    return of_subset(masked, hits, weight=weight, schedule=schedule, where=where, when=when)


def of_subset(
    masked: Tensor,
    hits: Tensor,
    *,
    weight: Tensor | float | None = None,
    schedule: Schedule | None = None,
    where: Tensor | None = None,
    when: Tensor | None = None,
    beyond: Tensor | int = 0,
) -> Masking:
    """Equation 7 at a given subset of the maskable positions: the weight is H/n by default, the time drawn from Eq. 8.

    beyond: [B], how many further positions are masked and stay masked while the subset is revealed.
    """
    where = beside(where, hits)
    n, count = masked.sum(1), holes(hits, where)
    alpha = beta_alpha(n + beyond, hits, holes=count + beyond)
    # A block without maskable positions has no masked ones, and weight 0.
    weight = count / n.double().clamp(min=1) if weight is None else torch.as_tensor(weight, dtype=torch.float64)
    time = (schedule or Linear()).inverse(alpha)
    return Masking(masked, time, weight.to(hits.device).expand(len(masked)), _given_first(when, where))


def of_blocks(x: Tensor, block: int) -> Tensor:
    """The blocks of sequences [B, L], as [B N, K]; zeros pad the last."""
    return functional.pad(x, (0, -x.shape[1] % block)).view(-1, block)


def times_of_blocks(t: Tensor, blocks: int) -> Tensor:
    """A time for each of N blocks, [B N], from one per sequence: t + k/N modulo 1, so that they are spread evenly."""
    return torch.remainder(t.unsqueeze(1) + torch.arange(blocks, device=t.device) / blocks, 1).flatten()


def all_tokens(when: Tensor, where: Tensor | None = None) -> Masking:
    """Every token is a term of weight 1: the chain rule in the order ``when`` [B, L], or from left to right.

    where: bool [B, L], the positions with a term; the others come first.
    """
    where = beside(where, when)
    one, masked = torch.ones_like(when[:, 0]), torch.ones_like(when, dtype=torch.bool) if where is None else where
    return Masking(masked, one, one, _given_first(when, where))


def in_order(
    keys: Tensor, hits: Tensor, *, schedule: Schedule | None = None, where: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A uniform order of the maskable positions for ``along_order``, int64 [B, H], and times from Eq. 8 for n = H .. 1.

    keys and hits are uniforms [B, L]; every sequence must have the same number of maskable positions.
    """
    where = beside(where, keys)
    count = holes(keys, where)
    order = (keys if where is None else keys.masked_fill(~where, 2.0)).argsort(1)[:, : int(count[0])]
    alpha = 1 - _hits(hits, count)[:, : order.shape[1]].flip(1)
    return order, (schedule or Linear()).inverse(alpha)


def beta_alpha(n: Tensor, u: Tensor, *, holes: Tensor | None = None) -> Tensor:
    """Equation 8: alpha_n ~ Beta(L - n + 1, n), as 1 minus the n-th smallest of L uniforms u [B, L].

    If only ``holes`` of the L positions may be masked, the process starts at alpha = 1 - holes/L, with as many
    uniforms, scaled accordingly.
    """
    count = torch.full_like(n, u.shape[1]) if holes is None else holes
    at = n.to(u.device).clamp(min=1).unsqueeze(1) - 1  # with nothing masked there is no term, so any time will do
    return 1 - _hits(u, count.to(u.device)).gather(1, at).squeeze(1)


def _hits(u: Tensor, holes: Tensor) -> Tensor:
    """1 - alpha at each time when one more position is masked, in order: sorted uniforms on (0, holes/L), then 2."""
    holes, length = holes.unsqueeze(1), u.shape[1]
    return torch.where(torch.arange(length, device=u.device) < holes, u * holes / length, 2.0).sort(1).values


def _given_first(when: Tensor | None, where: Tensor | None) -> Tensor | None:
    """Given positions count as visible from the start."""
    return when if when is None or where is None else when.masked_fill(~where, -1.0)


def maskgit_count(t: Tensor, length: int) -> Tensor:
    """MaskGIT's mask scheduling function: n = ceil(gamma(t) L), gamma(t) = cos(pi t / 2), in 1..L."""
    return (torch.cos(math.pi / 2 * t) * length).ceil().long().clamp(1, length)
