"""Fair sharing: places by how many a client has, network calls by how much time it has had.

With one client this is the order of arrival, and one call for each batch in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from unmask.serve.engine.job import Job, SequenceRun
from unmask.serve.engine.limits import Limits

K = TypeVar("K")


class Times:
    """The time of network calls that each present client has had."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._longest = 0.0  # the longest recent call

    def add(self, clients: Sequence[str], seconds: float) -> None:
        """Record a call for sequences of these clients."""
        self._longest = max(seconds, 0.9 * self._longest)
        for one in clients:
            self._used[one] = self._used.get(one, 0.0) + seconds / len(clients)

    def next(self, batches: Mapping[K, tuple[Collection[str], int]]) -> K:
        """The next batch to call, given their clients and last turns: that of the client with the least time.

        Among several, the one called longest ago. A client that arrives or returns starts level with the others, with
        an advance of one call.
        """
        here = {one for clients, _ in batches.values() for one in clients}
        least = min((self._used[one] for one in here if one in self._used), default=0.0)
        self._used = {one: self._used.get(one, least - self._longest) for one in here}
        return min(batches, key=lambda key: (min(self._used[one] for one in batches[key][0]), batches[key][1]))


def admitted(queue: Sequence[Job], seated: Sequence[SequenceRun], limits: Limits) -> Iterator[tuple[Job, int]]:
    """Waiting requests that get places, and how many: the client with the fewest is next, with its first request.

    A request never gets all places. A client without any need not wait for others to finish: there are a few places
    beyond ``max_batch``.
    """
    seated = [one for one in seated if one.placed]
    total, waiting = len(seated), {job: job.places for job in queue}
    places, requests = Counter(one.job.client for one in seated), Counter(one.job.request for one in seated)
    while waiting:
        job = min(waiting, key=lambda one: places[one.client])
        room = limits.max_batch - total
        if not places[job.client]:
            room = max(room, min(1, limits.max_batch + limits.spare - total))
        if job.joint:  # they begin together, when there are enough places
            count = waiting[job] if waiting[job] <= room or not total else 0
        else:
            count = min(waiting[job], room, limits.share - requests[job.request])
        if count <= 0:
            if room <= 0 or job.joint:
                return
            del waiting[job]  # its request has its share
            continue
        yield job, count
        waiting[job] -= count
        if not waiting[job]:
            del waiting[job]
        total += count
        places[job.client] += count
        requests[job.request] += count
