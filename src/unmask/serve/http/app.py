"""The HTTP side: OpenAI's completions and models, our own /v1/unmask, the page, health and metrics."""

from __future__ import annotations

import asyncio
import time as clock
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

import unmask
from unmask.samplers import names
from unmask.serve.engine.engine import Engine
from unmask.serve.engine.job import Refused
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Served, Work
from unmask.serve.http import metrics, openai, transcript
from unmask.serve.http.exchange import EventStream, Exchange, unless_gone
from unmask.serve.http.middleware import AccessMiddleware
from unmask.serve.http.openai import Completion
from unmask.serve.http.page import add_page
from unmask.serve.http.request import ApiError, Prompt, completion_works, find, recorded, unmask_work
from unmask.serve.http.schemas import RESPONSES, CompletionRequest, UnmaskRequest, error_body

T = TypeVar("T")
GONE = 499  # nobody reads it


class Service:
    """What the endpoints share: the models, the engine, and the moment they began."""

    def __init__(self, served: Sequence[Served], limits: Limits) -> None:
        if not served:
            raise ValueError("there is no model to serve")
        self.models: Mapping[str, Served] = {one.model.name: one for one in served}
        if len(self.models) < len(served):
            raise ValueError(f"two models have one name: {', '.join(one.model.name for one in served)}")
        self.limits, self.engine = limits, Engine(limits)
        self.open: set[Exchange] = set()  # requests whose last byte is not sent
        self.created = int(clock.time())

    def listed(self, name: str) -> dict[str, Any]:
        """A model as /v1/models tells of it."""
        served = self.models[name]
        model, chooses = served.model, not served.model.left_to_right
        about = {
            "kind": served.kind,
            "length": model.length,
            "tokenizer": model.tokenizer.kind,
            "display": served.display,
            "symbols": served.symbols,
            "vocab_size": model.denoiser.vocab_size,
            "mask_id": model.denoiser.mask_id,
            "samplers": [*names.PLANS, *names.PUBLISHED] if chooses else [],
            "predictors": [*names.PREDICTORS, "auto"] if chooses else [],
            "decodings": [*names.DECODING] if chooses else [],
            "draws": list(names.DRAWS),
            "characters_per_token": model.characters_per_token,
            "card": dict(served.card),
        }
        return {"id": name, "object": "model", "created": self.created, "owned_by": "unmask", "unmask": about}

    async def begin(self, make: Callable[[], Sequence[Work]], *, watched: bool) -> Exchange:
        """Take a request, or refuse it. Whoever is slow to read its answer counts as if it were still waiting."""
        if len(self.open) >= self.limits.max_queue + self.limits.max_batch:
            self.engine.counts.refused += 1
            raise Refused(f"{len(self.open)} requests are under way", 1)
        exchange = Exchange(self.engine, watched=watched)
        self.open.add(exchange)
        try:
            await exchange.open(make)
        except BaseException:
            self.end(exchange)
            raise
        return exchange

    def end(self, exchange: Exchange) -> None:
        exchange.close()
        self.open.discard(exchange)

    def stream(self, exchange: Exchange, events: AsyncIterator[str]) -> Response:
        return EventStream(events, lambda: self.end(exchange), self.limits.patience_seconds)

    async def answer(self, exchange: Exchange, request: Request, made: Awaitable[T]) -> T | None:
        """A plain answer, or None if the client has gone."""
        try:
            return await unless_gone(request.receive, made)
        finally:
            self.end(exchange)

    async def unmask(self, body: UnmaskRequest, request: Request) -> Response:
        """Fill a canvas: a plain answer or a stream."""
        started = clock.perf_counter()
        watched = body.stream or body.trace
        exchange = await self.begin(lambda: [unmask_work(self.models, body, self.limits)], watched=watched)
        (work,) = exchange.works
        about = {"id": f"unmask-{uuid.uuid4().hex}", "model": work.model.name}
        if body.stream:
            return self.stream(exchange, transcript.streamed(exchange, about))
        made = await self.answer(exchange, request, transcript.collected(exchange, body.trace))
        if made is None:
            return Response(status_code=GONE)
        cost = {"calls": max(one.pop("calls") for one in made), "seconds": clock.perf_counter() - started}
        how = recorded(work.served, body) | {"seed": work.seed}
        head = about | {"object": "unmask", "created": int(clock.time())}
        return JSONResponse(head | {"choices": made} | cost | how)

    async def complete(self, body: CompletionRequest, request: Request) -> Response:
        """OpenAI's completions."""
        stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
        prompts: list[Prompt] = []

        def make() -> list[Work]:
            prompted = completion_works(self.models, body, self.limits)
            prompts.extend(prompt for prompt, _ in prompted)
            return [work for _, work in prompted]

        exchange = await self.begin(make, watched=bool(body.stream or stops))
        works, echo = exchange.works, bool(body.echo)
        completions = [
            Completion(work, i, prompt, body.suffix or "", stops)
            for prompt, work in zip(prompts, works, strict=True)
            for i in range(work.number)
        ]
        head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(clock.time()),
            "model": body.model,
            "system_fingerprint": f"unmask-{unmask.__version__}",
        }
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            return self.stream(exchange, openai.streamed(exchange, completions, head, echo=echo, with_usage=usage))
        made = await self.answer(exchange, request, openai.collected(exchange, completions, echo))
        if made is None:
            return Response(status_code=GONE)
        return JSONResponse(head | made | {"unmask": {"seed": works[0].seed}})


