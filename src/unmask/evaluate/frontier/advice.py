"""Which sampler to use for a budget of network calls or of seconds, from the points of a frontier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from unmask.evaluate.frontier.points import DATA, Point
from unmask.evaluate.judge.interval import Interval

Unit = Literal["calls", "seconds"]

TOLERANCE = 0.05  # nats of entropy
SAME_COST = 1.05  # costs within 5% of each other count as equal
LEAST = 32  # samples per recommended point: fewer do not show the spread of their entropy


@dataclass(frozen=True)
class Floor:
    """The entropy that a point must have to be recommended, and where it comes from."""

    entropy: float  # nats
    reference: Point
    tolerance: float

    def perplexity(self, point: Point) -> float:
        """The quantity compared: the perplexity, or if it is below that of data, as far above it by the same factor."""
        value = point.perplexity.value
        if self.reference.sampler != DATA:
            return value
        return max(value, self.reference.perplexity.value**2 / value)

    def holds(self, point: Point) -> bool | None:
        """Whether a point's entropy is high enough; None while the errors of both entropies leave it undecided."""
        same = point.key == self.reference.key
        error = 0.0 if same else math.hypot(*(_half_width(p.entropy) for p in (point, self.reference)))
        gap = point.entropy.value - self.entropy
        return True if gap >= error else False if gap < -error else None

    def __str__(self) -> str:
        what = f"data ({self.reference.model})"
        if self.reference.sampler != DATA:
            what = f"the exact sampler ({self.reference.model}, {self.reference.label})"
        return f"at least {self.entropy:.3f} nats: that of {what}, {self.reference.entropy}, minus {self.tolerance:g}"


def floor_of(points: Sequence[Point], tolerance: float = TOLERANCE) -> Floor | None:
    """The entropy of data, or else of the exact sampler with the lowest perplexity, minus the tolerance.

    None if there is neither: then no entropy is known to be right.
    """
    if not (tolerance >= 0 and math.isfinite(tolerance)):
        raise ValueError(f"tolerance must be a finite number of nats of at least 0, got {tolerance}")
    data = [point for point in points if point.sampler == DATA]
    references = data or sorted((p for p in points if p.exact), key=lambda point: point.perplexity.value)
    return Floor(references[0].entropy.value - tolerance, references[0], tolerance) if references else None


def staircase(points: Sequence[Point], floor: Floor, unit: Unit) -> list[Point]:
    """The points to use as the budget grows: each from its cost on.

    Of the points with sufficient entropy, excluding the published samplers, the cheapest comes first. A more expensive
    one follows if its perplexity is significantly lower: by more than both intervals' half-widths, added in quadrature.
    At the same cost, the lower perplexity wins, or among equal ones the higher entropy.
    """
    able = [point for point in points if recommendable(point, floor)]
    stairs: list[Point] = []
    start = 0.0  # the cost at which the last point was added: one of equal cost replaces it
    for point in sorted(able, key=lambda point: cost(point, unit)):
        if stairs and cost(point, unit) <= SAME_COST * start:
            stairs[-1] = min(stairs[-1], point, key=lambda p: (floor.perplexity(p), -p.entropy.value))
        elif not stairs or clearly_better(point, stairs[-1], floor):
            stairs.append(point)
            start = cost(point, unit)
    return stairs


def recommend(points: Sequence[Point], floor: Floor, unit: Unit, budget: float) -> Point | None:
    """The point to use for a budget per sequence; None if no point is cheap enough and has sufficient entropy."""
    within = [point for point in points if cost(point, unit) <= budget]
    stairs = staircase(within, floor, unit)
    return stairs[-1] if stairs else None


def candidate(point: Point) -> bool:
    return math.isfinite(point.perplexity.value) and point.sampler != DATA and not point.published


def recommendable(point: Point, floor: Floor) -> bool:
    return candidate(point) and point.num >= LEAST and floor.holds(point) is True


def cost(point: Point, unit: Unit) -> float:
    """The cost of one sequence."""
    return point.calls if unit == "calls" else point.seconds


def clearly_better(point: Point, other: Point, floor: Floor) -> bool:
    """Whether the perplexity is lower by more than the two intervals explain; False without intervals."""
    widths = [_half_width(p.perplexity) for p in (point, other)]
    return floor.perplexity(other) - floor.perplexity(point) > math.hypot(*widths)


def _half_width(interval: Interval) -> float:
    return (interval.high - interval.low) / 2


def advice(
    points: Sequence[Point], *, tolerance: float = TOLERANCE, calls: float | None = None, seconds: float | None = None
) -> str:
    """The recommendation as text, for each model and for all together: for one budget, or for every one."""
    models = list(dict.fromkeys(point.model for point in points if point.sampler != DATA))
    parts = [_for(points, [model], tolerance, calls, seconds) for model in models]
    if len(models) > 1:
        parts.append(_for(points, models, tolerance, calls, seconds))
    return "\n\n".join([*parts, RULE])


RULE = (
    "How this was decided: a point has enough entropy if it lies above the floor by more than both entropies' half-\n"
    "widths, added in quadrature, too little if as far below, and is left open in between. Of the points with enough\n"
    "the cheapest is taken; from there, each dearer one whose corpus perplexity is lower by more than both intervals'\n"
    "half-widths, added in quadrature. Where there are data, their perplexity is the aim, and one below it counts as\n"
    f"one above by the same factor. Costs within {SAME_COST - 1:.0%} of each other count as equal, and then the lower\n"
    "perplexity is taken, or of equal ones the higher entropy. Published samplers are there for comparison, and are\n"
    "not recommended."
)


def _for(
    points: Sequence[Point], models: list[str], tolerance: float, calls: float | None, seconds: float | None
) -> str:
    own = [point for point in points if point.model in models or point.sampler == DATA]
    floor = floor_of(own, tolerance)
    name = models[0] if len(models) == 1 else "all models"
    if floor is None:
        return f"{name}: no recommendation: give data, or sample with first-hitting at temperature 1 for its entropy"
    if min(point.num for point in own) < LEAST:
        fewest = min(point.num for point in own)
        return f"{name}: no recommendation: {fewest} samples of a point are too few to tell entropies, take {LEAST}"
    lines = [f"{name}: entropy {floor}"]
    lines += _lines(own, floor, "calls", calls, with_model=len(models) > 1)
    lines += _lines(own, floor, "seconds", seconds, with_model=len(models) > 1)
    unknown = [point.label for point in own if candidate(point) and floor.holds(point) is None]
    if unknown:
        lines.append(f"  left open, more samples would tell whether their entropy is enough: {'; '.join(unknown)}")
    return "\n".join(lines)


def _lines(points: Sequence[Point], floor: Floor, unit: Unit, budget: float | None, with_model: bool) -> list[str]:
    if budget is not None:
        point = recommend(points, floor, unit, budget)
        start = f"  {budget:g} {unit} per sequence: "
        return [
            start
            + ("no point is shown to have enough entropy for so little" if point is None else _use(point, with_model))
        ]
    stairs = staircase(points, floor, unit)
    if not stairs:
        return [f"  no point is shown to have enough entropy, whatever the {unit}"]
    return [f"  from {cost(point, unit):.3g} {unit} per sequence: {_use(point, with_model)}" for point in stairs]


def _use(point: Point, with_model: bool) -> str:
    model = f"{point.model}, " if with_model else ""
    return (
        f"{model}{point.label} (perplexity {point.perplexity}, entropy {point.entropy}; {point.num} samples, "
        f"{point.draw} in {point.dtype}, {point.calls:.4g} calls, {point.seconds:.3g} s)"
    )
