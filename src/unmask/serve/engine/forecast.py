"""How long a request waits and takes: exact in rounds, because plans are known, and estimated in seconds."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from itertools import count

from unmask.serve.engine.job import Forecast, Job, Key

WEIGHT_OF_THE_LAST = 0.3  # in the moving average of a call's time


class Costs:
    """The time of a network call, by batch."""

    def __init__(self) -> None:
        self._seconds: dict[Key, float] = {}

    def add(self, key: Key, seconds: float) -> None:
        before = self._seconds.get(key, seconds)
        self._seconds[key] = before + WEIGHT_OF_THE_LAST * (seconds - before)

    def of(self, key: Key) -> float:
        """The recent time of a call; for a new batch, that of the model's slowest batch."""
        if key in self._seconds:
            return self._seconds[key]
        return max((seconds for (served, *_), seconds in list(self._seconds.items()) if served is key[0]), default=0.0)

    def of_round(self, batches: Iterable[Key]) -> float:
        """The time of a round, in which each of these batches is called once."""
        return sum(map(self.of, batches))


def begins(
    live: Iterable[tuple[Hashable, int]],
    places: int,
    waiting: Iterable[tuple[Hashable, Sequence[int]]],
    mine: tuple[Hashable, Sequence[int]],
    share: int | None = None,
) -> list[int]:
    """The round in which each of these sequences gets a place, if places are given in order of arrival.

    live: the requests with places, and the remaining calls of each. waiting, mine: a request, and the calls of its
    sequences. share: how many places a request may have.
    """
    number = count()  # a tie-breaker, so that requests need no order
    ends = [(calls, next(number), request) for request, calls in live]
    heapq.heapify(ends)
    held = Counter(request for *_, request in ends)
    queue = [(request, deque(calls)) for request, calls in (*waiting, mine)]
    starts: list[int] = []
    now = 0
    while queue[-1][1]:
        for request, calls in queue:
            while calls and len(ends) < places and held[request] < (share or places):
                held[request] += 1
                if calls is queue[-1][1]:
                    starts.append(now)
                heapq.heappush(ends, (now + calls.popleft(), next(number), request))
            if len(ends) >= places:
                break
        if queue[-1][1]:
            now, _, request = heapq.heappop(ends)
            held[request] -= 1
    return starts


def forecasts(job: Job, begin: Sequence[int], seconds: float) -> list[Forecast]:
    """The forecasts for a request's sequences, which begin in these rounds of this many seconds."""
    if job.joint:  # they begin when all have places
        begin = [max(begin)] * len(job.waiting)
    listed = []
    for one, first in zip(job.waiting, begin, strict=True):
        if one.row % job.work.particles:
            continue
        order = tau = None
        if not job.joint or job.work.weighed:
            plan, holes = job.state.plan, job.work.holes
            planned = zip(plan.order[one.row, :holes].tolist(), plan.times[one.row, :holes].tolist(), strict=True)
            mask_id, shown = job.work.model.denoiser.mask_id, job.work.shown
            reported = [(at, time) for at, time in planned if shown[at] == mask_id]
            order, tau = [at for at, _ in reported], [time for _, time in reported]
        listed.append(Forecast(one.index, one.calls, order, tau, first * seconds, (first + one.calls) * seconds))
    return listed
