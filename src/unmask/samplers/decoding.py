"""Decoding orders that depend on the network: rank the masked positions by its output, and unmask the first ones.

    Order                 unmasks first
    confidence            the most likely tokens, drawn everywhere, with annealed Gumbel noise (MaskGIT)
    low_confidence, llada the same without noise, in blocks (LLaDA's low-confidence remasking)
    random_order          a random choice, in as many steps as LLaDA's (its random remasking)
    threshold             all tokens more likely than a threshold, and the most likely one in any case (Fast-dLLM)
    margin, entropy       where the two most likely tokens differ most; where the entropy is lowest
    dream                 one of these three, with Dream's step sizes and its temperature for the choice
    entropy_bounded       the lowest entropies, as many as keep the bound on their joint entropy below gamma
    blocks(K, inner)      blocks of K masked positions from left to right, each in an inner order

``unmask.sample(model, sampler=decoding.margin(), steps=16)``. Without ``steps`` one token is unmasked per call. A
network that reads the time gets alpha^-1(1 - masked/L).

Positions that tie are ordered uniformly at random, by noise of the position's own; ``leftmost`` keeps the authors'
rule, a stable sort. ``unmask audit --order`` measures what that does.

Which distribution results: with one token per call, choosing the position by the network's prediction from the visible
tokens (margin, entropy, entropy_bounded with gamma = 0) leaves the chain rule intact, and is exact for a network whose
conditionals come from one joint distribution. Choosing it by the token drawn there (confidence, llada) prefers likely
tokens, with any number of calls. Tokens unmasked together are drawn independently. Measurements are in
docs/results/sampling.md; ``plan.first_hitting`` has the model's distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from unmask.devices import indices, upload
from unmask.draw import Pick
from unmask.noise import Noise
from unmask.plan import start_time
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


def log_probability(look: Look) -> Tensor:
    """log mu of the token that was drawn."""
    return look.log_mu.gather(1, look.ids.to(look.log_mu.device).unsqueeze(1)).squeeze(1)


def probability(look: Look) -> Tensor:
    """mu of the token that was drawn."""
    return log_probability(look).exp()


def gap(look: Look) -> Tensor:
    """mu of the most likely token minus that of the second."""
    best: Tensor = look.log_mu.topk(min(2, look.log_mu.shape[1]), dim=1).values.exp()
    return best[:, 0] - best[:, 1:].sum(1)


def negative_entropy(look: Look) -> Tensor:
    """-H(mu), in nats."""
    entropies: Tensor = torch.special.entr(look.log_mu.exp()).sum(1)
    return -entropies


def nothing(look: Look) -> Tensor:
    """0 everywhere: all positions rank equally."""
    return torch.zeros_like(look.log_mu[:, 0])


def even(n: int, steps: int) -> list[int]:
    """Step sizes that differ by at most one, the larger ones first, as in LLaDA."""
    base, rest = divmod(n, steps)
    return [base + (k < rest) for k in range(steps)]


def cosine(n: int, steps: int) -> list[int]:
    """MaskGIT's step sizes: after step k of N, floor(n cos(pi k / 2N)) positions are masked, at least one fewer."""
    left = [n]
    for k in range(1, steps):
        left.append(max(min(math.floor(n * math.cos(math.pi / 2 * k / steps)), left[-1] - 1), min(n, 1)))
    return [before - after for before, after in zip(left, [*left[1:], 0], strict=True)]


def falling(eps: float) -> Pace:
    """Dream's step sizes: from t to s floor(n (1 - s/t)) of n masked positions, in the last step all; t ends at eps."""

    def pace(n: int, steps: int) -> list[int]:
        counts: list[int] = []
        for k in range(steps - 1):
            t, s = (1 - (1 - eps) * i / steps for i in (k, k + 1))
            counts.append(int((n - sum(counts)) * (1 - s / t)))
        return [*counts, n - sum(counts)]

    return pace


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
        draws_first = self.sees == "token"
        ids, certain = self._picked(state, row, at, log_mu) if draws_first else (torch.zeros_like(at), None)
        score = torch.full(state.x.shape, -torch.inf, dtype=torch.float64)
        score[row, at] = self.score(Look(ranked, ids)).cpu()  # the one time that the host waits for the call
        count, heat = self._turn(state, score)
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
    if steps is not None and steps < len(sizes):
        blocks = len(sizes)
        raise ValueError(f"steps={steps}: {blocks} blocks take at least one each, so give {blocks} or more, or none")
    shares = sizes if steps is None else even(steps, max(len(sizes), 1))
    turns = []
    for size, share in zip(sizes, shares, strict=False):
        counts = [1] * size if steps is None else pace(size, share)
        turns += [(count, 1 - k / share if annealed else 1.0) for k, count in enumerate(counts, 1) if count]
    return turns


