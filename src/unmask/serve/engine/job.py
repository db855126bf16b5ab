"""A request in the engine, and the events about it."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.nn import functional

from unmask.noise import Streams
from unmask.sampler import InParts
from unmask.samplers.ahead import Ahead
from unmask.samplers.guided import Guided, weighted
from unmask.samplers.planned import PlanState
from unmask.samplers.scored import Scored
from unmask.serve.engine.change import Change
from unmask.serve.engine.work import Served, Work
from unmask.text.constraints import ended

Key = tuple[Served, int, int]
"""What sequences of one batch have in common: the model, a class of lengths, and within a factor of two the rows asked.

The third is -1 for those that ask for chains of rows, which is another kind of call.
"""


Lane = tuple[Key, "Job | None"]
"""What sequences of one batch have in common, and the request if it has a batch of its own."""


class Refused(Exception):
    """A request that is not accepted, or not finished: the queue is full, or the server is stopping."""

    def __init__(self, message: str, seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = max(1, math.ceil(seconds))  # seconds


@dataclass(frozen=True)
class Forecast:
    """What is known of a sequence at admission; order and tau are None if calls is only a bound."""

    index: int
    calls: int
    order: list[int] | None
    tau: list[float] | None
    queue_seconds: float
    seconds_left: float


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a sequence."""

    index: int
    nfe: int
    ncs: int
    calls: int  # network calls of its request so far
    seconds: float  # since it got its place


@dataclass(frozen=True, kw_only=True)
class Filled(Progress):
    """One network call for one sequence."""

    planned: int
    change: Change


@dataclass(frozen=True, kw_only=True)
class Done(Progress):
    """A finished sequence."""

    tokens: list[int]
    evidence: dict[str, float] | None = None  # of a guided one: samplers.guided.Population.reports


@dataclass(frozen=True)
class Failed:
    """The request failed: the network raised, its output is not a distribution, or the engine stopped (Refused)."""

    error: Exception


Event = Filled | Done | Failed


