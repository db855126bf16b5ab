"""How long a request waits and takes: exact in rounds, because plans are, and in seconds by what calls have taken."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from unmask.serve.engine.job import Forecast, Job, Key

WEIGHT_OF_THE_LAST = 0.3  # in the moving average of a call's seconds


class Costs:
    """Seconds of a network call, by batch."""

    def __init__(self) -> None:
        self._seconds: dict[Key, float] = {}

    def add(self, key: Key, seconds: float) -> None:
        before = self._seconds.get(key, seconds)
        self._seconds[key] = before + WEIGHT_OF_THE_LAST * (seconds - before)

    def of(self, key: Key) -> float:
        """What a call has lately taken; of a batch that is new, what the model's longest does."""
        if key in self._seconds:
            return self._seconds[key]
        return max((seconds for (served, *_), seconds in list(self._seconds.items()) if served is key[0]), default=0.0)

    def of_round(self, batches: Iterable[Key]) -> float:
        """What a round takes, in which each of these batches is called."""
        return sum(map(self.of, batches))


def begins(
    left: Sequence[int], places: int, waiting: Sequence[int], mine: Sequence[int], share: int | None = None
) -> list[int]:
    """The round in which each of mine gets a place, if places are given in order of arrival.

    left: the calls that are left to those who have a place. waiting, mine: the calls of those who come after them.
    share: how many of mine may have a place at the same time.
    """
    free, own = [*left, *[0] * (places - len(left))], [0] * (share or places)
    heapq.heapify(free)
    found = []
    for number, calls in enumerate((*waiting, *mine)):
        begin = heapq.heappop(free)
        if number >= len(waiting):
            begin = max(begin, heapq.heappop(own))
            heapq.heappush(own, begin + calls)
            found.append(begin)
        heapq.heappush(free, begin + calls)
    return found


def forecasts(job: Job, begin: Sequence[int], seconds: float) -> list[Forecast]:
    """What is known of a request's sequences, which begin in these rounds of so many seconds."""
    if job.joint:  # with the last of their places
        begin = [max(begin)] * len(begin)
    found = []
    for one, first in zip(job.waiting, begin, strict=True):
        order = tau = None
        if not job.joint:
            plan, holes = job.state.plan, job.work.holes
            order, tau = plan.order[one.index, :holes].tolist(), plan.times[one.index, :holes].tolist()
        found.append(Forecast(one.index, one.calls, order, tau, first * seconds, (first + one.calls) * seconds))
    return found
