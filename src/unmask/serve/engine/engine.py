"""Continuous batching of plans: requests join and leave between any two network calls.

One thread owns the networks. In each round every live sequence gets one network call, those of one lane in one pass.
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

import torch

from unmask.protocol import bytes_of
from unmask.sampling import Step
from unmask.serve.engine.aside import Aside
from unmask.serve.engine.forecast import Costs, begins, forecast
from unmask.serve.engine.job import Done, Event, Failed, Filled, Job, Key, Planned, Refused, lane_of
from unmask.serve.engine.lane import Lane, Outcome, entries
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Filling, Served, trial
from unmask.serve.http.metrics import Counts

log = logging.getLogger("unmask.serve")


class Engine:
    """Start it, submit Jobs from any thread, stop it."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits, self.counts = limits or Limits(), Counts()
        self._changed = threading.Condition()
        self._queue: deque[Job] = deque()
        self._closing = self._abandoned = False
        self._lanes: dict[Key, Lane] = {}
        self._asides: dict[Job, tuple[Aside, float]] = {}
        self._costs = Costs()
        # Published by the engine's thread after each round, read by others.
        self._left: list[int] = []  # calls that are left to each live sequence
        self._live: list[Key] = []  # the lanes and asides
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

    def submit(self, job: Job) -> list[Planned]:
        """Take a request, or raise Refused at once; what is known of its sequences."""
        return self.submit_all([job])[0]

    def submit_all(self, jobs: Sequence[Job]) -> list[list[Planned]]:
        """The same for a request of several jobs, all of which are taken or none."""
        with self._changed:
            self.check_room(len(jobs))
            planned = []
            for job in jobs:
                waiting = [calls for other in self._queue for calls in other.places]
                begin = begins(self._left, self.limits.max_batch, waiting, job.places)
                joins = job.work.planned and job.key in self._live
                seconds = self._costs.of_round(self._live if joins else [*self._live, job.key])
                planned.append(forecast(job, begin, seconds))
                self._queue.append(job)
            self._changed.notify()
        return planned

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
                    self._changed.wait_for(lambda: bool(self._queue or self._lanes or self._asides) or self._closing)
                    self._sweep()
                    self._admit()
                    self._publish()
                    if self._closing and not (self._queue or self._lanes or self._asides):
                        return
                self._round()
                self._publish()

    def _round(self) -> None:
        """One network call for everybody."""
        started = clock.perf_counter()
        for key in list(self._lanes):
            self._call(key)
        for job in list(self._asides):
            self._turn(job)
        self.counts.busy_seconds += clock.perf_counter() - started

    def _sweep(self) -> None:
        """Take out whatever was cancelled."""
        if self._abandoned:
            live = {filling.owner for lane in self._lanes.values() for filling in lane.rows}
            for job in (*live, *self._asides, *self._queue):
                job.cancelled = True
        for key, lane in list(self._lanes.items()):
            for filling in list(lane.rows):
                if not filling.owner.wants(filling.index):
                    lane.leave(filling)
            if not lane.rows:
                del self._lanes[key]
        for job in [job for job in self._asides if job.cancelled]:
            self._asides.pop(job)[0].stop()
        self._queue = deque(job for job in self._queue if not job.cancelled)

    def _admit(self) -> None:
        """Give the free places to those who wait, in their order."""
        free = self.limits.max_batch - self._taken()
        while self._queue and free > 0:
            job = self._queue[0]
            if not job.work.planned and job.work.number > free and (self._lanes or self._asides):
                return  # it is the next, as soon as there are enough places
            try:
                if not job.work.planned:
                    self._asides[job] = Aside(job.work), clock.perf_counter()
                    free -= job.work.number
                while job.waiting and free > 0:
                    free -= self._seat(job.waiting.popleft())
            except Exception as error:  # no memory for its cache, no thread
                self._fail(job, error)
            if not job.waiting or job.cancelled:
                self._queue.popleft()

    def _seat(self, filling: Filling) -> int:
        """Put a sequence into its lane; one with nothing to fill is done. The places it takes."""
        job: Job = filling.owner
        filling.started = clock.perf_counter()
        if not job.wants(filling.index):
            return 0
        if filling.calls == 0:
            self._finish(filling, filling.canvas.tolist())
            return 0
        key = lane_of(filling)
        lane = self._lanes.get(key) or Lane(job.work.served, len(filling.canvas), self.limits.max_logits)
        lane.join(filling)
        self._lanes[key] = lane
        return 1

    def _call(self, key: Key) -> None:
        """One network call for everybody in the lane, and the news of it."""
        lane, started = self._lanes[key], clock.perf_counter()
        try:
            outcomes = lane.call()
        except Exception as error:
            outcomes = [Outcome(filling, 0, error=error) for filling in lane.rows]
        self._costs.add(key, clock.perf_counter() - started)
        self.counts.calls += len({outcome.call for outcome in outcomes})
        self.counts.rows += len(outcomes)
        for job, _ in {(outcome.filling.owner, outcome.call): None for outcome in outcomes}:
            job.calls += 1
        for outcome in outcomes:
            self._news(lane, outcome)
        if not lane.rows:
            del self._lanes[key]

    def _news(self, lane: Lane, outcome: Outcome) -> None:
        filling = outcome.filling
        job: Job = filling.owner
        if outcome.error is not None:
            lane.leave(filling)
            self._fail(job, outcome.error)
            return
        if outcome.entry is not None and filling.watched and job.wants(filling.index):
            seconds = clock.perf_counter() - filling.started
            self._tell(job, Filled(filling.index, filling.step, filling.calls, outcome.entry, seconds))
        if filling.step == filling.calls:
            self._finish(filling, lane.leave(filling))

    def _finish(self, filling: Filling, tokens: list[int]) -> None:
        job: Job = filling.owner
        seconds = clock.perf_counter() - filling.started
        self._done(job, Done(filling.index, tokens, filling.step, filling.ncs, job.calls, seconds))

    def _turn(self, job: Job) -> None:
        """One network call of a sampler with its own loop."""
        aside, began = self._asides[job]
        started = clock.perf_counter()
        steps = aside.turn()
        self._costs.add(job.key, clock.perf_counter() - started)
        for step in steps:
            self._tell_step(job, step, began)
        if not aside.finished:
            return
        del self._asides[job]
        self.counts.calls += aside.calls
        self.counts.rows += aside.calls * job.work.number
        if aside.error is not None:
            self._fail(job, aside.error, before_any_call=aside.calls == 0)
        elif aside.made is not None:
            made, seconds = aside.made, clock.perf_counter() - began
            rows = zip(made.tokens.tolist(), made.nfe.tolist(), made.ncs.tolist(), strict=True)
            for i, (tokens, nfe, ncs) in enumerate(rows):
                self._done(job, Done(i, tokens, nfe, ncs, made.calls, seconds))

    def _tell_step(self, job: Job, step: Step, began: float) -> None:
        seconds = clock.perf_counter() - began
        for index, entry in zip(step.sequences.tolist(), entries(step), strict=True) if job.watched else ():
            if job.wants(index):
                self._tell(job, Filled(index, step.calls, max(step.planned, step.calls), entry, seconds))

    def _done(self, job: Job, done: Done) -> None:
        self.counts.sequences += 1
        self.counts.tokens += done.ncs
        if job.wants(done.index):
            job.unfinished.discard(done.index)
            self._tell(job, done)

    def _fail(self, job: Job, error: Exception, *, before_any_call: bool = False) -> None:
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
        self._tell(job, Failed(error, before_any_call))

    def _tell(self, job: Job, event: Event) -> None:
        try:
            job.tell(event)
        except Exception:  # whoever listened has gone
            job.cancelled = True

    def _taken(self) -> int:
        return sum(len(lane.rows) for lane in self._lanes.values()) + sum(job.work.number for job in self._asides)

    def _publish(self) -> None:
        rows = [filling for lane in self._lanes.values() for filling in lane.rows]
        asides = [max(job.work.most_calls - aside.calls, 1) for job, (aside, _) in self._asides.items()
                  for _ in range(job.work.number)]  # fmt: skip
        self._left = [filling.calls - filling.step for filling in rows] + asides
        self._live = [*self._lanes, *(job.key for job in self._asides)]
        self.cache_bytes = sum(bytes_of(lane.seats) for lane in self._lanes.values())
