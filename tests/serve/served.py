"""Tiny models to serve, and ways to ask: through the engine alone, and through a real server on a free port."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import uvicorn

from tests.small_models import TOKENIZERS, network
from unmask import Model
from unmask.serve.engine.engine import Engine
from unmask.serve.engine.job import Done, Failed, Filled, Job
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Served
from unmask.serve.http.app import create_app
from unmask.serve.http.connection import timed
from unmask.serve.http.request import find, unmask_work
from unmask.serve.http.schemas import UnmaskRequest


def lively(made: Any, layers: int = 1) -> Any:
    """The same kind of network with this many blocks, none of which is the identity, as untrained ones are."""
    torch.manual_seed(1)
    made = type(made)(replace(made.config, layers=layers))
    with torch.no_grad():
        for parameter in made.parameters():
            if not bool(parameter.any()):
                parameter.normal_(std=0.2)
    return made.eval()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does; five minutes are longer than any of it takes on a busy machine."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


LIMITS = Limits(max_batch=8, grace_seconds=20.0)


def model(kind: str = "bpe", name: str = "tiny", **options: Any) -> Model:
    layout = "rows" if kind in ("smiles", "levels") else "wrapped"
    return Model(lively(network(TOKENIZERS[kind], **options)), TOKENIZERS[kind], name=name, layout=layout)


MODELS = {
    "tiny": model(),
    "bytes": model("bytes", "bytes"),
    "anyorder": model(name="anyorder", attention="order", neighbours=2),
    "twin": model(name="twin", causal=True, convolution=3),
    "adapted": model(name="adapted", adaln=False, adapters=3),
}
SERVED = {name: Served(one) for name, one in MODELS.items()}


def library(body: dict[str, Any]) -> Any:
    """The library's result for a request to /v1/unmask, which the server must give too."""
    asked = UnmaskRequest(**body)
    model = find(SERVED, asked.model).model
    how = asked.named.arguments() | {"seed": asked.seed or 0}
    if asked.text is not None:
        return model.infill(asked.text, asked.number, mask_character=asked.mask_character, **how)
    if asked.canvas is not None:
        ids = [model.denoiser.mask_id if i is None else i for i in asked.canvas]
        return model.sample(canvas=torch.tensor([ids] * asked.number), **how)
    return model.sample(asked.number, prompt=asked.prompt or "", length=asked.length, **how)


class Asked:
    """A request in an engine, and the events about it."""

    def __init__(
        self,
        engine: Engine,
        served: dict[str, Served],
        body: dict[str, Any],
        *,
        watched: bool = False,
        client: str = "",
    ):
        self.told: queue.Queue[Any] = queue.Queue()
        work = unmask_work(served, UnmaskRequest(**body), engine.limits)
        self.engine, self.job = engine, Job(work, self.told.put, watched=watched, client=client)
        self.steps: list[Filled] = []
        self.forecasts = engine.submit(self.job)

    def answer(self) -> list[Done]:
        """The finished sequences; whatever failed is raised."""
        done: dict[int, Done] = {}
        while len(done) < self.job.work.number:
            event = self.told.get(timeout=300)
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Done):
                done[event.index] = event
            else:
                self.steps.append(event)
        return [done[i] for i in sorted(done)]


@contextmanager
def running(limits: Limits = LIMITS) -> Iterator[Engine]:
    engine = Engine(limits).start()
    try:
        yield engine
    finally:
        engine.stop(0.0)


@contextmanager
def listening(
    served: dict[str, Served], limits: Limits = LIMITS, *, ready: bool = True, **options: Any
) -> Iterator[tuple[str, Any]]:
    """A real server on a free port, ready or not: its address, and the application."""
    app = create_app(list(served.values()), limits, **options)
    with socket.create_server(("127.0.0.1", 0)) as free:
        config = uvicorn.Config(app, http=timed(limits), log_config=None, access_log=False, timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [free]}, daemon=True)
        thread.start()
        try:
            until(lambda: server.started and (not ready or app.state.server.warm.is_set()))
            yield f"http://127.0.0.1:{free.getsockname()[1]}", app
        finally:
            server.should_exit = True
            thread.join(30)
