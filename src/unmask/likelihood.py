"""The likelihood of data under a model: a bound with its standard errors for a masked model, exact otherwise.

A masked model's bound is estimated in passes. Pass k of sequence i is a function of (seed, i, k), so the numbers do not
depend on the batch or the number of processes, up to the network's rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from unmask import checks, objective
from unmask.bound import Bound
from unmask.network import device_of, inference
from unmask.noise import generator as stream
from unmask.processes import process_of
from unmask.processes.process import ALONG_ORDERS, By
from unmask.protocol import Denoiser
from unmask.schedule import Linear, Schedule

__all__ = ["Bound", "Passes", "along_orders", "exact", "importance_weighted", "nelbo"]

LOGITS = 1 << 27  # per call, if no batch size is given: half a gigabyte


@dataclass(frozen=True)
class Passes:
    """How the passes over a sequence are drawn, ``num`` in a round.

    by: "count" (Eq. 7), "time" (Eq. 6), or "order": the chain rule along a random order, which sees every count once
        at the price of one network call per token. "mixture" mixes the probabilities along the passes' orders, where
        "order" has the mean of their logarithms; its error needs three orders. "left-to-right" is the chain rule along
        that order: one pass, and exact for a model that is sampled so.
    The counts or times of a round are stratified: two passes fall into each of num/2 equal intervals. One per interval
    would estimate equally well, but gives no standard error.
    """

    by: By = "count"
    num: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise ValueError(
                f"by must be 'count' (Eq. 7), 'time' (Eq. 6), 'order', 'mixture' or 'left-to-right', got {self.by!r}"
            )
        if self.num < 1:
            raise ValueError(f"passes must be at least 1, got {self.num}")

    @property
    def fewest(self) -> int:
        """How many passes give a standard error."""
        return 3 if self.by == "mixture" else 2

    @property
    def strata(self) -> int:
        return 1 if self.by in ALONG_ORDERS else max(1, self.num // 2)

    def estimates(
        self,
        model: Denoiser,
        x0: Tensor,
        index: Tensor,
        number: Tensor,
        *,
        schedule: Schedule,
        where: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One estimate in nats for each row of x0 [B, L]: sequence index [B] in pass number [B].

        Also returns where in 0..1 its count or time fell, [B]. x0 and where are on the CPU.
        """
        u = self._uniforms(index, number, 1 + 3 * x0.shape[1])
        t, u = (self.stratum(number) + u[:, 0]) / self.strata, u[:, 1:].reshape(len(u), 3, -1)
        nats = process_of(model).estimate(model, x0, t, u, self.by, schedule, where)
        return _numbers(nats, index), torch.full_like(t, torch.nan) if self.by in ALONG_ORDERS else t

    def stratum(self, number: Tensor) -> Tensor:
        """The interval of 0..1 that a pass falls into."""
        return number % self.num % self.strata

    def _uniforms(self, index: Tensor, number: Tensor, width: int) -> Tensor:
        """Uniforms [B, width], each row from the stream of its sequence and pass."""
        streams = (stream(i, self.seed, "bound", k) for i, k in zip(index.tolist(), number.tolist(), strict=True))
        return torch.stack([torch.rand(width, dtype=torch.float64, generator=random) for random in streams])

    def combined(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The estimate [N] and its standard error [N] from the values [N, P] of passes 0 .. P - 1, in whole rounds.

        The estimate is the mean of the strata's means; its variance is unbiased, because the passes of a stratum are
        independent. For a mixture, see ``mixed``.
        """
        if self.by == "mixture":
            return mixed(values)
        stratum = self.stratum(torch.arange(values.shape[1]))
        parts = [values[:, stratum == s] for s in range(self.strata)]
        nats = torch.stack([part.mean(1) for part in parts]).mean(0)
        if min(part.shape[1] for part in parts) < 2:
            return nats, torch.full_like(nats, torch.inf)
        variance = torch.stack([part.var(1) / part.shape[1] for part in parts]).sum(0)
        return nats, variance.sqrt() / self.strata


def mixed(values: Tensor) -> tuple[Tensor, Tensor]:
    """The bound by all the K orders of values [N, K], and its standard error by the jackknife: of three at least."""
    num = values.shape[1]
    nats = importance_weighted(values)[:, 0]
    if num < 3:  # of two orders the jackknife gives the error of their mean, which is too small
        return nats, torch.full_like(nats, torch.inf)
    without = [importance_weighted(values[:, torch.arange(num) != k])[:, 0] for k in range(num)]
    return nats, (torch.stack(without, 1).var(1, correction=0) * (num - 1)).sqrt()


def importance_weighted(nats: Tensor, size: int | None = None) -> Tensor:
    """-log of the mean likelihood over ``size`` orders at a time, from nats [B, K] along K orders: [B, K // size].

    Decoding in a random order draws from p(x) = E p(x | sigma). The mean over orders is unbiased for p(x), so its -log
    is at least -log p(x) in expectation, and it falls as ``size`` grows (Burda et al. 2016).
    size must divide K; it is K by default. The groups are independent, so their spread gives the estimate's error.
    """
    if nats.ndim != 2:
        raise ValueError(f"nats must be [sequences, orders], got {tuple(nats.shape)}")
    size = nats.shape[1] if size is None else size
    if size < 1 or nats.shape[1] % size:
        raise ValueError(f"size must divide the number of orders, {nats.shape[1]}, got {size}")
    groups = nats.double().view(len(nats), -1, size)
    return math.log(size) - (-groups).logsumexp(2)


def nelbo(
    model: Denoiser,
    tokens: Tensor,
    *,
    by: By | None = None,
    passes: int = 16,
    generator: torch.Generator | None = None,
    schedule: Schedule | None = None,
    batch: int | None = None,
    seed: int = 0,
    index: Tensor | None = None,
    where: Tensor | None = None,
) -> Bound:
    """The NELBO of each sequence by the number of masked tokens (Eq. 7) or by time (Eq. 6), over several passes.

    By default it bounds -log p of the distribution that ``sample`` draws from by default; ``law`` of the result names
    it. For a model that is sampled from left to right it is exact, and its errors are 0. For an insertion model it
    bounds -log p(text), the length included, and tokens are rows padded with eos.

    Args:
        model: A Denoiser.
        tokens: Ids [B, L] without masks; a tensor, an array or lists.
        by: "count" (Eq. 7), "time" (Eq. 6), "order", the chain rule along a random order, "mixture", the mean
            probability over the passes' orders, which is a tighter bound, with an error from three orders on, or
            "left-to-right", the chain rule along that one, which is exact for it. The default is "count", and
            "left-to-right" for a model that is sampled so.
        passes: The number of estimates per sequence.
        schedule: alpha(t), for networks that read the time.
        seed: With ``index`` it determines the masks.
        generator: If given, the seed is drawn from it.
        index: The numbers of the sequences, [B], by default 0 .. B - 1.
        where: bool [B, L], the positions to bound given the others: False for a prompt.
        batch: Rows per network call; by default as many as fit into half a gigabyte of logits.
    """
    process = process_of(model)
    by = process.default_by if by is None else by
    how = Passes(by, passes, seed if generator is None else drawn_seed(checks.generator(generator)))
    tokens, where = _checked(model, tokens, batch, where)
    if not len(tokens):
        raise ValueError("tokens has no row: give at least one sequence")
    process.check_bound(by, where)
    if process.exact or by == "left-to-right":
        return _from_left(model, tokens, batch, where)
    tokens, where = tokens.cpu(), None if where is None else where.cpu()
    if where is not None and by in ALONG_ORDERS and len(set(where.sum(1).tolist())) > 1:
        raise ValueError(f"by={by!r} needs a `where` with as many positions in every sequence")
    batch, schedule = batch or default_batch(model, tokens.shape[1]), schedule or Linear()
    index = torch.arange(len(tokens)) if index is None else index
    values = torch.zeros(len(tokens) * passes, dtype=torch.float64)
    with inference(model):
        for start in range(0, len(values), batch):
            rows = torch.arange(start, min(start + batch, len(values)))
            i, k = rows // passes, rows % passes
            some = None if where is None else where[i]
            values[rows], _ = how.estimates(model, tokens[i], index[i], k, schedule=schedule, where=some)
    nats, errors = how.combined(values.view(len(tokens), passes))
    return Bound(nats, errors, _counted(tokens, where), law=process.law(by))


def exact(model: Denoiser, tokens: Tensor, *, batch: int | None = None, where: Tensor | None = None) -> Bound:
    """-log p of each sequence under a left-to-right model: of the tokens where ``where`` holds, given those before."""
    tokens, where = _checked(model, tokens, batch, where)
    if not process_of(model).exact:
        raise ValueError(f"{type(model).__name__} has no exact likelihood in one pass: unmask.nelbo bounds it")
    return _from_left(model, tokens, batch, where)


def _from_left(model: Denoiser, tokens: Tensor, batch: int | None, where: Tensor | None) -> Bound:
    """-log p of each sequence by the chain rule from left to right."""
    batch = batch or default_batch(model, tokens.shape[1])
    parts = [torch.zeros(0, dtype=torch.float64)]
    with inference(model):
        for start in range(0, len(tokens), batch):
            part = slice(start, start + batch)
            index = torch.arange(len(tokens))[part]
            parts.append(per_position(model, tokens[part], index, None if where is None else where[part]).sum(1))
    nats = torch.cat(parts)
    law = process_of(model).law("left-to-right")
    return Bound(nats, torch.zeros_like(nats), _counted(tokens, where), law=law)


def per_position(model: Denoiser, x0: Tensor, index: Tensor, where: Tensor | None = None) -> Tensor:
    """-log p(x^l | x^<l) at the positions l where ``where`` is true, 0 elsewhere: [B, L].

    One call of a left-to-right model, and one for each position of any other. What ``where`` leaves out is visible.
    """
    x0 = x0.to(device_of(model))
    where = torch.ones_like(x0, dtype=torch.bool) if where is None else where.to(x0.device)
    return _numbers(process_of(model).per_position(model, x0, where), index)


def along_orders(
    model: Denoiser, tokens: Tensor, orders: Tensor, *, time: Tensor | None = None, batch: int | None = None
) -> Tensor:
    """-log p of each sequence [B] by the chain rule along each of the orders [O]: exact, float64 [B, O] in nats.

    orders: int64 [O, K], or [B, O, K] with separate orders per sequence: positions in the order they become visible;
    positions outside an order are visible throughout. Each needs K network calls.
    time: [K], the time of each call, for a network that reads it.
    """
    tokens, _ = _checked(model, tokens, batch, None)
    process_of(model).require("orders")
    if orders.dtype != torch.int64 or orders.ndim not in (2, 3) or (orders.ndim == 3 and len(orders) != len(tokens)):
        raise ValueError(f"orders must be int64 [O, K] or [{len(tokens)}, O, K], got {tuple(orders.shape)}")
    orders = orders.expand(len(tokens), *orders.shape[-2:]).cpu()
    _check_orders(orders, tokens.shape[1])
    batch, device = batch or default_batch(model, tokens.shape[1]), device_of(model)
    num = orders.shape[1]
    nats = torch.zeros(len(tokens) * num, dtype=torch.float64)
    with inference(model):
        for start in range(0, len(nats), batch):
            rows = torch.arange(start, min(start + batch, len(nats)))
            x0, order = tokens[(rows // num).to(tokens.device)].to(device), orders.flatten(0, 1)[rows].to(device)
            times = None if time is None else time.to(device).expand(len(rows), -1)
            nats[rows] = objective.along_order(model, x0, order, time=times).cpu()
    return nats.view(len(tokens), num)


def drawn_seed(generator: torch.Generator) -> int:
    return int(torch.randint(1 << 62, (), generator=generator, device=generator.device))


def default_batch(model: Denoiser, length: int) -> int:
    """The number of rows whose logits fit into half a gigabyte, at most 64."""
    return max(1, min(64, LOGITS // (length * model.vocab_size)))


def _numbers(nats: Tensor, index: Tensor) -> Tensor:
    """On the CPU in float64; a value that is not a number is refused."""
    nats = nats.double().cpu()
    wrong = nats.isnan().view(len(index), -1).any(1)
    if bool(wrong.any()):
        raise ValueError(f"the outputs of the network for sequence {int(index[wrong][0])} are not numbers (nan)")
    return nats


def _counted(tokens: Tensor, where: Tensor | None) -> Tensor:
    return torch.full((len(tokens),), tokens.shape[1]) if where is None else where.sum(1).cpu()


def _checked(model: Denoiser, tokens: Any, batch: int | None, where: Any) -> tuple[Tensor, Tensor | None]:
    if batch is not None and batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    tokens = checks.complete(model, tokens, "tokens")
    if where is None:
        return tokens, None
    where = torch.as_tensor(where)
    if where.dtype != torch.bool or where.shape != tokens.shape:
        raise ValueError(f"where must be bool {tuple(tokens.shape)}, got {where.dtype} {tuple(where.shape)}")
    if not bool(where.any(1).all()):
        raise ValueError("where must hold at one position at least of every sequence")
    return tokens, where


def _check_orders(orders: Tensor, length: int) -> None:
    if bool(((orders < 0) | (orders >= length)).any()):
        raise ValueError(f"orders must hold positions in 0..{length - 1}, got {int(orders.min())}..{int(orders.max())}")
    ascending = orders.sort(-1).values
    if bool((ascending[..., 1:] == ascending[..., :-1]).any()):
        raise ValueError("orders must not hold a position twice")
