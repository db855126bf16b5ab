"""Closed forms that an audit compares with: exact, truncated and gridded clocks, for one likely and many rare classes.

Gumbel-max is a race of exponential clocks: argmax_i log pi_i + g_i = argmin_i E_i / pi_i with E_i = e^{-g_i}. The race
is between one class of probability 1 - r, the sure class, and K classes of probability p each, r = K p. The statistic
is the probability that the sure class loses ("leaving"). With q = e^-M, the smallest clock, and c = q / p it is

    r                             exact clocks
    r e^{-(1 - r - p) c}          clocks conditioned on E >= q ("truncated": Prop. 5.2; E = q + an exponential)
    (e^{rc} - 1) / (e^c - 1)      clocks rounded up to multiples of q ("grid": -log u with u = 1 - k 2^-24)
    (1 - e^{-rc}) / (1 - e^{-c})  clocks rounded down to multiples of q ("zero": -log(1 - u); a clock of 0 beats all)

The last three hold because the first of K clocks to ring is geometric on the grid, P(later than k q) = e^{-K k q},
while the sure class's clock is nearly continuous. For small r they are r times e^-c, c/(e^c - 1), c/(1 - e^-c).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask import theory

Array = NDArray[np.float64]
Leave = Callable[[float, float, Any], Array]

# Random bits of a uniform; 1 - 2^-bits is the largest. jax fills a float32's 23 stored bits only, torch and numpy 24.
PRECISIONS = {"bfloat16": 8, "float16": 11, "float32 (23 bits)": 23, "float32": 24, "float64": 53}
LIKELIHOOD_DROP = 1.92  # half of the 95 % point of chi-square with one degree of freedom
ROUNDING = 0.1  # what rounding of the logarithms may add to M; named precisions are 0.69 apart or more
GRID_OF_M = np.arange(1.0, 40.0, 0.01)  # beyond float64's 36.7 nothing can be detected


def quantum(bits: float) -> float:
    """e^-M = -log(1 - 2^-bits)."""
    return -math.log1p(-(2.0**-bits))


def leave_truncated(r: float, p: float, q: Any) -> Array:
    return np.asarray(r * np.exp(-(1 - r - p) * q / p))


def leave_grid(r: float, p: float, q: Any) -> Array:
    c = q / p
    return np.asarray(np.exp(-(1 - r) * c) * np.expm1(-r * c) / np.expm1(-c))


def leave_zero(r: float, p: float, q: Any) -> Array:
    return np.asarray(np.expm1(-r * q / p) / np.expm1(-q / p))


LAWS: dict[str, Leave] = {"grid": leave_grid, "truncated": leave_truncated}


@dataclass(frozen=True)
class Count:
    """The counts of one design: in `left` of `rows` draws the sure class lost to one of `tokens` classes at p."""

    tokens: int
    p: float
    rows: int
    left: int

    @property
    def r(self) -> float:
        return self.tokens * self.p


@dataclass(frozen=True)
class GumbelFit:
    """The largest Gumbel by maximum likelihood under both models, with a 95 % profile-likelihood interval."""

    maximum: float  # inf if an exact draw is within the interval
    interval: tuple[float, float]
    law: str  # "grid", or "truncated" if clearly likelier; telling them apart takes many counts
    truncated: float  # the estimate under Prop. 5.2
    p_value: float  # goodness of fit of the likelier model

    @property
    def precision(self) -> str:
        """The named precisions in the interval, the nearest first, or the finest one that is ruled out."""
        if math.isnan(self.maximum):
            return "not a matter of precision"
        largest = {name: -math.log(quantum(bits)) for name, bits in PRECISIONS.items()}
        if math.isinf(self.maximum):
            out = [name for name, m in largest.items() if m < self.interval[0]]
            return f"finer than {out[-1]}" if out else "nothing ruled out"
        low, high = self.interval[0] - ROUNDING, self.interval[1] + ROUNDING
        inside = [name for name, m in largest.items() if low <= m <= high]
        inside.sort(key=lambda name: abs(largest[name] - self.maximum))
        return " or ".join(inside) or "none that has a name"


def fit(counts: Sequence[Count]) -> GumbelFit:
    """M from binomial counts at several p. Grid or truncated is a nuisance parameter: the interval holds for either."""
    q = np.exp(-GRID_OF_M)
    profile = {name: sum((log_likelihood(c, law(c.r, c.p, q)) for c in counts), 0 * q) for name, law in LAWS.items()}
    either = np.maximum(*profile.values())
    top = float(either.max())
    # Rounding makes a grid, so a grid is assumed unless the counts contradict it.
    law = "truncated" if profile["grid"].max() < top - LIKELIHOOD_DROP else "grid"
    inside = np.flatnonzero(either >= top - LIKELIHOOD_DROP)
    low, high = float(GRID_OF_M[inside[0]]), float(GRID_OF_M[inside[-1]])
    best = sum(float(log_likelihood(c, np.float64(c.left / c.rows))) for c in counts)
    p_value = chi_square_tail(2 * (best - top), max(len(counts) - 1, 1))
    if inside[-1] == len(q) - 1:
        return GumbelFit(math.inf, (low, math.inf), "exact", math.inf, p_value)
    at = {name: float(GRID_OF_M[int(values.argmax())]) for name, values in profile.items()}
    return GumbelFit(at[law], (low, high), law, at["truncated"], p_value)


def log_likelihood(count: Count, leave: Array | np.float64) -> Array:
    leave = np.clip(leave, 1e-300, 1 - 1e-15)
    return np.asarray(count.left * np.log(leave) + (count.rows - count.left) * np.log1p(-leave))


def chi_square_tail(statistic: float, degrees: int) -> float:
    half = torch.tensor([degrees / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def binomial_tails(left: int, rows: int, chance: float) -> tuple[float, float]:
    """P(X <= left) and P(X >= left) of a binomial, summed term by term in logarithms."""
    if not 0 < chance < 1:
        return float(left >= rows * chance), float(left <= rows * chance)
    width = 60 * math.sqrt(rows * chance * (1 - chance)) + 400  # terms beyond it do not change a double
    k = np.arange(max(0, int(rows * chance - width)), min(rows, int(rows * chance + width)) + 1)
    k = np.union1d(k, np.arange(max(0, left - 400), min(rows, left + 400) + 1)).astype(np.int64)
    log_choose = np.array([math.lgamma(rows + 1) - math.lgamma(i + 1) - math.lgamma(rows - i + 1) for i in k.tolist()])
    terms = np.exp(log_choose + k * math.log(chance) + (rows - k) * math.log1p(-chance))
    return min(1.0, float(terms[k <= left].sum())), min(1.0, float(terms[k >= left].sum()))


@dataclass(frozen=True)
class Consequence:
    """The effect of a largest Gumbel on N coupled steps, at positions of one entropy."""

    entropy: float  # of the network's prediction, in nats
    unmasking: float  # the probability of unmasking in the first step, relative to the exact one
    temperature: float  # the temperature of the resulting tokens
    at_half: float  # unmasked positions of L after half of the steps; exact: L/2


def consequences(maximum: float, law: str, *, vocab: int, length: int, steps: int) -> tuple[Consequence, ...]:
    """Implications 1 and 2 of Prop. 5.2 for positions from nearly certain to flat, under the linear schedule."""
    rows = []
    for entropy in (0.5, 2.0, 4.0, 6.0, 8.0, math.log(vocab)):
        if entropy > math.log(vocab) + 1e-9:
            continue
        p, many = position(vocab, entropy)
        first = coupled_step(p, many, steps, maximum, law)
        temperature = math.nan  # no token is ever unmasked
        if first.sum() > 0:
            temperature = float(theory.effective_temperature(np.repeat(p, many), np.repeat(first / many, many)))
        # Step k leaves the mask with probability 1/k; the loss is a smooth function of k, so five values of k suffice.
        some = np.unique(np.geomspace(max(steps // 2, 2), max(steps, 2), 5).astype(int))
        ratio = [float(coupled_step(p, many, k, maximum, law).sum()) * k for k in some.tolist()]
        every = np.arange(steps // 2 + 1, steps + 1)
        masked = float(np.prod(1 - np.minimum(np.interp(every, some, ratio) / every, 1)))
        rows.append(Consequence(entropy, float(first.sum()) * steps, temperature, length * (1 - masked)))
    return tuple(rows)


def position(vocab: int, entropy: float) -> tuple[Array, NDArray[np.int64]]:
    """A distribution rank^-s of this entropy, in at most 120 levels: the probability of a token, and their number."""
    if entropy >= math.log(vocab):
        return np.array([1 / vocab]), np.array([vocab])
    edges = np.unique(np.geomspace(1, vocab + 1, 120).astype(np.int64))
    rank = np.arange(1, vocab + 1, dtype=np.float64)
    many = np.diff(edges)

    def levels(s: float) -> Array:
        weights = np.add.reduceat(rank**-s, edges[:-1] - 1) / many
        return np.asarray(weights / (weights * many).sum())

    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        p = levels(middle)
        low, high = (middle, high) if -(many * p * np.log(p)).sum() > entropy else (low, middle)
    return levels(low), many


def coupled_step(p: Array, many: NDArray[np.int64], steps: int, maximum: float, law: str) -> Array:
    """The probability that each level of a position wins in one coupled step: tokens at mu/N, the mask at 1 - 1/N."""
    stay = 1 - 1 / steps
    if law == "truncated":
        shifted = theory.shifted_probabilities(np.r_[np.repeat(p / steps, many), stay], maximum)
        return np.asarray(np.add.reduceat(shifted[:-1], np.r_[0, np.cumsum(many)[:-1]]))
    # On the grid a token rings only at the times k q / p. H is the integrated hazard of each level up to x; the
    # probability of a short interval is divided in proportion to hazard, of which the mask's part is stay dx.
    q = math.exp(-maximum)
    x = np.r_[0.0, np.geomspace(1e-4, 1.0, 1500), np.linspace(1.0, 45.0, 8001)[1:]]
    hazard = many * q * np.floor(p / steps * x[:, None] / q + 1e-9)
    gained = np.diff(hazard, axis=0)
    total = gained.sum(axis=1) + stay * np.diff(x)
    survival = np.exp(-np.r_[0.0, np.cumsum(total)])
    return np.asarray((gained * (-np.diff(survival) / total)[:, None]).sum(axis=0))
