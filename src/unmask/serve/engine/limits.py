"""What a server accepts and holds at most."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Every bound of a server; one past it is refused with an error that names it."""

    max_queue: int = 64
    """Requests that wait. The next one is refused at once, and told when to come back."""
    max_batch: int = 16
    """Sequences that are worked on at the same time."""
    max_length: int = 4096
    """Tokens of a sequence, the prompt included."""
    max_number: int = 16
    """Sequences of one request."""
    max_steps: int = 100_000
    """Steps of a sampler."""
    max_body_bytes: int = 1_000_000
    """Bytes of a request."""
    max_logits: int = 2**27
    """Numbers that one network call may answer with: rows times the vocabulary."""
    patience_seconds: float = 60.0
    """A client that reads nothing of its stream for so long is given up."""
    grace_seconds: float = 30.0
    """After SIGTERM, what is running has so long to finish."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name.endswith("seconds") else 1
            if not value >= least:
                raise ValueError(f"{field.name} must be at least {least}, got {value}")