class Job:
    """A request in the engine. ``tell`` is called in the engine's thread, for every step if ``watched``.

    Its sampler begins here, before submission, so that no network call waits for plans to be drawn. Raises ValueError
    if the sampler cannot do what is asked. client: its owner; clients have equal shares. request: the request it is
    part of, if that has several jobs. top: how many of the most likely ids to report per position. counted: whether it
    is included in the engine's counters.
    """

    def __init__(
        self,
        work: Work,
        tell: Callable[[Event], None],
        *,
        watched: bool = False,
        client: str = "",
        request: object = None,
        top: int = 0,
        counted: bool = True,
    ) -> None:
        self.work, self.tell, self.watched = work, tell, watched
        self.client, self.top, self.counted = client, top, counted
        self.request = request or self
        self.submitted = 0.0  # time of submission
        self.state = work.begin()
        self.waiting = deque(SequenceRun(self, i, calls) for i, calls in enumerate(self.state.calls.tolist()))
        self.unfinished = set(range(work.number))
        self._gathered: dict[int, list[tuple[SequenceRun, list[int]]]] = defaultdict(list)
        self.calls = 0
        self.cancelled = False

    @cached_property
    def joint(self) -> bool:
        """Whether its sequences share a state, and so begin together; plans join those of other requests."""
        return not isinstance(self.state, PlanState)

    def wants(self, index: int) -> bool:
        """Whether this sequence is still wanted."""
        return not self.cancelled and index in self.unfinished

    @property
    def places(self) -> int:
        """How many places its waiting sequences take: the particles that a text weighs share one."""
        return sum(one.placed for one in self.waiting)

    def gathered(self, one: SequenceRun, tokens: list[int]) -> tuple[SequenceRun, dict[str, Any]] | None:
        """One of a sequence's particles, drawn by weight when all have finished, and the fields of Done."""
        work, here = self.work, self._gathered[one.index]
        here.append((one, tokens))
        if len(here) < work.particles:
            return None
        here.sort(key=lambda pair: pair[0].row)
        rows = torch.tensor([each for _, each in here])
        if work.cut is not None:
            rows = ended(rows, work.cut, work.model.tokenizer.eos_id)
        if not isinstance(work.sampler, Guided):
            return one, {"tokens": rows[0].tolist()}
        log_weights = torch.tensor([[run.log_weight for run, _ in here]], dtype=torch.float64)
        least = torch.tensor([min(run.effective for run, _ in here)], dtype=torch.float64)
        streams = Streams.of(work.seed, work.number).take([one.index])
        population = weighted(rows, log_weights, least, streams)
        ncs = sum(run.ncs for run, _ in here)
        chosen = int(population.chosen)
        evidence = population.reports()[0] if work.weighs else None
        return here[chosen][0], {"tokens": rows[chosen].tolist(), "ncs": ncs, "evidence": evidence}

    @cached_property
    def widest(self) -> int:
        """The largest number of rows that a sequence requests; without a plan or a window, all of them."""
        sampler, length = self.work.sampler, len(self.work.canvas)
        if isinstance(sampler, Guided) and not sampler.guide.everywhere:
            return int(functional.pad(self.state.plan.starts.diff(), (0, 1)).amax())
        if isinstance(sampler, Ahead | Scored):
            return min(sampler.widest if isinstance(sampler, Ahead) else sampler.window, length)
        if self.joint:
            return length
        plan, predict = self.state.plan, sampler.predict  # type: ignore[attr-defined]
        sizes = functional.pad(plan.starts.diff(), (0, 1))
        neighbours = plan.tentative is not None or predict.lookahead
        return int((sizes[:, :-1] + sizes[:, 1:] * neighbours).amax()) if sizes.shape[1] > 1 else 0

    @property
    def entries(self) -> int:
        """The largest number of entries that a call of a cached network computes for it, beside those of new tokens."""
        sampler = self.work.sampler
        return sampler.entries if isinstance(sampler, Ahead) else self.widest

    @property
    def key(self) -> Key:
        bucket = -1 if isinstance(self.work.sampler, Ahead | Scored) else self.widest.bit_length()
        return self.work.served, self.work.served.class_of(len(self.work.canvas)), bucket

    @property
    def lane(self) -> Lane:
        """Its batch: shared, or its own if its steps are made in parts."""
        return self.key, self if isinstance(self.work.sampler, InParts) else None

    @property
    def cost(self) -> int:
        """Positions that its network calls compute, or would without a cache; in parts, those of every step."""
        calls = int(self.state.calls.sum())
        if isinstance(self.work.sampler, InParts):
            calls = max(calls, self.work.number * (self.work.steps or 1))
        return calls * len(self.work.canvas)


@dataclass(eq=False)
class SequenceRun:
    """A sequence of a request and its progress."""

    job: Job
    row: int  # of the job's state: sequence * particles + particle
    calls: int  # the network calls that it takes; without a plan, a bound
    made: int = 0
    ncs: int = 0
    started: float = 0.0  # when it got its place
    first: float = 0.0  # when its first call ended
    log_weight: float = 0.0  # of a particle
    effective: float = math.inf  # the least effective number of its population so far
    history: tuple[
        Change, ...
    ] = ()  # of a particle that its text weighs: its calls, and those of what it was copied from

    @property
    def index(self) -> int:
        """Its number in the request."""
        return self.row // self.job.work.particles

    def progress(self, now: float) -> dict[str, Any]:
        """The fields of Progress."""
        seconds = now - self.started
        return {"index": self.index, "nfe": self.made, "ncs": self.ncs, "calls": self.job.calls, "seconds": seconds}

    @property
    def length(self) -> int:
        return len(self.job.work.canvas)

    @property
    def placed(self) -> bool:
        """Whether it has a place of its own."""
        return not self.job.work.weighed or self.row % self.job.work.particles == 0

    @property
    def wanted(self) -> bool:
        return self.job.wants(self.index)

    @property
    def unread(self) -> int:
        """The prompt tokens that the cache has not read yet."""
        return 0 if self.made else len(self.job.work.canvas) - self.job.work.holes
