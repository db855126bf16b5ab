"""A point of the frontier: its setting, its result, and the file that stores it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from unmask.evaluate import processes
from unmask.evaluate.judge.interval import Interval
from unmask.files import write_whole

LEFT_TO_RIGHT, DATA = "left-to-right", "data"
AHEAD = "first-hitting-ahead"
EXACT = ("first-hitting", AHEAD, LEFT_TO_RIGHT)  # one token after another; they take no steps


@dataclass(frozen=True)
class Point:
    """The result for one model and one Setting. The first fields are the setting, the others the result."""

    model: str
    kind: str
    fingerprint: str  # of the model's weights
    sampler: str  # or "data": the reference, real sequences
    steps: int | None
    temperature: float
    draw: str
    dtype: str
    num: int  # sequences
    length: int  # tokens of each
    seed: int
    batch: int  # sequences per network call
    judge: str
    conventions: str
    own_tokens: bool  # entropy of the samples' tokens, or else of the judge's
    level: float  # of the intervals
    perplexity: Interval  # of the corpus
    mean_perplexity: Interval  # mean of the sequences' perplexities
    entropy: Interval
    calls: float  # network calls per sequence
    seconds: float  # per sequence
    cpu_seconds: float  # per sequence

    @property
    def key(self) -> str:
        """The setting: two Points with the same key differ only in the machine's speed."""
        names = [field.name for field in fields(self)]
        return json.dumps([getattr(self, name) for name in names[: names.index("perplexity")]])

    @property
    def published(self) -> bool:
        return self.sampler.startswith("published-")

    @property
    def exact(self) -> bool:
        """Whether the samples have the model's distribution."""
        return self.sampler in EXACT and self.temperature == 1 and self.dtype == "float64"

    @property
    def label(self) -> str:
        steps = "" if self.steps is None else f", {self.steps} steps"
        return self.sampler if self.sampler == DATA else f"{self.sampler}{steps}, temperature {self.temperature:g}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Point:
        names = ("perplexity", "mean_perplexity", "entropy")
        return cls(**values | {name: Interval(**values[name]) for name in names})


def read(path: Path) -> list[Point]:
    """The Points of a file. A half-written last line, left by a killed process, is ignored."""
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    points = []
    for number, line in enumerate(lines, 1):
        try:
            points.append(Point.from_dict(json.loads(line)))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}: it is not a point of a frontier: {error}") from None
    return points


def append(path: Path, point: Point) -> None:
    """Append a line and flush it to disk, in place of a half-written one."""
    content = path.read_bytes() if path.exists() else b""
    if not content.endswith(b"\n") and content:
        write_whole(path, content[: content.rfind(b"\n") + 1])
    with path.open("ab") as file:
        file.write(json.dumps(point.to_dict()).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


class Kept:
    """Measured Points, and the file that stores them, one JSON line each; no file without a path.

    With several processes the main one reads and writes, and all have the same Points.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        stored: list[Point] | ValueError | OSError = []
        if path is not None and processes.main():
            try:
                stored = read(path)
            except (ValueError, OSError) as error:
                stored = error
        stored = processes.broadcast(stored)
        if isinstance(stored, Exception):
            raise stored
        self.points = {point.key: point for point in stored}

    def once(self, asked: Point, measure: Callable[[], Point]) -> Point:
        """The Point with this key: measured and stored if it is missing."""
        if asked.key not in self.points:
            point = measure()
            assert point.key == asked.key, f"{point.key} was measured for {asked.key}"
            if self.path is not None and processes.main():
                append(self.path, point)
            self.points[point.key] = point
        return self.points[asked.key]
