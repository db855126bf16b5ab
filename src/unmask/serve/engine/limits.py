"""What a server accepts and holds at most."""

from __future__ import annotations

from dataclasses import dataclass, fields

LONGER = 4  # times its training data: how long the sequences of a model may be
LONGEST = 4096  # tokens, of a model that does not say how long its training data were


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Every bound of a server; one past it is refused with an error that names it."""

    max_queue: int = 64
    """Requests that wait. The next one is refused at once, and told when to come back."""
    max_batch: int = 16
    """Sequences that are worked on at the same time. One request has at most half of these places."""
    max_length: int | None = None
    """Tokens of a sequence, the prompt included; by default four times those of the model's training data."""
    max_number: int = 16
    """Sequences of one prompt."""
    max_prompts: int = 64
    """Prompts of one request."""
    max_steps: int = 100_000
    """Steps of a sampler."""
    max_work: int = 2**24
    """Network calls times length, added up over the sequences of one request."""
    max_positions: int = 2**11
    """Positions that one network call computes; a pass over more is several calls. One sequence is never divided."""
    max_body_bytes: int = 1_000_000
    """Bytes of a request."""
    max_logits: int = 2**27
    """Numbers that one network call may answer with: rows times the vocabulary."""
    max_joint: int = 2**22
    """The same for a step of a sampler without a plan, over its sequences, which step together: no step is long."""
    header_seconds: float = 10.0
    """A connection whose next request's header is not there after so long is closed."""
    body_seconds: float = 30.0
    """A request whose body is not there after so long is refused."""
    patience_seconds: float = 60.0
    """A client that reads nothing of its answer for so long is given up."""
    keep_alive_seconds: float = 5.0
    """A connection on which nothing happens for so long is closed."""
    grace_seconds: float = 30.0
    """After SIGTERM, what is running has so long to finish."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name.endswith("seconds") else 1
            if value is not None and not value >= least:
                raise ValueError(f"{field.name} must be at least {least}, got {value}")

    def length_of(self, trained: int | None) -> int:
        """The longest sequence of a model that was trained on sequences of a length."""
        return self.max_length or (LONGER * trained if trained else LONGEST)

    @property
    def share(self) -> int:
        """Places that one request may have."""
        return max(1, self.max_batch // 2)

    @property
    def spare(self) -> int:
        """Places beyond max_batch, for clients that have none while others have them all."""
        return max(1, self.max_batch // 4)
