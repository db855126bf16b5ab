"""Middleware of every request: the token, the size and time of its body, headers, and errors without tracebacks."""

from __future__ import annotations

import asyncio
import hmac
import json
import time as clock
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from unmask.serve.engine.limits import Limits
from unmask.serve.http.metrics import Metrics
from unmask.serve.http.refusals import error_body
from unmask.serve.log import log

OPEN = ("/", "/health", "/livez", "/readyz", "/openapi.json")  # without a token: they tell nothing of models or clients
V1 = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/unmask")
PATHS = (*OPEN, *V1, "/detokenize", "/metrics", "/pictures", "/tokenize", "/tokenizer_info")
CLIENT = "unmask.client"  # the key in a scope for the client's identity
HEADERS = [
    (b"content-security-policy", b"default-src 'self'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]


class Unread(Exception):
    """A body that was not read to its end: the status, a message, and perhaps headers."""

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, (*headers, _CLOSE)


class AccessMiddleware:
    """An ASGI application around another. tokens: any of them grants access; with several, each is a client."""

    def __init__(
        self, app: Any, *, limits: Limits, tokens: Sequence[str], hosts: Sequence[str], metrics: Metrics
    ) -> None:
        self.app, self.limits, self.metrics, self.hosts = app, limits, metrics, hosts
        self.tokens = [token.encode() for token in tokens]
        self.reading = 0  # bodies being read

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = clock.perf_counter(), 0

        async def sending(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = message | {"headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        async def answer(code: int, message: str, *headers: tuple[bytes, bytes]) -> None:
            body = json.dumps(error_body(code, message)).encode()
            kind = (b"content-type", b"application/json")
            await sending({"type": "http.response.start", "status": code, "headers": [kind, *headers]})
            await sending({"type": "http.response.body", "body": body})

        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await answer(*refusal)
            else:
                await self.app(scope, await self._read(scope, receive), sending)
        except Unread as error:
            await answer(error.status, error.message, *error.headers)
        except asyncio.CancelledError:  # the server stops and no longer waits
            if status:
                raise
            await answer(503, "the server is shutting down", (b"retry-after", b"10"), _CLOSE)
        except Exception as error:
            # The message may quote a prompt, so it is neither logged nor sent.
            log.error("%s %s failed: %s", scope["method"], _path(scope), type(error).__name__)
            if not status:
                await answer(500, f"the server failed with {type(error).__name__}")
        finally:
            self.metrics.answered(_path(scope), status, clock.perf_counter() - started)

    async def _read(self, scope: Any, receive: Any) -> Any:
        """Read the body up to the allowed size, as a function to receive it from; later messages pass unchanged."""
        if scope["method"] != "POST":
            return receive
        if self.reading >= self.limits.max_queue + self.limits.max_batch:
            raise Unread(503, f"{self.reading} requests are being read", (b"retry-after", b"1"))
        self.reading += 1
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                messages = await self._messages(receive)
        except TimeoutError:
            raise Unread(408, f"the body did not arrive within {self.limits.body_seconds:g} seconds") from None
        finally:
            self.reading -= 1

        async def replayed() -> Any:
            return messages.pop(0) if messages else await receive()

        return replayed

    async def _messages(self, receive: Any) -> list[Any]:
        messages: list[Any] = []
        read = 0
        while not messages or (messages[-1]["type"] == "http.request" and messages[-1].get("more_body")):
            messages.append(await receive())
            read += len(messages[-1].get("body", b""))
            if read > self.limits.max_body_bytes:
                raise Unread(413, f"a body has at most {self.limits.max_body_bytes} bytes here")
        return messages

    def _refusal(self, scope: Any) -> tuple[Any, ...] | None:
        """Why a request is refused before it is processed.

        A client is identified by its token, if there are several, or else by its address, which may be a proxy's.
        """
        headers = dict(scope["headers"])
        host = _host(headers.get(b"host", b""))
        if self.hosts and host not in self.hosts:
            return 421, f"this server does not answer to {host!r}"
        scope[CLIENT] = (scope.get("client") or ("",))[0]
        shown = scope["path"].startswith(("/web/", "/pictures/"))  # link previews may fetch pictures
        closed = scope["path"] not in OPEN and not shown
        if self.tokens and closed:
            given = headers.get(b"authorization", b"")
            fits = [hmac.compare_digest(given, b"Bearer " + token) for token in self.tokens]
            if not any(fits):
                return 401, "the Authorization header must be Bearer and the server's token", _CHALLENGE
            if len(self.tokens) > 1:
                scope[CLIENT] = f"token {fits.index(True)}"
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.limits.max_body_bytes:
            return 413, f"a body has at most {self.limits.max_body_bytes} bytes here", _CLOSE
        return None


_CLOSE = (b"connection", b"close")  # the rest of the body is not read
_CHALLENGE = (b"www-authenticate", b"Bearer")


def _host(header: bytes) -> str:
    """The name in a Host header, without its port."""
    try:
        return urlsplit("//" + header.decode("latin-1")).hostname or ""
    except ValueError:  # for example half a bracket
        return ""


def _path(scope: Any) -> str:
    """The path without the parts that a client chooses."""
    path: str = scope["path"]
    if path in PATHS:
        return path
    return next((known for known in ("/v1/models", "/web", "/pictures") if path.startswith(f"{known}/")), "other")
