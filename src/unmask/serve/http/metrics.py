"""What a server has done, counted, and in Prometheus' text format."""

from __future__ import annotations

from collections import Counter

from unmask.serve.engine.engine import Engine

TYPE = "text/plain; version=0.0.4; charset=utf-8"


class RequestCounts:
    """Requests by path and status, and the seconds they took; written by the event loop alone."""

    def __init__(self) -> None:
        self.count: Counter[tuple[str, int]] = Counter()
        self.seconds: Counter[str] = Counter()

    def add(self, path: str, status: int, seconds: float) -> None:
        self.count[path, status] += 1
        self.seconds[path] += seconds  # type: ignore[assignment]


def text(engine: Engine, requests: RequestCounts) -> str:
    """Everything, one line each."""
    counts = engine.counts
    lines: list[str] = []

    def family(name: str, kind: str, about: str, *values: tuple[str, float]) -> None:
        lines.extend((f"# HELP unmask_{name} {about}", f"# TYPE unmask_{name} {kind}"))
        lines.extend(f"unmask_{name}{labels} {value}" for labels, value in values)

    by_path = [(f'{{path="{path}",status="{status}"}}', n) for (path, status), n in sorted(requests.count.items())]
    family("requests_total", "counter", "Requests by path and status.", *by_path)
    took = [(f'{{path="{path}"}}', seconds) for path, seconds in sorted(requests.seconds.items())]
    family("request_seconds_total", "counter", "Seconds that requests took, by path.", *took)
    for name, about, value in (
        ("network_calls_total", "Network calls.", counts.calls),
        ("network_rows_total", "Sequences in those calls, added up.", counts.rows),
        ("tokens_total", "Tokens drawn.", counts.tokens),
        ("sequences_total", "Sequences finished.", counts.sequences),
        ("cancelled_total", "Requests whose clients went away.", counts.cancelled),
        ("failed_total", "Requests that failed.", counts.failed),
        ("refused_total", "Requests that found the queue full.", counts.refused),
        ("busy_seconds_total", "Seconds in which something was live.", counts.busy_seconds),
    ):
        family(name, "counter", about, ("", value))
    family("queue_requests", "gauge", "Requests that wait.", ("", engine.queued))
    family("live_sequences", "gauge", "Sequences that have a place.", ("", engine.live))
    family("cache_bytes", "gauge", "Keys and values of the live sequences.", ("", engine.cache_bytes))
    return "\n".join(lines) + "\n"
