"""Confidence intervals by the bootstrap over sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_NUMBERS_AT_ONCE = 2**21
_JACKKNIFE_GROUPS = 1000


@dataclass(frozen=True)
class Interval:
    """An estimate, and the interval that holds the truth at the stated rate; nan where one sequence cannot tell."""

    value: float
    low: float
    high: float
    level: float

    def __str__(self) -> str:
        """With as many decimals as leave two digits of the width: ``41.3 [39.8, 42.9]``."""
        width = self.high - self.low
        if math.isnan(width) and math.isnan(self.low):
            return f"{self.value:.4g} [no interval from one sequence]"
        if not math.isfinite(width) or width == 0:
            return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"
        decimals = min(max(0, 1 - math.floor(math.log10(width))), 12)
        return f"{self.value:,.{decimals}f} [{self.low:,.{decimals}f}, {self.high:,.{decimals}f}]"


def bootstrap(
    statistic: Callable[..., Any], *arrays: Any, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """The statistic of n sequences and its bias-corrected and accelerated interval (Efron's BCa) over sequences.

    arrays: each has one entry per sequence on its first axis, and a resampling picks the same sequences from all.
    statistic(*arrays) is a number. If it turns [R, n, ...] into [R], as ``lambda x: x.mean(-1)`` does with numbers, it
    is asked about many resamplings at a time.
    The levels are widened as Student's t is wider than the normal law, without which few sequences give too narrow an
    interval.
    """
    data = [np.asarray(array) for array in arrays]
    sizes = {len(array) for array in data if array.ndim}
    if len(sizes) != 1 or any(array.ndim == 0 for array in data) or 0 in sizes:
        raise ValueError(f"arrays must have one entry per sequence, at least one, got {[a.shape for a in data]}")
    if not 0 < level < 1 or resamples < 2:
        raise ValueError(f"level must be in (0, 1) and resamples at least 2, got {level} and {resamples}")
    n = sizes.pop()
    value = float(np.squeeze(np.asarray(statistic(*data), dtype=np.float64)))
    if n == 1:
        return Interval(value, math.nan, math.nan, level)
    random = np.random.default_rng(seed)
    pick = (random.integers(0, n, (size, n)) for size in _sizes(resamples, n))
    with np.errstate(invalid="ignore"):  # a sequence of probability zero has infinite nats: inf - inf
        found = np.sort(_evaluated(statistic, data, pick, n))
        without = _evaluated(statistic, data, _left_out(n), n)
        low, high = (found[i] for i in _ranks(found, value, _acceleration(without), n, level))
    return Interval(value, float(low), float(high), level)


def _ranks(found: Floats, value: float, acceleration: float, n: int, level: float) -> tuple[int, int]:
    """Which of the sorted resampled values bound the interval: BCa's levels. No interpolation, so inf stays inf."""
    normal, last = NormalDist(), len(found) - 1
    below = (np.mean(found < value) + np.mean(found <= value)) / 2
    bias = normal.inv_cdf(min(max(float(below), 0.5 / len(found)), 1 - 0.5 / len(found)))
    z = math.sqrt(n / (n - 1)) * student(normal.inv_cdf(0.5 + level / 2), n - 1)
    low, high = (normal.cdf(bias + (bias + side) / max(1 - acceleration * (bias + side), 0.05)) for side in (-z, z))
    return math.floor(low * last), math.ceil(high * last)


def student(z: float, degrees: int) -> float:
    """Student's t at the level where the normal law has z: its expansion in 1/degrees (Abramowitz, Stegun 26.7.5)."""
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return z + sum(term / float(degrees) ** k for k, term in enumerate(terms, 1))


def _acceleration(without: Floats) -> float:
    """A sixth of the skewness of the jackknife's influences; 0 where it says nothing."""
    influence = without.mean() - without
    spread = float((influence**2).sum()) ** 1.5
    found = float((influence**3).sum()) / (6 * spread) if spread > 0 else 0.0
    return found if math.isfinite(found) else 0.0


def _left_out(n: int) -> Iterator[NDArray[np.int64]]:
    """Everything but one sequence, or but one of a thousand groups where there are more."""
    everything = np.arange(n)
    if n <= _JACKKNIFE_GROUPS:
        yield everything[:-1] + (everything[:-1] >= everything[:, None])
        return
    for group in np.array_split(everything, _JACKKNIFE_GROUPS):
        yield np.delete(everything, group)[None]


def _sizes(resamples: int, n: int) -> Iterator[int]:
    size = max(1, _NUMBERS_AT_ONCE // n)
    for start in range(0, resamples, size):
        yield min(size, resamples - start)


def _evaluated(statistic: Callable[..., Any], data: list[Any], picks: Iterator[NDArray[np.int64]], n: int) -> Floats:
    """The statistic of each picked set: of many at a time if it reduces the second axis, else one by one."""
    two = np.arange(n)[None].repeat(2 if n != 2 else 3, 0)
    try:
        vectorised = np.shape(statistic(*(array[two] for array in data))) == (len(two),)
    except (ValueError, TypeError, IndexError):
        vectorised = False
    found = []
    for pick in picks:
        parts = [pick] if vectorised else pick
        for part in parts:
            found.append(np.atleast_1d(np.asarray(statistic(*(array[part] for array in data)), dtype=np.float64)))
    return np.concatenate(found)
