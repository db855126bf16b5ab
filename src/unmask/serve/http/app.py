"""The HTTP endpoints: OpenAI's completions and models, /v1/unmask, the page, health and metrics."""

from __future__ import annotations

import asyncio
import time as clock
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

import unmask
from unmask import names
from unmask.serve.engine.engine import Engine
from unmask.serve.engine.job import Refused
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Served, Work
from unmask.serve.http import metrics, openai, transcript
from unmask.serve.http.chat import chat_completion
from unmask.serve.http.errors import add_errors
from unmask.serve.http.exchange import EventStream, Exchange, unless_gone
from unmask.serve.http.final_text import stops_of
from unmask.serve.http.metrics import Metrics
from unmask.serve.http.middleware import CLIENT, AccessMiddleware
from unmask.serve.http.openai import Choices, Shape
from unmask.serve.http.page import add_page
from unmask.serve.http.refusals import RESPONSES, ApiError
from unmask.serve.http.request import completion_works, find, recorded, unmask_work
from unmask.serve.http.schemas import ChatRequest, CompletionRequest, UnmaskRequest
from unmask.serve.http.tokens import add_tokens

T = TypeVar("T")
GONE = 499  # the client has disconnected
PREPARING = 2  # threads
STREAMED: dict[int | str, dict[str, Any]] = RESPONSES | {
    200: {"description": "The answer, or with stream its events", "content": {"text/event-stream": {}}}
}


