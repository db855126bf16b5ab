"""Confidence intervals of means over sequences, by the studentized bootstrap."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_NUMBERS_AT_ONCE = 2**21


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval at the stated level; nan for a single sequence."""

    value: float
    low: float
    high: float
    level: float

    def __str__(self) -> str:
        """With two significant digits of the width: ``41.3 [39.8, 42.9]``."""
        width = self.high - self.low
        if math.isnan(width) and math.isnan(self.low):
            return f"{self.value:.4g} [no interval from one sequence]"
        if not math.isfinite(width) or width == 0:
            return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"
        decimals = min(max(0, 1 - math.floor(math.log10(width))), 12)
        return f"{self.value:,.{decimals}f} [{self.low:,.{decimals}f}, {self.high:,.{decimals}f}]"

    def exp(self) -> Interval:
        """The interval of the exponential of this quantity."""
        with np.errstate(over="ignore"):
            value, low, high = (float(np.exp(x)) for x in (self.value, self.low, self.high))
        return Interval(value, low, high, self.level)


def mean_interval(
    values: Any, weights: Any = None, *, log: bool = False, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """The mean of one number per sequence, or sum(values) / sum(weights), with its interval.

    The bootstrap-t: the mean of each resample in units of its own standard error, whose quantiles replace Student's t.
    ``log`` applies it to the logarithm of the mean, which suits positive numbers with a long tail. On each side the
    wider of the bootstrap's and Student's is taken, since the bootstrap underestimates the spread of few sequences.
    The coverage is measured in docs/results/evaluation.md; Efron's BCa covers a skewed mean less often.
    """
    x, w = np.asarray(values, dtype=np.float64), np.asarray(1.0 if weights is None else weights, dtype=np.float64)
    if x.ndim != 1 or not len(x) or w.shape not in ((), x.shape):
        raise ValueError(f"values must have one number for each sequence, and so weights, got {x.shape} and {w.shape}")
    if not 0 < level < 1 or resamples < 2:
        raise ValueError(f"level must be in (0, 1) and resamples at least 2, got {level} and {resamples}")
    x, w = x[None], np.broadcast_to(w, x.shape)[None]
    value = float(x.sum() / w.sum())
    if not math.isfinite(value):  # if one possible sequence has an infinite value, so has the mean
        return Interval(value, value, value, level)
    if x.size == 1:
        return Interval(value, math.nan, math.nan, level)
    center, error = (float(values[0]) for values in _mean_and_error(x, w, log))
    deviations = []
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample of equal sequences has no error
        for pick in _picks(x.size, resamples, seed):
            means, errors = _mean_and_error(x[0, pick], w[0, pick], log)
            deviations.append((means - center) / errors)
    t = np.concatenate(deviations)
    t = t[np.isfinite(t)]
    student = _student(NormalDist().inv_cdf(0.5 + level / 2), x.size - 1)
    below, above = np.quantile(t, [0.5 - level / 2, 0.5 + level / 2]) if len(t) else (0.0, 0.0)
    low, high = center - error * max(above, student), center - error * min(below, -student)
    interval = Interval(center, float(low), float(high), level)
    return interval.exp() if log else interval


def _mean_and_error(x: Floats, w: Floats, log: bool) -> tuple[Floats, Floats]:
    """Of each row [R, n]: sum x / sum w and its standard error, from the residuals; or of its logarithm."""
    n, total = x.shape[1], w.sum(1)
    mean = x.sum(1) / total
    error = np.sqrt(n / (n - 1) * np.square(x - w * mean[:, None]).sum(1)) / total
    return (np.log(mean), error / mean) if log else (mean, error)


def _picks(n: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    random, size = np.random.default_rng(seed), max(1, _NUMBERS_AT_ONCE // n)
    for start in range(0, resamples, size):
        yield random.integers(0, n, (min(size, resamples - start), n))


def _student(z: float, degrees: int) -> float:
    """Student's t where the normal distribution has z: expansion in 1/degrees (Abramowitz, Stegun 26.7.5)."""
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return z + sum(term / float(degrees) ** k for k, term in enumerate(terms, 1))
