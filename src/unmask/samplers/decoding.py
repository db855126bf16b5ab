"""Orders that rank the masked positions by what the network says of them, and unmask the first of the ranking."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from unmask.draw import shaped, uniforms
from unmask.samplers.run import Order, Task, filled
from unmask.sampling import Step, apply

Pace = Callable[[int, int], list[int]]
"""(n, N) -> how many of n holes each of N steps unmasks; together n. A step of none costs no network call."""


@dataclass(frozen=True)
class Look:
    """What a ranking sees of M masked positions."""

    log_mu: Tensor  # float64 [M, V]
    position: Tensor  # int64 [M]
    ids: Tensor | None  # int64 [M]: the tokens drawn for them, where the order draws before it chooses


Score = Callable[[Look], Tensor]
"""float64 [M]: the higher, the earlier."""


def log_probability(look: Look) -> Tensor:
    """log mu of the token that was drawn."""
    assert look.ids is not None
    return look.log_mu.gather(1, look.ids.to(look.log_mu.device).unsqueeze(1)).squeeze(1)


def probability(look: Look) -> Tensor:
    """mu of the token that was drawn."""
    return log_probability(look).exp()


def gap(look: Look) -> Tensor:
    """mu of the likeliest token less that of the second."""
    best: Tensor = look.log_mu.topk(min(2, look.log_mu.shape[1]), dim=1).values.exp()
    return best[:, 0] - best[:, 1:].sum(1)


def negative_entropy(look: Look) -> Tensor:
    """-H(mu), in nats."""
    entropies: Tensor = torch.special.entr(look.log_mu.exp()).sum(1)
    return -entropies


def leftmost(look: Look) -> Tensor:
    return -look.position.double()


def even(n: int, steps: int) -> list[int]:
    """Steps that differ by at most one, the larger ones first: LLaDA's."""
    base, rest = divmod(n, steps)
    return [base + (k < rest) for k in range(steps)]


def cosine(n: int, steps: int) -> list[int]:
    """MaskGIT's: after step k of N, floor(n cos(pi k / 2N)) positions are masked, at least one less than before."""
    left = [n]
    for k in range(1, steps):
        left.append(max(min(math.floor(n * math.cos(math.pi / 2 * k / steps)), left[-1] - 1), min(n, 1)))
    return [before - after for before, after in zip(left, [*left[1:], 0], strict=True)]


def falling(eps: float) -> Pace:
    """Dream's: of n masked positions the step from t to s unmasks floor(n (1 - s/t)), the last all; t stops at eps."""

    def pace(n: int, steps: int) -> list[int]:
        counts: list[int] = []
        for k in range(steps - 1):
            t, s = (1 - (1 - eps) * i / steps for i in (k, k + 1))
            counts.append(int((n - sum(counts)) * (1 - s / t)))
        return [*counts, n - sum(counts)]

    return pace


