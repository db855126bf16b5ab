"""Connections with timeouts: for the header of a request, and for a client that reads nothing."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from unmask.serve.engine.limits import Limits
from unmask.serve.log import log


class TimedProtocol(H11Protocol):
    """uvicorn's protocol, which times idle connections between requests, with a timeout for each request's header.

    ``header_seconds`` runs from the connection, and from the first byte after an answer, until the header is complete.
    ``patience_seconds`` runs while the client reads nothing and nothing more can be sent. Then the connection is
    closed, and the application sees a disconnect.
    """

    header_seconds = 10.0
    patience_seconds = 60.0
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_header()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if before is not None and before.response_complete and self._late is None:
            self._expect_header()
        super().data_received(data)
        if self.cycle is not before:
            self._forget()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.patience_seconds, self._give_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.loop.call_later(self.header_seconds, self.transport.abort)

    def _give_up(self) -> None:
        log.warning("a client read nothing for %g seconds and was given up", self.patience_seconds)
        self.transport.abort()

    def _expect_header(self) -> None:
        self._late = self.loop.call_later(self.header_seconds, self.transport.abort)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def timed(limits: Limits) -> type[TimedProtocol]:
    """The protocol for uvicorn.Config(http=...)."""
    seconds = {name: getattr(limits, name) for name in ("header_seconds", "patience_seconds")}
    return type("Timed", (TimedProtocol,), seconds)