def create_app(
    served: Sequence[Served], limits: Limits | None = None, *, token: str | None = None, hosts: Sequence[str] = ()
) -> FastAPI:
    """The application; ``app.state.server`` has the engine.

    token: a bearer token that everything but the page and /health needs. hosts: the only names that it answers to, for
    a server on the loopback, where a web page elsewhere may have a name that points to it.
    """
    limits = limits or Limits()
    server = Service(served, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        server.engine.start()
        yield
        await asyncio.to_thread(server.engine.stop, 0.0 if server.engine.closing else limits.grace_seconds)

    app = FastAPI(
        title="unmask",
        version=unmask.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        description="Masked (diffusion) models of discrete data: completions, infilling, any canvas with holes.",
    )
    app.state.server, app.state.requests = server, metrics.RequestCounts()
    app.add_middleware(AccessMiddleware, limits=limits, token=token, hosts=hosts, requests=app.state.requests)
    _handle_errors(app)
    _add_api(app, server)
    add_page(app)
    return app


def _handle_errors(app: FastAPI) -> None:
    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return JSONResponse(error.body, error.status)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        retry = {"Retry-After": str(error.retry_after)}
        return JSONResponse(error_body(503, str(error), None, "overloaded"), 503, headers=retry)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        if not request.headers.get("content-type", "").startswith("application/json"):
            first = {"loc": (), "msg": "the body must be JSON, with Content-Type: application/json", "type": "no_json"}
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        where = where.encode(errors="backslashreplace").decode()  # a name may have half of a surrogate pair
        says = f"{where}: {first['msg']}" if where else str(first["msg"])
        return JSONResponse(error_body(422, says, where or None, str(first["type"])), 422)

    async def other(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse(error_body(error.status_code, str(error.detail)), error.status_code, headers=error.headers)

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, other)


def _add_api(app: FastAPI, server: Service) -> None:
    known: dict[int | str, dict[str, Any]] = {status: RESPONSES[status] for status in (401, 404)}

    @app.get("/v1/models", responses={401: RESPONSES[401]}, summary="The models that are served")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [server.listed(name) for name in server.models]}

    @app.get("/v1/models/{name:path}", responses=known, summary="One of them")
    async def model(name: str) -> dict[str, Any]:
        find(server.models, name)
        return server.listed(name)

    @app.post("/v1/unmask", responses=RESPONSES, summary="Fill the holes of a text, a prompt or a canvas")
    async def fill(body: UnmaskRequest, request: Request) -> Response:
        return await server.unmask(body, request)

    @app.post("/v1/completions", responses=RESPONSES, summary="OpenAI's completions; with a suffix, an infill")
    async def complete(body: CompletionRequest, request: Request) -> Response:
        return await server.complete(body, request)

    @app.get("/health", responses={503: {"description": "It is shutting down"}}, summary="Whether requests are taken")
    async def health() -> Response:
        engine = server.engine
        state = "shutting down" if engine.closing else "ok"
        about = {"status": state, "queued": engine.queued, "live": engine.live}
        return JSONResponse(about, 503 if engine.closing else 200)

    @app.get("/metrics", response_class=PlainTextResponse, responses={401: RESPONSES[401]}, summary="For Prometheus")
    async def measured() -> Response:
        return PlainTextResponse(metrics.text(server.engine, app.state.requests), media_type=metrics.TYPE)