@dataclass(frozen=True)
class Ranked(Order):
    """Draw or look, rank, unmask the first: the loop behind confidence, margin, entropy, left-to-right and blocks."""

    score: Score
    pace: Pace = even
    sees: Literal["position", "mean", "token"] = "mean"  # "token": draws at every masked position, then chooses
    noise: float = 0.0  # of the Gumbels added to the scores
    annealed: bool = False  # the noise falls to 0 with the last step
    gamma: float | None = None  # entropy-bounded: as many as keep the bound, whatever the pace
    block: int | None = None  # holes of a block; None is one block
    as_drawn: bool = False  # rank by the distribution that tokens are drawn from, not by the network's own

    def most_calls(self, holes: Tensor, task: Task) -> Tensor:
        if self.gamma is not None:
            if task.steps is not None:
                raise ValueError(f"steps={task.steps}: entropy-bounded takes none, its bound gamma says how many calls")
            return holes.clone()
        return torch.tensor([len(self._turns(n, task.steps)) for n in holes.tolist()], dtype=torch.int64)

    def run(self, task: Task) -> Iterator[tuple[Tensor, Step]]:
        x = task.canvas.clone()
        holes = x == task.mask_id
        block = (holes.cumsum(1) - 1) // (self.block or max(x.shape[1], 1))
        turns = [self._turns(n, task.steps) for n in holes.sum(1).tolist()] if self.gamma is None else None
        call = 0
        while bool((masked := x == task.mask_id).any()):
            b = int(masked.any(1).nonzero()[-1]) + 1  # those behind are finished, and so may be some before
            masked, live = masked[:b], masked[:b].any(1).nonzero().squeeze(1).cpu()
            here = torch.where(masked, block[:b], x.shape[1])
            window = masked & (here == here.amin(1, keepdim=True))
            now = [(turn[call] if call < len(turn) else (0, 0.0)) for turn in turns[:b]] if turns else [(0, 1.0)] * b
            count, heat = (torch.tensor(column) for column in zip(*now, strict=True))
            if self.sees == "position":
                window &= window.cumsum(1) <= count.to(x.device).unsqueeze(1)
            drawn, step = self._call(task, x[:b], window, count, heat.double(), live)
            apply(step, x, task.mask_id)
            yield drawn, step
            call += 1

    def _call(
        self, task: Task, x: Tensor, window: Tensor, count: Tensor, heat: Tensor, live: Tensor
    ) -> tuple[Tensor, Step]:
        """One network call: rank the window's positions, unmask the first ``count`` of each sequence."""
        time = task.time_of((x == task.mask_id).sum(1).cpu())
        answer = task.ask(x, window, time)
        row, column = answer.real.nonzero(as_tuple=True)
        ids = torch.full_like(answer.positions, -1)
        certain = torch.zeros(ids.shape, dtype=torch.float64)
        drawn_ids = None
        if self.sees == "token":
            drawn_ids, certain[row, column] = task.pick(answer.log_mu, row.tolist())
            ids[row, column] = drawn_ids
        log_mu = answer.log_mu
        if self.as_drawn and task.temperature > 0:
            log_mu = shaped(log_mu, temperature=task.temperature, top_k=task.top_k, top_p=task.top_p).log_softmax(1)
        seen = Look(log_mu, answer.positions[row, column].to(log_mu.device), drawn_ids)
        score = torch.full(ids.shape, -torch.inf, dtype=torch.float64)
        score[row, column] = self.score(seen).cpu()
        if self.gamma is not None:
            count = within(self.gamma, -score)
        if self.noise:
            u = uniforms([task.random[i] for i in row.tolist()]).cpu().clamp(min=2.0**-54)
            score[row, column] -= self.noise * heat[row] * torch.log(-torch.log(u))
        rank = score.argsort(dim=1, descending=True, stable=True).argsort(1)
        chosen = answer.real & (rank < count.unsqueeze(1))
        drawn = answer.real.sum(1)[live]
        if self.sees != "token":
            pick = chosen[row, column]
            row, column, drawn = row[pick], column[pick], chosen.sum(1)[live]
            ids[row, column], certain[row, column] = task.pick(answer.log_mu[pick.to(log_mu.device)], row.tolist())
        return drawn, filled(live, answer.positions, chosen, ids, certain, time)

    def _turns(self, n: int, steps: int | None) -> list[tuple[int, float]]:
        """For each call of a sequence of n holes: how many it unmasks, and how much of the noise is left."""
        return _turns(n, steps, self.pace, self.block or max(n, 1), self.annealed)


def within(gamma: float, entropy: Tensor) -> Tensor:
    """How many of the lowest entropies [b, R] (pads inf) may go at once: sum less maximum is at most gamma."""
    lowest = entropy.sort(1).values
    before = torch.cat([torch.zeros_like(lowest[:, :1]), lowest.cumsum(1)[:, :-1]], 1)
    return (lowest.isfinite() & (before <= gamma)).sum(1)


