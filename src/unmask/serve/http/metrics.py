"""Metrics of the server, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from unmask.serve.engine.engine import Engine
from unmask.serve.engine.job import SequenceRun

TYPE = "text/plain; version=0.0.4; charset=utf-8"
disable_created_metrics()  # type: ignore[no-untyped-call]  # when each began to be counted: twice the lines for nothing
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class EngineCollector:
    """The engine's counters, read on request."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def collect(self) -> Iterator[Any]:
        engine, counts = self.engine, self.engine.counts
        for name, about, value in (
            ("network_calls", "Network calls.", counts.calls),
            ("network_rows", "Sequences in those calls, added up.", counts.rows),
            ("tokens", "Tokens drawn.", counts.tokens),
            ("sequences", "Sequences finished.", counts.sequences),
            ("cancelled", "Requests whose clients went away.", counts.cancelled),
            ("failed", "Requests that failed.", counts.failed),
            ("refused", "Requests that found the queue full.", counts.refused),
            ("busy_seconds", "Seconds in which something was live.", counts.busy_seconds),
        ):
            yield CounterMetricFamily(f"unmask_{name}", about, value=value)
        for name, about, value in (
            ("queue_requests", "Requests that wait.", engine.queued),
            ("live_sequences", "Sequences that have a place.", engine.live),
            ("cache_bytes", "Keys and values of the live sequences.", engine.cache_bytes),
        ):
            yield GaugeMetricFamily(f"unmask_{name}", about, value=value)


class Metrics:
    """Requests by path and status, and the waiting and processing times of sequences, by model."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engine))

        def histogram(name: str, about: str, label: str) -> Histogram:
            return Histogram(f"unmask_{name}", about, [label], buckets=SECONDS, registry=self.registry)

        self.requests = Counter("unmask_requests", "Requests.", ["path", "status"], registry=self.registry)
        self.request_seconds = histogram("request_seconds", "From a request's header to the end of its answer.", "path")
        self.queue_seconds = histogram("queue_seconds", "Until a sequence got its place.", "model")
        self.first_token_seconds = histogram(
            "first_token_seconds", "From the queue to a sequence's first call.", "model"
        )
        self.token_seconds = histogram("token_seconds", "Of a sequence with its place, divided by its tokens.", "model")
        engine.finished = self.finished

    def finished(self, one: SequenceRun, seconds: float) -> None:
        """A sequence finished this many seconds after it got its place; called in the engine's thread."""
        name, entered = one.job.work.model.name, one.job.submitted
        self.queue_seconds.labels(name).observe(one.started - entered)
        if one.ncs:
            self.first_token_seconds.labels(name).observe(one.first - entered)
            self.token_seconds.labels(name).observe(seconds / one.ncs)

    def answered(self, path: str, status: int, seconds: float) -> None:
        self.requests.labels(path, str(status)).inc()
        self.request_seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
