"""The settings and the result of an item of the reproduction."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from torch import Tensor

from unmask.sampling import Sample

Size = Literal["full", "fast", "tiny"]
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """The size of the runs, and what they run on."""

    size: Size = "full"  # "fast": minutes for all items together; "tiny": for the tests
    seed: int = 0
    checkpoint: str | None = None  # the user's model: a name, a folder or a hub id
    judge: str = "smollm2"  # judges the texts of models that are not oracles
    workers: int = os.cpu_count() or 1  # sequences sampled in parallel, where it is safe
    cells: str | None = None  # a folder that stores measured sequences, so that a run can be interrupted
    box: tuple[str, ...] = ("kjv",)  # the bundled models to use as subjects
    subject: str | None = None  # measure this one alone: "oracle" or the name of a model

    def __post_init__(self) -> None:
        if self.size not in get_args(Size):
            raise ValueError(f"size must be one of {', '.join(get_args(Size))}, got {self.size!r}")
        if self.seed < 0 or self.workers < 1:
            raise ValueError(f"seed must be at least 0 and workers at least 1, got {self.seed} and {self.workers}")

    def pick(self, *, full: T, fast: T, tiny: T) -> T:
        """The value for this size."""
        return {"full": full, "fast": fast, "tiny": tiny}[self.size]


@dataclass(frozen=True)
class Table:
    """Numbers with names, from which claims are judged and figures are drawn."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), "every row has every column"

    def column(self, name: str) -> list[Any]:
        at = self.columns.index(name)
        return [row[at] for row in self.rows]

    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def where(self, **values: Any) -> Table:
        """The rows whose columns have these values."""
        at = {self.columns.index(name): value for name, value in values.items()}
        return Table(self.columns, tuple(row for row in self.rows if all(row[i] == v for i, v in at.items())))


Tables = Mapping[str, Table]
Drawing = Callable[[Any], None]
"""Draws on an empty matplotlib Figure."""


@dataclass(frozen=True)
class ItemResult:
    """The measurements of an item, complete before a file is written. Its claims follow from the tables."""

    tables: dict[str, Table]
    pictures: Mapping[str, Drawing] = field(default_factory=dict)  # "" is the main one; others are NAME-suffix.png
    notes: tuple[str, ...] = ()
    data: dict[str, Table] = field(default_factory=dict)  # tables too long to read: only in the JSON
    texts: Mapping[str, str] = field(default_factory=dict)  # generated texts, by heading


@dataclass(frozen=True, eq=False)
class Subject:
    """A masked model with everything that items need."""

    name: str
    about: str  # one sentence: what it is and what judges it
    model: Any = field(repr=False)
    length: int  # of a sequence for many coupled steps
    long: int  # of a sequence for samplers whose cost does not grow with N
    judge: Any = field(repr=False)  # an unmask.evaluate Judge: .nats(Samples) -> nats of each token of each sequence
    decode: Callable[[list[int]], str] = field(repr=False)
    left_to_right: Callable[..., Sample] | None = field(repr=False)  # (num, length, seed, draw, temperature) -> Sample
    exact: Callable[[int, int, int], Tensor] | None = field(default=None, repr=False)  # the truth itself
    most: int | None = None  # sequences per cell at most, where judging is expensive
    sedd: Any = field(default=None, repr=False)  # a network trained with the score entropy; by default `model` itself
    at_once: int = 8  # sequences of a batch

    @property
    def suffix(self) -> str:
        """Of its picture's name: the oracle's is the main one."""
        return "" if self.exact else self.name