def confidence(*, noise: float = 4.5, pace: Pace = cosine) -> Ranked:
    """MaskGIT's order: draw everywhere, keep the tokens with the highest log mu + noise (1 - k/N) g, with Gumbel g."""
    return Ranked(log_probability, pace, "token", noise=_checked("noise", noise), annealed=True)


def low_confidence(*, pace: Pace = even) -> Ranked:
    """LLaDA's low-confidence remasking: draw everywhere, keep the most likely of the drawn tokens."""
    return Ranked(log_probability, pace, "token")


def random_order() -> Ranked:
    """LLaDA's random remasking: draw everywhere, keep the tokens of uniformly drawn positions."""
    return Ranked(nothing, sees="token", noise=1.0)  # equal scores plus Gumbels: a uniform ranking


def threshold(threshold: float = 0.9) -> Ranked:
    """Fast-dLLM's order: draw everywhere, keep tokens of at least this probability, and the most likely one."""
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be a probability, got {threshold}")
    return Ranked(probability, sees="token", least=float(threshold))


def margin(*, noise: float = 0.0, pace: Pace = even) -> Ranked:
    """First where the most likely token leads the second by most."""
    return Ranked(gap, pace, noise=_checked("noise", noise))


def entropy(*, noise: float = 0.0, pace: Pace = even) -> Ranked:
    """First where mu has the lowest entropy."""
    return Ranked(negative_entropy, pace, noise=_checked("noise", noise))


def entropy_bounded(gamma: float = 0.1) -> Ranked:
    """In each call as many positions of lowest entropy as possible, whose sum minus the largest is at most gamma nats.

    Sum minus maximum bounds the mutual information of the tokens drawn together. It needs no ``steps``; gamma = 0 is
    one token per call, except where the network is certain.
    """
    return Ranked(negative_entropy, gamma=_checked("gamma", gamma))


def blocks(length: int, inner: Ranked) -> Ranked:
    """Semi-autoregressive: blocks of ``length`` masked positions from left to right, each in the inner order.

    ``steps`` are shared evenly among the blocks, so each block needs at least one.
    """
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise ValueError(f"length, the holes of a block, must be a whole number of at least 1, got {length!r}")
    if not isinstance(inner, Ranked):
        raise ValueError(f"inner must be an order that ranks positions, such as confidence(), got {inner!r}")
    return replace(inner, block=length)


def leftmost(order: Ranked) -> Ranked:
    """The same order with the authors' rule for ties: a stable sort, which takes the leftmost position.

    By default ties are broken uniformly at random, by noise of the position's own.
    """
    return replace(order, ties="leftmost")


def llada(block_length: int | None = None) -> Ranked:
    """LLaDA's ``generate``, low-confidence remasking without guidance: ``steps`` spread evenly over the blocks."""
    return low_confidence() if block_length is None else blocks(block_length, low_confidence())


DREAM: dict[str, tuple[Score, Literal["mean", "token"]]] = {
    "entropy": (negative_entropy, "mean"),
    "maskgit_plus": (probability, "token"),
    "topk_margin": (gap, "mean"),
}


def dream(alg: str = "entropy", *, alg_temp: float = 0.0, eps: float = 1e-3) -> Ranked:
    """Dream's ``diffusion_generate``: alg ranks; with alg_temp, positions are drawn from softmax(score / alg_temp)."""
    if alg not in DREAM:
        raise ValueError(f"alg must be one of {', '.join(map(repr, DREAM))}, got {alg!r}")
    if not 0 < eps < 1:
        raise ValueError(f"eps, the last time, must be in (0, 1), got {eps}")
    score, sees = DREAM[alg]
    # The top k of score / T + Gumbel are k draws without replacement from softmax(score / T).
    return Ranked(score, _falling(eps), sees, noise=_checked("alg_temp", alg_temp), as_drawn=True)


@lru_cache
def _falling(eps: float) -> Pace:
    return falling(eps)


def _checked(name: str, value: float) -> float:
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
    return float(value)
