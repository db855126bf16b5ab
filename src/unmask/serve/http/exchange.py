"""One request between the event loop, where its client is, and the engine's thread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse

from unmask.sampler import InParts
from unmask.serve.engine.engine import Engine
from unmask.serve.engine.job import Done, Event, Failed, Filled, Forecast, Job, Refused
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Work
from unmask.serve.http.refusals import ApiError, error_body, field_of

T = TypeVar("T")


class Exchange:
    """A request's jobs, from admission to the last event; ``close`` frees what they still hold."""

    def __init__(self, engine: Engine, *, watched: bool, client: str = "", top: int = 0) -> None:
        self.engine, self.watched, self.client, self.top = engine, watched, client, top
        self.jobs: list[Job] = []
        self.forecasts: list[Forecast] = []  # of a request with one job
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._done: set[tuple[int, int]] = set()

    async def open(self, make: Callable[[], Sequence[Work]], threads: Executor | None = None) -> None:
        """Make the works and begin them off the event loop; enter the queue with all of them or none."""
        self.engine.check_room()
        loop = asyncio.get_running_loop()

        def teller(number: int) -> Callable[[Event], None]:
            def tell(event: Event) -> None:
                loop.call_soon_threadsafe(self._events.put_nowait, (number, event))

            return tell

        def prepared() -> list[Job]:
            how: dict[str, Any] = {"watched": self.watched, "client": self.client, "request": self, "top": self.top}
            jobs = [Job(work, teller(i), **how) for i, work in enumerate(make())]
            check_size(jobs, self.engine.limits)
            return jobs

        try:
            jobs = await loop.run_in_executor(threads, prepared)
        except ValueError as error:  # a sampler that cannot do what is asked
            raise ApiError(400, str(error), param=field_of(error)) from error
        if len(jobs) == 1:
            self.forecasts = self.engine.submit(jobs[0])
        else:
            self.engine.submit_all(jobs)
        self.jobs = jobs

    @property
    def works(self) -> list[Work]:
        return [job.work for job in self.jobs]

    async def events(self) -> AsyncIterator[tuple[int, Filled | Done]]:
        """The events, with the number of the work, until every sequence is done or ``end`` was called for it."""
        while len(self._done) < sum(work.number for work in self.works):
            number, event = await self._events.get()
            if isinstance(event, Failed):
                if isinstance(event.error, Refused):  # the server is stopping
                    raise event.error
                raise ApiError(500, f"the model failed with {type(event.error).__name__}", code="model_error")
            if isinstance(event, Done):
                self._done.add((number, event.index))
            yield number, event

    def end(self, number: int, index: int) -> None:
        """One sequence is no longer needed."""
        self._done.add((number, index))
        self.engine.cancel(self.jobs[number], index)

    def close(self) -> None:
        for job in self.jobs:
            if job.unfinished:
                self.engine.cancel(job)


class EventStream(StreamingResponse):
    """Server-sent events; ``close`` is called when the last is sent, or the client disconnects."""

    def __init__(self, events: AsyncIterator[str], close: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self.close = close

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.close()


def sse(data: dict[str, Any], name: str | None = None) -> str:
    """One server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n" if name else f"data: {json.dumps(data)}\n\n"


def error_of(error: ApiError | Refused) -> dict[str, Any]:
    """The error that a stream sends instead of the rest of its answer."""
    return error.body if isinstance(error, ApiError) else error_body(503, str(error), None, "overloaded")


def check_size(jobs: Sequence[Job], limits: Limits) -> None:
    """Refuse a request if one call would return too many numbers, or all calls would compute too much."""
    for job in jobs:
        rows = job.widest * (job.work.number * job.work.particles if job.joint else 1)
        vocab_size = job.work.model.denoiser.vocab_size
        if rows * vocab_size > limits.max_logits:
            says = f"one call would return {rows} x {vocab_size} logits; the limit is {limits.max_logits}"
            says += ": take more steps"
            raise ApiError(400, says, param="steps")
    for job in jobs:
        together = job.work.number * job.work.particles
        numbers = job.widest * together * job.work.model.denoiser.vocab_size
        if job.joint and together > 1 and numbers > limits.max_joint:
            says = (
                f"the sequences of this sampler step together, over {numbers} numbers a step: this server takes at most"
            )
            raise ApiError(400, f"{says} {limits.max_joint}; ask for fewer sequences at a time", param="number")
    cost = sum(job.cost for job in jobs)
    if cost > limits.max_work:
        what = "steps" if any(isinstance(job.work.sampler, InParts) for job in jobs) else "network calls"
        says = f"{what} times length come to {cost} over all sequences: this server takes at most"
        raise ApiError(400, f"{says} {limits.max_work}; ask for fewer sequences, shorter ones or fewer steps")


async def unless_gone(receive: Callable[[], Awaitable[Any]], answer: Awaitable[T]) -> T | None:
    """The answer, or None as soon as the client disconnects."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(answer), asyncio.ensure_future(gone())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