@lru_cache
def _turns(n: int, steps: int | None, pace: Pace, block: int, annealed: bool) -> list[tuple[int, float]]:
    sizes = [min(block, n - first) for first in range(0, n, block)]
    if steps is not None and steps < len(sizes):
        raise ValueError(f"steps={steps} is less than the {len(sizes)} blocks: each takes at least one")
    shares = sizes if steps is None else even(steps, max(len(sizes), 1))
    turns = []
    for size, share in zip(sizes, shares, strict=False):
        counts = [1] * size if steps is None else pace(size, share)
        turns += [(count, 1 - k / share if annealed else 1.0) for k, count in enumerate(counts, 1) if count]
    return turns


def confidence(*, noise: float = 4.5, pace: Pace = cosine) -> Ranked:
    """MaskGIT's: draw everywhere, keep the tokens of the highest log mu + noise (1 - k/N) g, with Gumbel g."""
    return Ranked(log_probability, pace, "token", noise=_checked("noise", noise), annealed=True)


def low_confidence(*, pace: Pace = even) -> Ranked:
    """LLaDA's low-confidence remasking: draw everywhere, keep the likeliest of the tokens drawn."""
    return Ranked(log_probability, pace, "token")


def margin(*, noise: float = 0.0, pace: Pace = even) -> Ranked:
    """First where the likeliest token leads the second by most."""
    return Ranked(gap, pace, noise=_checked("noise", noise))


def entropy(*, noise: float = 0.0, pace: Pace = even) -> Ranked:
    """First where mu has the lowest entropy."""
    return Ranked(negative_entropy, pace, noise=_checked("noise", noise))


def entropy_bounded(gamma: float = 0.1) -> Ranked:
    """In each call the most positions, of the lowest entropies, whose sum less the largest is at most gamma nats.

    Sum less maximum bounds the mutual information of what is drawn together. It needs no ``steps``; gamma = 0 is one
    token per call, except where the network is certain.
    """
    return Ranked(negative_entropy, gamma=_checked("gamma", gamma))


def left_to_right(*, pace: Pace = even) -> Ranked:
    """The leftmost masked positions first. With one token per call it has the exact law, as every fixed order has."""
    return Ranked(leftmost, pace, "position")


def blocks(length: int, inner: Ranked) -> Ranked:
    """Semi-autoregressive: blocks of ``length`` holes from left to right, each filled in the inner order.

    ``steps`` are shared among the blocks evenly, so each block needs at least one.
    """
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise ValueError(f"length, the holes of a block, must be a whole number of at least 1, got {length!r}")
    if not isinstance(inner, Ranked):
        raise ValueError(f"inner must be an order that ranks positions, such as confidence(), got {inner!r}")
    return replace(inner, block=length)


def llada(block_length: int | None = None) -> Ranked:
    """LLaDA's ``generate``, low-confidence remasking without guidance: ``steps`` spread evenly over the blocks."""
    return low_confidence() if block_length is None else blocks(block_length, low_confidence())


DREAM: dict[str, tuple[Score, Literal["mean", "token"]]] = {
    "entropy": (negative_entropy, "mean"), "maskgit_plus": (probability, "token"), "topk_margin": (gap, "mean"),
}  # fmt: skip


def dream(alg: str = "entropy", *, alg_temp: float = 0.0, eps: float = 1e-3) -> Ranked:
    """Dream's ``diffusion_generate``: alg ranks; with alg_temp positions are drawn by softmax(score / alg_temp)."""
    if alg not in DREAM:
        raise ValueError(f"alg must be one of {', '.join(map(repr, DREAM))}, got {alg!r}")
    if not 0 < eps < 1:
        raise ValueError(f"eps, the last time, must be in (0, 1), got {eps}")
    score, sees = DREAM[alg]
    # The k first of score / T + Gumbel are k draws without replacement from softmax(score / T).
    return Ranked(score, _falling(eps), sees, noise=_checked("alg_temp", alg_temp), as_drawn=True)


@lru_cache
def _falling(eps: float) -> Pace:
    return falling(eps)


def _checked(name: str, value: float) -> float:
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
    return float(value)
