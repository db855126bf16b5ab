"""The distributions of an audit, chosen to expose errors, and the tests on them.

A truncated or gridded clock shows where a sure class competes with classes of probability p near e^-M: it wins too
often (``law`` has the closed forms). A ``rung`` is such a design for b random bits: classes at p = q / 3.5, q = -log(1
- 2^-b), where a grid of b bits lets the sure class lose 0.109 times as often as it should. No design distinguishes a
grid from the exact distribution with fewer random numbers: n of them carry n p (1 - f + f log f) nats, f = c / (e^c -
1) at c = q / p, and that is largest at c = 3.5, 0.186 n q. To reject float32 at 1e-6 takes 15 / (0.186 x 2^-24) = 1.4e9
of them on average.

To accept takes fewer. Each rung is Wald's sequential test of the exact distribution against a grid of b bits: draw
until the likelihood ratio exceeds 1/level (faulty) or falls below 1/1000 (passed). By Ville's inequality the ratio of
an exact sampler ever exceeds 1/level with probability at most the level, however rows are grouped and wherever the test
stops; a grid of b bits passes once in a thousand times. An exact sampler passes 24 bits after about 3e8 random numbers.

Every p-value is divided by its test's share of the false-alarm rate, so that one number, FALSE_ALARM, is the threshold
of each test and the rate of the whole audit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask import theory
from unmask.auditing.law import Count, chi_square_tail, leave_grid, leave_zero, quantum
from unmask.auditing.subjects import AuditedDraw

FALSE_ALARM = 1e-6  # probability that an exact sampler is called faulty
MISSED = 1e-3  # probability that a rung passes the grid it was designed for
SHARE = {"top": 0.4, "rungs": 0.2, "zero": 0.1, "order": 0.1, "zipf": 0.05, "temperature": 0.05, "ties": 0.1}
LADDER = (8, 11, 14, 17, 20, 24, 27, 30)  # random bits
BEST_C = 3.5
LARGEST_R = 1 / 8
PER_CALL = 2**20  # approximate number of random numbers per call of the subject

# Expected losses of the sure class after which a test ends undecided.
LOSSES, ZERO_LOSSES, ORDER_LOSSES = 50.0, 4.0, 24.0
ZERO_C = 16.0  # rounding clocks down to 0 makes the sure class lose c times too often: a few losses show it
ORDER_P = 2.0**-25.5  # adding this to a float32 just below 1 changes nothing

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Bins:
    """Draws from a distribution over many classes, counted in bins."""

    law: Array  # [classes]
    bins: NDArray[np.int64]  # [classes]
    observed: NDArray[np.int64]  # [bins]

    def against(self, maximum: float = math.inf) -> tuple[float, float]:
        """Total variation and chi-square, against the distribution or against Prop. 5.2 with this M."""
        law = theory.shifted_probabilities(self.law, maximum)
        expected = np.bincount(self.bins, weights=law) * self.observed.sum()
        distance = float(np.abs(self.observed - expected).sum() / 2 / self.observed.sum())
        return distance, float(((self.observed - expected) ** 2 / np.maximum(expected, 1e-9)).sum())


@dataclass(frozen=True)
class Probe:
    """One distribution, and how far the draws were from it."""

    name: str
    rows: int
    classes: int
    distance: float  # total variation between the frequencies and the truth, over bins of classes
    p_value: float  # under the exact distribution, divided by the test's share: at most FALSE_ALARM means faulty
    count: Count | None = None  # losses of the sure class, if there is one
    bins: Bins | None = None  # frequencies, where all classes are compared, until the report is made
    closed_form_distance: float = math.nan  # to Prop. 5.2 with the best-fitting M
    closed_form_p_value: float = math.nan

    @property
    def fault(self) -> bool:
        return self.p_value <= FALSE_ALARM

    @property
    def numbers(self) -> int:
        return self.rows * self.classes


def rung(who: AuditedDraw, bits: int, vocab: int, share: float) -> Probe:
    """Does the sure class lose as often as it should, or as often as a grid of this many bits lets it?"""
    q = quantum(bits)
    return sequential(
        who, f"{bits} bits", q / BEST_C, vocab, lambda r, p: float(leave_grid(r, p, q)), share=share, losses=LOSSES
    )


def rung_cost(bits: int) -> float:
    """The largest number of random numbers that a rung draws."""
    return LOSSES * BEST_C / quantum(bits)


def zero_clock(who: AuditedDraw, bits: int, vocab: int) -> Probe:
    """Does the sure class lose too often, as it does to clocks that are 0 once in 2^bits?"""
    q = quantum(bits)
    return sequential(
        who,
        "zero clocks",
        q / ZERO_C,
        vocab,
        lambda r, p: float(leave_zero(r, p, q)),
        share=SHARE["zero"],
        losses=ZERO_LOSSES,
    )


def sure_first(who: AuditedDraw, vocab: int) -> Probe:
    """Are classes after a large one lost, as from a cumulative sum in float32?"""
    return sequential(
        who,
        "sure class first",
        ORDER_P,
        vocab,
        lambda r, p: 0.02 * r,
        share=SHARE["order"],
        losses=ORDER_LOSSES,
        first=True,
    )


def sequential(
    who: AuditedDraw,
    name: str,
    p: float,
    vocab: int,
    alternative: Callable[[float, float], float],
    *,
    share: float,
    losses: float,
    first: bool = False,
) -> Probe:
    """Wald's test: the sure class loses with probability r, the exact one, or with alternative(r, p)."""
    tokens = _tokens(p, vocab)
    probabilities = np.full(tokens + 1, p)
    sure = 0 if first else tokens
    probabilities[sure] = 1 - tokens * p
    values, law = who.law(probabilities)
    p = float(law[sure - 1])  # any class but the sure one
    r = tokens * p
    other = alternative(r, p)
    lost, kept = math.log(other / r), math.log1p(-other) - math.log1p(-r)
    rows = left = 0
    ratio = highest = 0.0
    while math.log(MISSED) < ratio < -math.log(share * FALSE_ALARM) and rows * r < losses:
        more = max(1, min(PER_CALL // (tokens + 1), math.ceil(1 / max(r, other))))
        left += int((who.ids(values, more) != sure).sum())
        rows += more
        ratio = left * lost + (rows - left) * kept
        highest = max(highest, ratio)
    p_value = min(1.0, math.exp(-highest) / share)
    return Probe(name, rows, tokens + 1, abs(left / rows - r), p_value, Count(tokens, p, rows, left))


def measure(who: AuditedDraw, maximum: float, c: float, vocab: int, numbers: float) -> Count:
    """Losses of the sure class to classes at p = e^-M / c, for a fixed number of random numbers, to refine M."""
    p = math.exp(-maximum) / c
    tokens = _tokens(p, vocab)
    values, law = who.law(np.r_[np.full(tokens, p), 1 - tokens * p])
    rows = max(1, round(numbers / (tokens + 1)))
    at_once = max(1, PER_CALL // (tokens + 1))
    sizes = [min(at_once, rows - start) for start in range(0, rows, at_once)]
    left = sum(int((who.ids(values, size) != tokens).sum()) for size in sizes)
    return Count(tokens, float(law[0]), rows, left)


def zipf(who: AuditedDraw, vocab: int, numbers: float) -> tuple[Probe, Probe, float, float]:
    """Zipf's law over all classes: a chi-square over ranks that double, and the temperature with its standard error.

    The temperature is fitted by maximum likelihood; its sufficient statistic, the mean of log pi, is the second test.
    """
    classes = min(vocab, 4096)
    rank = np.random.default_rng(0).permutation(classes)  # so that the likely ids are neither the first nor the last
    values, law = who.law(1 / (1 + rank) / (1 / (1 + rank)).sum())
    ids = _draw(who, values, round(numbers / classes))
    bins = np.floor(np.log2(1 + rank)).astype(np.int64)
    fit = _chi_square("Zipf's law", len(ids), Bins(law, bins, np.bincount(bins[ids], minlength=bins.max() + 1)), "zipf")
    score = np.log(law)
    spread = math.sqrt(float((law * score**2).sum() - (law * score).sum() ** 2))
    z = (float(score[ids].mean()) - float((law * score).sum())) * math.sqrt(len(ids)) / spread
    temperature = float(theory.effective_temperature(law, np.bincount(ids, minlength=classes)))
    p_value = min(1.0, math.erfc(abs(z) / math.sqrt(2)) / SHARE["temperature"])
    second = Probe("its temperature", len(ids), classes, fit.distance, p_value)
    return fit, second, temperature, 1 / (spread * math.sqrt(len(ids)))


def ties(who: AuditedDraw, vocab: int, numbers: float) -> Probe:
    """Equal classes: if scores are coarse enough to tie, the first wins. A chi-square over 16 ranges of ids."""
    classes = min(vocab, 1024) // 16 * 16
    values, law = who.law(np.full(classes, 1 / classes))
    ids = _draw(who, values, round(numbers / classes))
    bins = np.arange(classes) * 16 // classes
    return _chi_square("ties", len(ids), Bins(law, bins, np.bincount(bins[ids], minlength=16)), "ties")


def _chi_square(name: str, rows: int, bins: Bins, share: str) -> Probe:
    distance, statistic = bins.against()
    p_value = min(1.0, chi_square_tail(statistic, len(bins.observed) - 1) / SHARE[share])
    return Probe(name, rows, len(bins.law), distance, p_value, bins=bins)


def _tokens(p: float, vocab: int) -> int:
    return max(1, min(vocab - 1, int(LARGEST_R / p)))


def _draw(who: AuditedDraw, values: NDArray[np.float32], rows: int) -> NDArray[np.int64]:
    at_once = max(1, PER_CALL // len(values))
    return np.concatenate([who.ids(values, min(at_once, rows - start)) for start in range(0, rows, at_once)])
