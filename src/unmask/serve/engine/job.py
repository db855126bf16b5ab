"""A request in the engine, and what is told about it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from unmask.serve.engine.lane import Entry
from unmask.serve.engine.work import Filling, Served, Work, fillings

Key = tuple[Served, int, int]  # of a lane: its model, its length, and its bucket of widths


class Refused(Exception):
    """A request that is not taken: the queue is full, or the server is about to end."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True)
class Planned:
    """What is known of a sequence when it is admitted; order and tau are None where the network chooses."""

    index: int
    calls: int
    order: list[int] | None
    tau: list[float] | None
    queue_seconds: float
    seconds_left: float


@dataclass(frozen=True)
class Filled:
    """One network call for one sequence."""

    index: int
    call: int
    planned: int
    entry: Entry
    seconds: float  # since it got its place


@dataclass(frozen=True)
class Done:
    """A finished sequence."""

    index: int
    tokens: list[int]
    nfe: int
    ncs: int
    calls: int  # network calls of its request so far
    seconds: float


@dataclass(frozen=True)
class Failed:
    """The request has failed: the network raised, or what it said is no distribution."""

    error: Exception
    before_any_call: bool = False


Event = Filled | Done | Failed


class Job:
    """A request in the engine. ``tell`` is called in the engine's thread, for every step if ``watched``.

    Its plans are drawn here, before it is submitted, so that no network call waits for them.
    """

    def __init__(self, work: Work, tell: Callable[[Event], None], *, watched: bool = False) -> None:
        self.work, self.tell, self.watched = work, tell, watched
        self.waiting: deque[Filling] = deque(fillings(work, self, watched) if work.planned else ())
        self.unfinished = set(range(work.number))
        self.calls = 0
        self.cancelled = False

    def wants(self, index: int) -> bool:
        """Whether somebody still waits for this sequence."""
        return not self.cancelled and index in self.unfinished

    @property
    def key(self) -> Key:
        """The lane that it will be in; one that is not planned has no width."""
        if self.waiting:
            return lane_of(self.waiting[0])
        return self.work.served, len(self.work.canvas), 0

    @property
    def places(self) -> list[int]:
        """The calls of each of the places that it waits for."""
        if self.work.planned:
            return [filling.calls for filling in self.waiting]
        return [self.work.most_calls] * self.work.number

    @property
    def most_rows(self) -> int:
        """The most rows that one call answers with, for one sequence if others may be left out of the call."""
        if self.work.planned:
            return max(filling.widest for filling in self.waiting)
        return self.work.number * len(self.work.canvas)


def lane_of(filling: Filling) -> Key:
    """Sequences share calls if they have this in common."""
    return filling.owner.work.served, len(filling.canvas), filling.widest.bit_length()
