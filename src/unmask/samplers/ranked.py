"""The sampler of the decoding orders: rank the masked positions by the network's output, unmask the first ones.

``samplers.decoding`` names the orders, each a score, step sizes and a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from unmask.devices import indices, upload
from unmask.draw import Pick
from unmask.hitting import start_time
from unmask.noise import Noise
from unmask.plan import even, shared
from unmask.sampler import Ask, State, Step, Task, packed

Pace = Callable[[int, int], list[int]]
"""(n, N) -> how many of n holes each of N steps unmasks; together n. A step of none costs no network call."""


@dataclass(frozen=True)
class Look:
    """What a ranking sees of M masked positions."""

    log_mu: Tensor  # float64 [M, V]
    ids: Tensor  # int64 [M]: the tokens drawn for them, if the order draws before it chooses


Score = Callable[[Look], Tensor]
"""float64 [M]: the higher, the earlier."""


@dataclass
class RankState(State):
    """Sequences whose positions are ranked at every call."""

    block: Tensor  # int64 [B, L]: the block of each masked position
    turns: list[list[tuple[int, float]] | None]  # per call: how many to unmask, and the noise scale
    made: Tensor  # int64 [B]: calls made
    tokens: Noise  # [B, L]
    ranking: Noise  # [B, L]
    ties: Tensor  # float64 [B, L]: each position's own uniform number, by which equal scores are ordered
    visits: Tensor  # int64 [B, L]: how often each position has been drawn before


@dataclass(frozen=True)
class Ranked:
    """Draw or look, rank, unmask the first: the sampler behind confidence, margin, entropy and blocks."""

    score: Score
    pace: Pace = even
    sees: Literal["mean", "token"] = "mean"  # "token": draws at every masked position, then chooses
    noise: float = 0.0  # scale of the Gumbels added to the scores
    annealed: bool = False  # the noise falls to 0 at the last step
    gamma: float | None = None  # entropy-bounded: as many as satisfy the bound, whatever the step size
    least: float | None = None  # as many as reach this score, at least one, whatever the step size
    block: int | None = None  # masked positions per block; None is one block
    by_position: bool = False  # blocks of positions, masked or not
    as_drawn: bool = False  # rank by the distribution that tokens are drawn from, not by the network's
    opening: bool = False  # the first call of a block fills its first position alone; for orders that draw first
    ties: Literal["random", "leftmost"] = "random"  # which of several positions with one score comes first

    def in_blocks(self, size: int) -> Ranked:
        """The same sampler block by block, with this many positions per block."""
        return replace(self, block=size, by_position=True)

    def begin(self, canvas: Tensor, task: Task) -> RankState:
        masked, length = (canvas == task.mask_id).cpu(), canvas.shape[1]
        holes, size = masked.sum(1), self.block or max(length, 1)
        block = (torch.arange(length).expand_as(masked) if self.by_position else masked.cumsum(1) - 1) // size
        turns: list[list[tuple[int, float]] | None] = [None] * len(canvas)
        if self.gamma is None and self.least is None:
            sizes = [torch.bincount(of[at]) for of, at in zip(block, masked, strict=True)]
            each = [tuple(int(n) for n in one if n) for one in sizes]
            turns = [_turns(one, task.steps, self.pace, self.annealed) for one in each]
            calls = torch.tensor([len(turn or ()) for turn in turns], dtype=torch.int64)
        elif task.steps is not None:
            raise ValueError(f"steps={task.steps}: this order takes none, its gamma or threshold says how many calls")
        else:
            calls = holes.clone()
        return RankState(
            task,
            canvas.clone(),
            calls,
            block,
            turns,
            torch.zeros_like(holes),
            task.streams.at("token", length),
            task.streams.at("ranking", length),
            self._tie_breakers(canvas, task),
            torch.zeros(canvas.shape, dtype=torch.int64),
        )

    def ask(self, state: RankState) -> Ask:
        """The masked positions of each sequence's first block that is not finished."""
        masked, length = state.masked, state.x.shape[1]
        here = torch.where(masked, state.block, length)
        window = masked & (here == here.amin(1, keepdim=True)) if length else masked
        return Ask(packed(window), start_time(masked.sum(1), length, state.task.schedule))

    def fill(self, state: RankState, ask: Ask, log_mu: Tensor) -> Step:
        """Rank the requested positions and unmask the first ones of each sequence."""
        row, column = (ask.rows >= 0).nonzero(as_tuple=True)
        at, ranked = ask.rows[row, column], self._ranked_by(state.task.pick, log_mu)
        draws_first, visited = self.sees == "token", state.visits[row, at] > 0
        ids, certain = self._picked(state, row, at, log_mu) if draws_first else (torch.zeros_like(at), None)
        score = torch.full(state.x.shape, -torch.inf, dtype=torch.float64)
        score[row, at] = self.score(Look(ranked, ids)).cpu()  # the one time that the host waits for the call
        count, heat = self._turn(state, score)
        if self.opening:
            begun = torch.zeros(len(score), dtype=torch.bool)
            begun[row[visited]] = True
            new = (~begun & (ask.rows[:, 0] >= 0)).nonzero().squeeze(1)
            score[new, ask.rows[new, 0]], count[new] = torch.inf, 1
        if self.noise:
            u = state.ranking.numbered(state.made.unsqueeze(1))[row, at].uniform().clamp(min=2.0**-54)
            score[row, at] -= self.noise * heat[row] * torch.log(-torch.log(u))
        shuffled = state.ties.argsort(dim=1, stable=True)
        best = score.gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
        rank = shuffled.gather(1, best).argsort(1)
        kept = (rank < count.unsqueeze(1))[row, at]
        draws = torch.bincount(row, minlength=len(score))
        row, at, some = row[kept], at[kept], upload(kept.nonzero().squeeze(1), log_mu.device)
        if certain is None:
            draws = torch.bincount(row, minlength=len(score))
            ids, certain = self._picked(state, row, at, log_mu[some])
        else:
            ids, certain = ids[some], certain[some]
        state.made = state.made + 1
        return _step(row, at, ids, certain, ask.time, draws)

    def _tie_breakers(self, canvas: Tensor, task: Task) -> Tensor:
        if self.ties == "leftmost":
            return torch.zeros(canvas.shape, dtype=torch.float64)
        return task.streams.at("ties", canvas.shape[1]).uniform()

    def _picked(self, state: RankState, row: Tensor, at: Tensor, log_mu: Tensor) -> tuple[Tensor, Tensor]:
        ids, probabilities = state.task.pick(log_mu, state.tokens[row, at].numbered(state.visits[row, at]))
        state.visits[row, at] += 1
        return ids, probabilities

    def _ranked_by(self, pick: Pick, log_mu: Tensor) -> Tensor:
        return pick.shaped(log_mu).log_softmax(1) if self.as_drawn and pick.temperature > 0 else log_mu

    def _turn(self, state: RankState, score: Tensor) -> tuple[Tensor, Tensor]:
        """How many positions each sequence unmasks now, int64 [B], and the noise scale, [B]."""
        if self.least is not None:
            return (score >= self.least).sum(1).clamp(min=1), torch.ones(len(score), dtype=torch.float64)
        if self.gamma is not None:
            return within(self.gamma, -score), torch.ones(len(score), dtype=torch.float64)
        now = [(turn or ())[made] for turn, made in zip(state.turns, state.made.tolist(), strict=True)]
        return torch.tensor([count for count, _ in now]), torch.tensor([heat for _, heat in now]).double()


