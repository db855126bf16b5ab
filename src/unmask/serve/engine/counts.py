"""Counters of the engine, for the metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counts:
    """Counters of the engine."""

    calls: int = 0
    rows: int = 0  # sequences in those calls, in total
    tokens: int = 0
    sequences: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    busy_seconds: float = 0.0
