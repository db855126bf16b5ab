"""Whether a claim holds, fails, or is not decided: one rule for all, from the numbers alone.

A claim says in which range a number lies. The number was measured with a standard error from n samples. Its interval
extends as many standard errors to either side as Student's t needs for a probability of 0.00135 beyond either end:
three, for many samples. The claim *holds* if the whole interval is in the range, *fails* if none of it is, and is *not
decided* otherwise. So either verdict is wrong at most once in 740 times, for any number of samples. A claim about k
numbers holds if it holds for all of them and fails if it fails for one, each at 0.00135 / k. A number that is computed
and not sampled has error 0.

The power of a verdict is the distance from the end of its range at which a true value is detected with probability 0.9:
the interval's half-width plus 1.28 standard errors.

An undecided claim says how many samples would decide it if the values are as measured. If that is more than ``REACH``
times the current number, the claim cannot be decided here: its numbers are given without a verdict. Either
way the claim says how many of its values are outside their ranges, so that neither outcome hides a number against the
paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

Outcome = Literal["holds", "fails", "not decided", "no verdict"]
LEVEL = NormalDist().cdf(-3.0)
POWER = 0.9
REACH = 10


@dataclass(frozen=True)
class Number:
    """A measurement, and the range that a claim states for it. n = 0: computed, without an error."""

    what: str
    value: float | None  # None: not available
    error: float | None = 0.0
    n: int = 0
    low: float = -math.inf
    high: float = math.inf

    def at_least(self, low: float) -> Number:
        return replace(self, low=low)

    def at_most(self, high: float) -> Number:
        return replace(self, high=high)

    def within(self, low: float, high: float) -> Number:
        return replace(self, low=low, high=high)

    @property
    def known(self) -> bool:
        return all(v is not None and math.isfinite(v) for v in (self.value, self.error)) and self.n != 1


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the paper's value, and the numbers it is tested with."""

    says: str
    paper: str
    on: str
    numbers: tuple[Number, ...]
    note: str = ""

    @property
    def outcome(self) -> Outcome:
        ranged = [number for number in self.numbers if (number.low, number.high) != (-math.inf, math.inf)]
        if not ranged:
            return "no verdict"
        found = {_outcome(number, len(ranged)) for number in ranged}
        if "fails" in found or "not decided" not in found:
            return "fails" if "fails" in found else "holds"
        return "no verdict" if self.needed and self.needed > REACH * min(one.n for one in ranged) else "not decided"

    @property
    def outside(self) -> list[Number]:
        """The numbers whose value, whatever its error, lies against the claim."""
        return [one for one in self.numbers if one.value is not None and not one.low <= one.value <= one.high]

    @property
    def needed(self) -> int | None:
        """How many samples would decide it, if all values are as measured; None if nothing is undecided.

        One number outside its range is enough to fail; all must be inside to hold.
        """
        ranged = [number for number in self.numbers if (number.low, number.high) != (-math.inf, math.inf)]
        found = {_outcome(number, len(ranged)) for number in ranged}
        if "fails" in found or "not decided" not in found or not all(one.known and one.error for one in ranged):
            return None
        many = [_enough(one, len(ranged)) for one in self.outside or ranged]
        return min(many) if self.outside else max(many)

    @property
    def power(self) -> float | None:
        """The distance from its range at which a value is detected with probability 0.9; None if nothing is sampled."""
        seen = [half_width(number, len(self.numbers)) for number in self.numbers if number.known and number.error]
        extra = NormalDist().inv_cdf(POWER)
        errors = [number.error or 0.0 for number in self.numbers if number.known and number.error]
        return max((half + extra * error for half, error in zip(seen, errors, strict=True)), default=None)


def claim(says: str, paper: str, on: str, *numbers: Number, note: str = "") -> Claim:
    return Claim(says, paper, on, numbers, note)


def _outcome(number: Number, together: int) -> Outcome:
    # Samples that do not differ at all carry no information about their spread.
    if not number.known or number.value is None or (number.n and not number.error):
        return "not decided"
    half = half_width(number, together)
    low, high = number.value - half, number.value + half
    if number.low <= low and high <= number.high:
        return "holds"
    return "fails" if high < number.low or low > number.high else "not decided"


def _enough(number: Number, together: int) -> int:
    """The number of samples with which the interval ends at the nearest end of the range."""
    value, error = number.value or 0.0, number.error or 0.0
    room = min(abs(value - end) for end in (number.low, number.high) if math.isfinite(end))
    n, spread = max(number.n, 4), error * math.sqrt(number.n)
    for _ in range(20):  # Student's quantile depends on n too, ever less
        n = max(4, math.ceil((quantile(n, LEVEL / together) * spread / max(room, 1e-6)) ** 2))
    return n


def half_width(number: Number, together: int = 1) -> float:
    """The half-width of the interval of one of several numbers."""
    return quantile(number.n, LEVEL / together) * number.error if number.error else 0.0


def quantile(n: int, level: float) -> float:
    """The value that Student's t with n - 1 degrees of freedom exceeds with this probability; a series in 1/(n - 1)."""
    z, free = -NormalDist().inv_cdf(level), max(n - 1, 1)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.inf if n < 4 and n > 0 else sum(term / free**i for i, term in enumerate(terms))


def mean(what: str, values: Iterable[float]) -> Number:
    """The mean of independent values with its standard error."""
    found = list(values)
    n = len(found)
    value = sum(found) / n
    spread = sum((v - value) ** 2 for v in found) / max(n - 1, 1)
    return Number(what, value, math.sqrt(spread / n), n)


def ratio(what: str, top: Number, bottom: Number) -> Number:
    """The quotient of two independent numbers, its error to first order."""
    if top.value is None or not bottom.value or top.error is None or bottom.error is None:
        return Number(what, None)
    value = top.value / bottom.value
    error = math.hypot(top.error, value * bottom.error) / abs(bottom.value)
    return Number(what, value, error, min(top.n or bottom.n, bottom.n or top.n))
