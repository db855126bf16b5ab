"""Continuous batching of plans: requests join and leave between any two network calls.

One thread owns the networks. In each round every live sequence gets one network call, those of one batch in one pass.
What a sequence will cost is known before its first call, because its plan is drawn when it is admitted; so the queue is
served in order, and the time that is left is told from the calls that are left.
"""

from __future__ import annotations

import logging
import math
import threading
import time as clock
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from unmask.serve.engine.batch import Batch, Outcome, SharedState
from unmask.serve.engine.forecast import Costs, begins, forecasts
from unmask.serve.engine.job import Done, Event, Failed, Filled, Forecast, Job, Key, Refused, SequenceRun
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Served, trial

log = logging.getLogger("unmask.serve")


@dataclass
class Counts:
    """What the engine has done."""

    calls: int = 0
    rows: int = 0  # sequences in those calls, added up
    tokens: int = 0
    sequences: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    busy_seconds: float = 0.0


class Engine:
    """Start it, submit Jobs from any thread, stop it."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits, self.counts = limits or Limits(), Counts()
        self._changed = threading.Condition()
        self._queue: deque[Job] = deque()
        self._closing = self._abandoned = False
        self._batches: dict[Key, Batch] = {}
        self._costs = Costs()
        # Published by the engine's thread after each round, read by others.
        self._left: list[int] = []  # calls that are left to each live sequence
        self._live: list[Key] = []  # the batches
        self.cache_bytes = 0
        self._thread = threading.Thread(target=self._loop, name="unmask-engine", daemon=True)

    def start(self) -> Engine:
        self._thread.start()
        return self

    def warm(self, served: Served) -> None:
        """Call a network once, so that the first request finds it ready and is told how long it takes."""
        done = threading.Event()
        self.submit(Job(trial(served), lambda event: done.set()))
        done.wait()
        self.counts = Counts()  # nobody asked for that

    def submit(self, job: Job) -> list[Forecast]:
        """Take a request, or raise Refused at once; what is known of its sequences."""
        return self.submit_all([job])[0]

    def submit_all(self, jobs: Sequence[Job]) -> list[list[Forecast]]:
        """The same for a request of several jobs, all of which are taken or none."""
        with self._changed:
            self.check_room(len(jobs))
            found = []
            for job in jobs:
                waiting = [one.calls for other in self._queue for one in other.waiting]
                begin = begins(self._left, self.limits.max_batch, waiting, [one.calls for one in job.waiting])
                seconds = self._costs.of_round({*self._live, job.key})
                found.append(forecasts(job, begin, seconds))
                self._queue.append(job)
            self._changed.notify()
        return found

    def check_room(self, jobs: int = 1) -> None:
        """Refuse what comes too late, or is too much; a request that the queue cannot hold may have it to itself."""
        with self._changed:
            if self._closing:
                raise Refused("the server is shutting down", math.ceil(self.limits.grace_seconds) or 1)
            if self._queue and len(self._queue) + jobs > self.limits.max_queue:
                self.counts.refused += 1
                full = len(self._left) >= self.limits.max_batch
                seconds = (min(self._left) if full else 1) * self._costs.of_round(self._live)  # until one gets a place
                raise Refused(f"the queue is full: {len(self._queue)} requests wait", max(1, math.ceil(seconds)))

    def cancel(self, job: Job, index: int | None = None) -> None:
        """Forget a request, or one of its sequences: its place is free within one step."""
        with self._changed:
            if index is not None:
                job.unfinished.discard(index)
            elif job.unfinished and not job.cancelled:
                self.counts.cancelled += 1
            job.cancelled = job.cancelled or index is None or not job.unfinished
            self._changed.notify()

    def stop(self, grace: float | None = None) -> bool:
        """Take nothing more and end when all is done, or after ``grace`` seconds. True if all is done."""
        self.close()
        self._thread.join(grace)
        finished = not self._thread.is_alive()
        self._abandoned = True
        self._thread.join()
        return finished

    def close(self) -> None:
        """Take nothing more."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    @property
    def closing(self) -> bool:
        return self._closing

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def live(self) -> int:
        """Sequences that have a place."""
        return len(self._left)

    def _loop(self) -> None:
        with torch.inference_mode():
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: bool(self._queue or self._batches) or self._closing)
                    self._sweep()
                    self._admit()
                    self._publish()
                    if self._closing and not (self._queue or self._batches):
                        return
                self._round()
                self._publish()

    def _round(self) -> None:
        """One network call for everybody."""
        started = clock.perf_counter()
        for key in list(self._batches):
            self._call(key)
        self.counts.busy_seconds += clock.perf_counter() - started

    def _sweep(self) -> None:
        """Take out whatever was cancelled."""
        if self._abandoned:
            for job in (*(one.job for batch in self._batches.values() for one in batch.seats), *self._queue):
                job.cancelled = True
        for batch in self._batches.values():
            batch.drop_unwanted()
        self._forget_empty()
        self._queue = deque(job for job in self._queue if not job.cancelled)

    def _admit(self) -> None:
        """Give the free places to those who wait, in their order."""
        free = self.limits.max_batch - sum(len(batch.seats) for batch in self._batches.values())
        while self._queue and free > 0:
            job = self._queue[0]
            if job.joint and len(job.waiting) > free and self._batches:
                return  # it is the next, as soon as there are enough places
            count = len(job.waiting) if job.joint else min(len(job.waiting), free)
            newcomers = [one for one in (job.waiting.popleft() for _ in range(count)) if job.joint or one.wanted]
            try:
                free -= self._seat(job, newcomers) if newcomers else 0
            except Exception as error:  # no memory for its cache
                self._fail(job, error)
            if not job.waiting or job.cancelled:
                self._queue.popleft()

    def _seat(self, job: Job, newcomers: list[SequenceRun]) -> int:
        """Put sequences into their batch; those with nothing to fill are done. The places they take."""
        index = torch.tensor([one.index for one in newcomers])
        shared = SharedState.of(job.work.sampler, job.state.take(index), newcomers)
        for one in newcomers:
            one.started = clock.perf_counter()
        going = [i for i, more in enumerate(shared.going) if more]
        for one, tokens, more in zip(newcomers, shared.state.x.tolist(), shared.going, strict=True):
            if not more:
                self._finish(one, tokens)
        if going:
            key = job.key
            batch = self._batches.get(key) or Batch(job.work.served, len(job.work.canvas), self.limits.max_logits)
            batch.join(shared.part(going))
            self._batches[key] = batch
        return len(going)

    def _call(self, key: Key) -> None:
        """One network call for everybody in the batch, and the news of it."""
        batch, started = self._batches[key], clock.perf_counter()
        try:
            outcomes = batch.call()
        except Exception as error:  # there is no memory even to ask
            outcomes = [Outcome(one, 0, error=error) for one in batch.seats]
            del self._batches[key]
        self._costs.add(key, clock.perf_counter() - started)
        self.counts.calls += len({outcome.call for outcome in outcomes})
        self.counts.rows += len(outcomes)
        for job, _ in {(outcome.sequence.job, outcome.call): None for outcome in outcomes}:
            job.calls += 1
        for outcome in outcomes:
            self._tell_outcome(outcome)
        self._forget_empty()

    def _tell_outcome(self, outcome: Outcome) -> None:
        one = outcome.sequence
        if outcome.error is not None:
            self._fail(one.job, outcome.error)
            return
        if outcome.change is not None and one.job.watched and one.wanted:
            seconds = clock.perf_counter() - one.started
            self._tell(one.job, Filled(one.index, one.made, max(one.calls, one.made), outcome.change, seconds))
        if outcome.tokens is not None:
            self._finish(one, outcome.tokens)

    def _finish(self, one: SequenceRun, tokens: list[int]) -> None:
        self.counts.sequences += 1
        self.counts.tokens += one.ncs
        with self._changed:  # a request is cancelled or done, never counted as both
            wanted = one.wanted
            one.job.unfinished.discard(one.index)
        if wanted:
            seconds = clock.perf_counter() - one.started
            self._tell(one.job, Done(one.index, tokens, one.made, one.ncs, one.job.calls, seconds))

    def _fail(self, job: Job, error: Exception) -> None:
        if job.cancelled:
            return
        # The message of an error may quote a prompt; its type and place do not.
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f" at {place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place else ""
        log.error("%s failed: %s%s", job.work.model.name, type(error).__name__, where)
        job.cancelled = True
        self.counts.failed += 1
        self._tell(job, Failed(error))

    def _tell(self, job: Job, event: Event) -> None:
        try:
            job.tell(event)
        except Exception:  # whoever listened has gone
            job.cancelled = True

    def _forget_empty(self) -> None:
        self._batches = {key: batch for key, batch in self._batches.items() if batch.seats}

    def _publish(self) -> None:
        seats = [one for batch in self._batches.values() for one in batch.seats]
        self._left = [max(one.calls - one.made, 1) for one in seats]
        self._live = list(self._batches)
        self.cache_bytes = sum(batch.bytes for batch in self._batches.values())