def _step(row: Tensor, at: Tensor, ids: Tensor, certain: Tensor, time: Tensor, draws: Tensor) -> Step:
    """The Step that fills positions ``at`` of the sequences ``row``, [M] in row-major order."""
    count = torch.bincount(row, minlength=len(time))
    column = torch.arange(len(row)) - (count.cumsum(0) - count)[row]
    positions = torch.full((len(time), int(count.max())), -1)
    positions[row, column] = at
    real, cells = positions >= 0, indices(ids.device, row, column)
    tokens = torch.full(positions.shape, -1, device=ids.device)
    probabilities = torch.zeros_like(tokens, dtype=torch.float64)
    tokens[cells], probabilities[cells] = ids, certain
    tau = torch.where(real, time.unsqueeze(1), 0.0)
    return Step(torch.arange(len(time)), positions, tokens, probabilities, tau, real, draws)


def within(gamma: float, entropy: Tensor) -> Tensor:
    """How many of the lowest entropies [b, R] (padded with inf) to unmask at once: sum minus maximum <= gamma."""
    lowest = entropy.sort(1).values
    before = torch.cat([torch.zeros_like(lowest[:, :1]), lowest.cumsum(1)[:, :-1]], 1)
    return (lowest.isfinite() & (before <= gamma)).sum(1)


@lru_cache
def _turns(sizes: tuple[int, ...], steps: int | None, pace: Pace, annealed: bool) -> list[tuple[int, float]]:
    shares = sizes if steps is None else shared(steps, len(sizes))
    turns = []
    for size, share in zip(sizes, shares, strict=False):
        counts = [1] * size if steps is None else pace(size, share)
        turns += [(count, 1 - k / share if annealed else 1.0) for k, count in enumerate(counts, 1) if count]
    return turns