class Service:
    """State shared by the endpoints: the models, the engine, and the start time."""

    def __init__(self, served: Sequence[Served], limits: Limits) -> None:
        if not served:
            raise ValueError("there is no model to serve")
        self.models: Mapping[str, Served] = {one.model.name: one for one in served}
        if len(self.models) < len(served):
            raise ValueError(f"two models have one name: {', '.join(one.model.name for one in served)}")
        self.limits, self.engine = limits, Engine(limits)
        self.open: set[Exchange] = set()  # requests whose last byte has not been sent
        self.warm = asyncio.Event()  # set when every model has been called once
        self.created = int(clock.time())
        # A few threads tokenize texts and draw plans, so that the event loop stays responsive.
        self.threads = ThreadPoolExecutor(PREPARING, "unmask-prepare")

    async def warm_up(self) -> None:
        """Call every model once."""
        with suppress(Refused):  # the server is stopping already
            for one in self.models.values():
                await asyncio.to_thread(self.engine.warm, one)
            if self.engine.alive:
                self.warm.set()

    @property
    def status(self) -> str:
        """Whether requests are accepted: ok, or why not."""
        if not self.engine.alive:
            return "the engine has failed"
        return "shutting down" if self.engine.closing else "ok"

    def listed(self, name: str) -> dict[str, Any]:
        """A model as listed by /v1/models."""
        served = self.models[name]
        model, process = served.model, served.model.process
        everywhere = process.chooses and not process.continues  # positions all over the canvas may be filled
        about = {
            "kind": served.kind,
            "length": model.length,
            "tokenizer": model.tokenizer.kind,
            "display": served.display,
            "symbols": served.symbols,
            "vocab_size": model.denoiser.vocab_size,
            "mask_id": model.denoiser.mask_id,
            "samplers": [*names.PLANS, *(names.PUBLISHED if everywhere else [])] if process.chooses else [],
            "predictors": [*names.PREDICTORS, "auto"] if everywhere else [],
            "decodings": [*names.DECODING] if process.chooses else [],
            "decoding": process.order if process.chooses and process.from_left else None,  # by default
            "draws": list(names.DRAWS),
            "characters_per_token": model.characters_per_token,
            "card": dict(served.card),
        }
        return {"id": name, "object": "model", "created": self.created, "owned_by": "unmask", "unmask": about}

    async def begin(
        self, make: Callable[[], Sequence[Work]], *, watched: bool, client: str = "", top: int = 0
    ) -> Exchange:
        """Accept a request, or refuse it. A client that is slow to read its answer counts as waiting."""
        if len(self.open) >= self.limits.max_queue + self.limits.max_batch:
            self.engine.counts.refused += 1
            raise Refused(f"{len(self.open)} requests are in progress", self.engine.seconds_to_room())
        exchange = Exchange(self.engine, watched=watched, client=client, top=top)
        self.open.add(exchange)
        try:
            await exchange.open(make, self.threads)
        except BaseException:
            self.end(exchange)
            raise
        return exchange

    def end(self, exchange: Exchange) -> None:
        exchange.close()
        self.open.discard(exchange)

    def stream(self, exchange: Exchange, events: AsyncIterator[str]) -> Response:
        return EventStream(events, lambda: self.end(exchange))

    async def answer(self, exchange: Exchange, request: Request, work: Awaitable[T]) -> T | None:
        """A plain answer, or None if the client has disconnected."""
        try:
            return await unless_gone(request.receive, work)
        finally:
            self.end(exchange)

    async def unmask(self, body: UnmaskRequest, request: Request) -> Response:
        """Fill a canvas: a plain answer or a stream."""
        started = clock.perf_counter()
        stops = stops_of(body.stop)
        watched = bool(body.stream or body.trace or stops)
        exchange = await self.begin(
            lambda: [unmask_work(self.models, body, self.limits)], watched=watched, client=request.scope[CLIENT]
        )
        (work,) = exchange.works
        about = {"id": f"unmask-{uuid.uuid4().hex}", "model": work.model.name}
        if body.stream:
            return self.stream(exchange, transcript.streamed(exchange, stops, about))
        texts = await self.answer(exchange, request, transcript.collected(exchange, stops, body.trace))
        if texts is None:
            return Response(status_code=GONE)
        cost = {"calls": max(one.pop("calls") for one in texts), "seconds": clock.perf_counter() - started}
        how = recorded(work.served, body) | {"seed": work.seed}
        head = about | {"object": "unmask", "created": int(clock.time())}
        return JSONResponse(head | {"choices": texts} | cost | how)

    async def complete(self, body: CompletionRequest, request: Request) -> Response:
        """OpenAI's completions."""
        if body.echo and body.logprobs is not None and body.stream:
            raise ApiError(400, "the logprobs of an echoed prompt are not streamed", param="stream")
        if body.logprobs and (body.predictor != "first-order" or (body.sampler or "").startswith("published")):
            says = "logprobs above 0 are for first-order predictors, which draw from what one call says"
            raise ApiError(400, says, param="logprobs")
        if body.logprobs and (body.presence_penalty or body.frequency_penalty):
            raise ApiError(400, "logprobs above 0 cannot be combined with penalties", param="logprobs")
        return await self._chosen(body, request, "cmpl", "text_completion", (openai.text_choice, openai.text_choice))

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        """OpenAI's chat: the messages in the model's template, and a completion of that."""
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        plain = chat_completion(find(self.models, body.model), body)
        return await self._chosen(plain, request, "chatcmpl", kind, (openai.chat_choice, openai.chat_delta))

    async def _chosen(
        self, body: CompletionRequest, request: Request, name: str, kind: str, shapes: tuple[Shape, Shape]
    ) -> Response:
        stops = stops_of(body.stop)
        choices: list[Choices] = []

        def make() -> list[Work]:
            prompts = completion_works(self.models, body, self.limits)
            choices.append(Choices(prompts, body.n or 1, stops, body.logprobs, echo=bool(body.echo)))
            return choices[0].works

        watched = bool(body.stream or stops or body.logprobs is not None)
        client = request.scope[CLIENT]
        exchange = await self.begin(make, watched=watched, client=client, top=body.logprobs or 0)
        head = {
            "id": f"{name}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(clock.time()),
            "model": body.model,
            "system_fingerprint": f"unmask-{unmask.__version__}",
        }
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            return self.stream(exchange, openai.streamed(exchange, choices[0], shapes[1], head, with_usage=usage))
        content = await self.answer(exchange, request, openai.collected(exchange, choices[0], shapes[0]))
        if content is None:
            return Response(status_code=GONE)
        seed = choices[0].works[0].seed if choices[0].works else body.seed
        return JSONResponse(head | content | {"unmask": {"seed": seed}})


