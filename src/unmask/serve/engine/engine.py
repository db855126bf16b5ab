"""Continuous batching of plans: requests join and leave between any two network calls.

One thread owns the networks. Batches are called in turn, and a pass calls every active sequence of a batch once. The
cost of a sequence is known before its first call, because its plan is drawn at admission; so the remaining time is
estimated from the remaining calls. Clients have equal shares: a free place goes to the waiting client with the fewest,
and the next call to the client that has had the least time.
"""

from __future__ import annotations

import threading
import time as clock
from collections import deque
from collections.abc import Callable, Sequence

import torch

from unmask.serve.engine.batch import Batch, Outcome
from unmask.serve.engine.change import blanks_only
from unmask.serve.engine.counts import Counts
from unmask.serve.engine.forecast import Costs, begins, forecasts
from unmask.serve.engine.job import Done, Event, Failed, Filled, Forecast, Job, Key, Lane, Refused, SequenceRun
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.shared_state import SharedState
from unmask.serve.engine.shares import Times, admitted
from unmask.serve.engine.work import Served, trial
from unmask.serve.log import log, place_of

RESTART = 10.0  # seconds after which another server may have started
PATIENCE = 10.0  # seconds for the last network call to return


class Engine:
    """Start it, submit Jobs from any thread, stop it. ``finished`` is called for every finished sequence."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits, self.counts = limits or Limits(), Counts()
        self.finished: Callable[[SequenceRun, float], None] = lambda one, seconds: None
        self.fault: BaseException | None = None  # the exception that ended the thread, if any
        self.closing = False  # nothing more is accepted
        self._changed = threading.Condition()
        self._queue: deque[Job] = deque()
        self._jobs: set[Job] = set()  # accepted and not finished
        self._batches: dict[Lane, Batch] = {}
        self._times = Times()
        self._turn = 0
        self._costs = Costs()
        # Written by the engine's thread after each call, read by others.
        self._left: list[tuple[object, int]] = []  # the request of each active sequence, and its remaining calls
        self._live: list[Key] = []  # the batches
        self.cache_bytes = 0
        self._thread = threading.Thread(target=self._guarded, name="unmask-engine", daemon=True)

    def start(self) -> Engine:
        self._thread.start()
        return self

    def warm(self, served: Served) -> None:
        """Call a network once, so that it is ready for the first request and its time is known."""
        ended = threading.Event()
        self.submit(Job(trial(served), lambda event: ended.set(), counted=False))
        ended.wait()

    def submit(self, job: Job) -> list[Forecast]:
        """Accept a request, or raise Refused at once; returns the forecasts for its sequences."""
        with self._changed:
            waiting = [(other.request, [one.calls for one in other.waiting if one.placed]) for other in self._queue]
            self.submit_all([job])
            mine = job.request, [one.calls for one in job.waiting if one.placed]
            begin = begins(self._left, self.limits.max_batch, waiting, mine, self.limits.share)
            return forecasts(job, begin, self._costs.of_round({*self._live, job.key}))

    def submit_all(self, jobs: Sequence[Job]) -> None:
        """Accept a request of several jobs, all of them or none."""
        with self._changed:
            self.check_room()
            for job in jobs:
                job.submitted = clock.perf_counter()
                self._queue.append(job)
                self._jobs.add(job)
            self._changed.notify()

    def check_room(self) -> None:
        """Refuse requests that are too late or too many. The prompts of one request may exceed the queue's limit."""
        with self._changed:
            if self.closing:
                raise self._ending()
            if len(self._queue) >= self.limits.max_queue:
                self.counts.refused += 1
                raise Refused(f"the queue is full: {len(self._queue)} requests wait", self.seconds_to_room())

    def seconds_to_room(self) -> float:
        """Estimated time until the next place, and so a place in the queue, is free."""
        full = len(self._left) >= self.limits.max_batch
        return (min(calls for _, calls in self._left) if full else 1) * self._costs.of_round(self._live)

    def cancel(self, job: Job, index: int | None = None) -> None:
        """Drop a request, or one of its sequences: its place is free within one call."""
        with self._changed:
            if index is not None:
                job.unfinished.discard(index)
            elif job.unfinished and not job.cancelled:
                self.counts.cancelled += 1
            job.cancelled = job.cancelled or index is None or not job.unfinished
            if job.cancelled:
                self._jobs.discard(job)
            self._changed.notify()

    def stop(self, grace: float | None = None) -> bool:
        """Accept nothing more, and end when everything is done or after ``grace`` seconds. True if all is done."""
        self.close()
        self._thread.join(grace)
        finished = not self._thread.is_alive()
        self.abandon()
        self._thread.join(PATIENCE)  # a call that never returns is abandoned
        return finished

    def close(self, grace: float | None = None) -> None:
        """Accept nothing more; after ``grace`` seconds abandon what is not finished."""
        with self._changed:
            begun, self.closing = self.closing, True
            self._changed.notify()
        if grace is not None and not begun:
            timer = threading.Timer(grace, self.abandon)
            timer.daemon = True
            timer.start()

    def abandon(self) -> None:
        """Report to all who still wait that there will be no answer."""
        with self._changed:
            jobs, self._jobs = list(self._jobs), set()
            for job in jobs:
                job.cancelled = True
            self._changed.notify()
        if jobs:
            log.warning("%d requests were not finished in time; their clients were told", len(jobs))
        for job in jobs:
            self._tell(job, Failed(self._ending()))

    def _ending(self) -> Refused:
        if self.fault is not None:
            return Refused(f"the engine has failed with {type(self.fault).__name__}, and the server ends", RESTART)
        return Refused("the server is shutting down", RESTART)

    @property
    def alive(self) -> bool:
        """Whether it works, or worked until it was stopped."""
        return self.fault is None

    @property
    def queued(self) -> int:
        """The number of waiting requests."""
        return len(self._queue)

    @property
    def live(self) -> int:
        """The number of sequences that have a place."""
        return len(self._left)

    def _guarded(self) -> None:
        """The loop. An exception in a network call fails its request; any other ends the engine."""
        try:
            self._loop()
        except BaseException as error:
            self.fault = error
            log.critical("the engine has failed: %s%s", type(error).__name__, place_of(error))
            with self._changed:
                self.closing = True
                self._queue.clear()
                self._batches.clear()
                self.counts.failed += len(self._jobs)
            self.abandon()
            self._publish()

    def _loop(self) -> None:
        with torch.inference_mode():
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: bool(self._queue or self._batches) or self.closing)
                    self._sweep()
                    self._admit()
                    self._publish()
                    if self.closing and not (self._queue or self._batches):
                        return
                if self._batches:
                    started = clock.perf_counter()
                    self._call(self._times.next({lane: batch.standing for lane, batch in self._batches.items()}))
                    self.counts.busy_seconds += clock.perf_counter() - started
                    self._publish()

    def _sweep(self) -> None:
        """Remove cancelled sequences."""
        for batch in self._batches.values():
            batch.drop_unwanted()
        self._forget_empty()
        self._queue = deque(job for job in self._queue if not job.cancelled)

    def _admit(self) -> None:
        """Give places to waiting requests."""
        seated = [one for batch in self._batches.values() for one in batch.sequences]
        for job, places in admitted(self._queue, seated, self.limits):
            count = len(job.waiting) if job.joint else places
            newcomers = [one for one in (job.waiting.popleft() for _ in range(count)) if job.joint or one.wanted]
            try:
                if newcomers:
                    self._seat(job, newcomers)
            except Exception as error:  # its state cannot be made
                self._fail(job, error)
        self._queue = deque(job for job in self._queue if job.waiting and not job.cancelled)

    def _seat(self, job: Job, newcomers: list[SequenceRun]) -> None:
        """Put sequences into their batch; those with nothing to fill are done."""
        index = torch.tensor([one.row for one in newcomers])
        shared = SharedState.of(job.work.sampler, job.state.take(index), newcomers)
        for one in newcomers:
            one.started = clock.perf_counter()
        going = [i for i, more in enumerate(shared.going) if more]
        for one, tokens, more in zip(newcomers, shared.state.x.tolist(), shared.going, strict=True):
            if not more:
                self._finish(one, tokens)
        if going:
            if job.lane not in self._batches:
                self._batches[job.lane] = Batch(job.work.served, self.limits)
            self._batches[job.lane].arriving.append(shared.part(going))

    def _call(self, lane: Lane) -> None:
        """One network call of a batch, or a part of a long step, and its events."""
        batch, started = self._batches[lane], clock.perf_counter()
        everybody = batch.sequences
        self._turn += 1
        batch.turn = self._turn
        try:
            outcomes = batch.call()
        except Exception as error:  # not enough memory even to prepare the call
            outcomes = [Outcome(one, 0, error=error) for one in everybody]
            del self._batches[lane]
        seconds = clock.perf_counter() - started
        called = [outcome.sequence for outcome in outcomes] or everybody
        self._times.add([one.job.client for one in called], seconds)
        batch.seconds += seconds
        if outcomes:
            self._costs.add(lane[0], batch.seconds)
            batch.seconds = 0.0
        counted = [outcome for outcome in outcomes if outcome.sequence.job.counted]
        self.counts.calls += len({outcome.call for outcome in counted})
        self.counts.rows += len(counted)
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
        now = clock.perf_counter()
        one.first = one.first or now
        settles = one.job.work.particles == 1  # a particle may be copied from another until the end
        if outcome.change is not None and one.job.watched and one.wanted and settles:
            planned = max(one.calls, one.made)
            self._tell(one.job, Filled(**one.progress(now), planned=planned, change=outcome.change))
        if outcome.tokens is not None:
            self._finish(one, outcome.tokens)

    def _finish(self, one: SequenceRun, tokens: list[int]) -> None:
        now, gathered = clock.perf_counter(), one.job.gathered(one, tokens)
        if one.job.counted:
            self.counts.tokens += one.ncs
        if gathered is None:
            return
        chosen, result = gathered
        if one.job.counted:
            self.counts.sequences += 1
            self.finished(one, now - one.started)
        with self._changed:  # a request is either cancelled or done, never counted as both
            wanted = one.wanted
            one.job.unfinished.discard(one.index)
            if not one.job.unfinished:
                self._jobs.discard(one.job)
        if wanted:
            self._tell_history(chosen, now)
            self._tell(one.job, Done(**one.progress(now) | result))

    def _tell_history(self, one: SequenceRun, now: float) -> None:
        """The calls of the particle that was drawn: before the end, a particle may be copied from another."""
        work, planned = one.job.work, len(one.history)
        for call, change in enumerate(one.history, 1):
            shown = blanks_only(change, work.shown, work.model.denoiser.mask_id)
            self._tell(one.job, Filled(**one.progress(now) | {"nfe": call}, planned=planned, change=shown))

    def _fail(self, job: Job, error: Exception) -> None:
        with self._changed:
            if job.cancelled:
                return
            job.cancelled = True
            self._jobs.discard(job)
            self.counts.failed += 1
        log.error("%s failed: %s%s", job.work.model.name, type(error).__name__, place_of(error))
        self._tell(job, Failed(error))

    def _tell(self, job: Job, event: Event) -> None:
        try:
            job.tell(event)
        except Exception:  # the listener is gone
            job.cancelled = True
            self._jobs.discard(job)

    def _forget_empty(self) -> None:
        self._batches = {lane: batch for lane, batch in self._batches.items() if batch.seats or batch.arriving}

    def _publish(self) -> None:
        seats = [one for batch in self._batches.values() for one in batch.sequences]
        self._left = [(one.job.request, max(one.calls - one.made, 1)) for one in seats if one.placed]
        self._live = [key for key, _ in self._batches]
        self.cache_bytes = sum(batch.bytes for batch in self._batches.values())