def create_app(
    served: Sequence[Served],
    limits: Limits | None = None,
    *,
    token: str | Sequence[str] | None = None,
    hosts: Sequence[str] = (),
) -> FastAPI:
    """The application; ``app.state.server`` has the engine.

    token: a bearer token that all but the page and the probes require; with several, each identifies a client. hosts:
    the only host names it answers to, for a server on the loopback interface, to which a foreign web page may point a
    name of its own (DNS rebinding).
    """
    limits = limits or Limits()
    server = Service(served, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        server.engine.start()
        warming = asyncio.create_task(server.warm_up())
        yield
        await asyncio.to_thread(server.engine.stop, 0.0 if server.engine.closing else limits.grace_seconds)
        await warming
        server.threads.shutdown(wait=False)

    app = FastAPI(
        title="unmask",
        version=unmask.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        description="Masked (diffusion) models of discrete data: completions, infilling, any canvas with holes.",
    )
    app.state.server, app.state.metrics = server, Metrics(server.engine)
    tokens = [token] if isinstance(token, str) else token or ()
    app.add_middleware(AccessMiddleware, limits=limits, tokens=tokens, hosts=hosts, metrics=app.state.metrics)
    add_errors(app)
    _add_api(app, server)
    add_tokens(app, server.models, limits, server.threads)
    add_page(app)
    return app


def _add_api(app: FastAPI, server: Service) -> None:
    known: dict[int | str, dict[str, Any]] = {status: RESPONSES[status] for status in (401, 404)}

    @app.get("/v1/models", responses={401: RESPONSES[401]}, summary="The models that are served")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [server.listed(name) for name in server.models]}

    @app.get("/v1/models/{name:path}", responses=known, summary="One of them")
    async def model(name: str) -> dict[str, Any]:
        find(server.models, name)
        return server.listed(name)

    @app.post("/v1/unmask", responses=STREAMED, summary="Fill the holes of a text, a prompt or a canvas")
    async def fill(body: UnmaskRequest, request: Request) -> Response:
        return await server.unmask(body, request)

    @app.post("/v1/completions", responses=STREAMED, summary="OpenAI's completions; with a suffix, an infill")
    async def complete(body: CompletionRequest, request: Request) -> Response:
        return await server.complete(body, request)

    @app.post("/v1/chat/completions", responses=STREAMED, summary="OpenAI's chat, of a model with a chat template")
    async def chat(body: ChatRequest, request: Request) -> Response:
        return await server.chat(body, request)

    _add_probes(app, server)


def _add_probes(app: FastAPI, server: Service) -> None:
    ends: dict[int | str, dict[str, Any]] = {503: {"description": "It is shutting down, or has failed"}}

    def about(status: str) -> Response:
        engine = server.engine
        state = {"status": status, "queued": engine.queued, "live": engine.live}
        return JSONResponse(state, 200 if status == "ok" else 503)

    @app.get("/health", responses=ends, summary="Whether requests are taken")
    async def health() -> Response:
        return about(server.status)

    @app.get(
        "/readyz", responses={503: {"description": "Not yet, or no longer"}}, summary="Whether to send it requests"
    )
    async def ready() -> Response:
        warming = server.status == "ok" and not server.warm.is_set()
        return about("warming up" if warming else server.status)

    @app.get("/livez", responses={503: {"description": "Start it again"}}, summary="Whether it works at all")
    async def live() -> Response:
        return about("ok" if server.engine.alive else server.status)

    @app.get("/metrics", response_class=PlainTextResponse, responses={401: RESPONSES[401]}, summary="For Prometheus")
    async def measured() -> Response:
        return PlainTextResponse(app.state.metrics.text(), media_type=metrics.TYPE)
