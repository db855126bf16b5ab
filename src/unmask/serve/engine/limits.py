"""The limits of a server."""

from __future__ import annotations

from dataclasses import dataclass, fields

LONGER = 4  # how many times longer than its training data a model's sequences may be
LONGEST = 4096  # tokens, for a model whose training length is unknown


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a server. A request that exceeds one is rejected with an error that names it."""

    max_queue: int = 64
    """Requests that wait. Further ones are rejected at once, with a time to try again."""
    max_batch: int = 16
    """Sequences processed at the same time. One request has at most half of these slots."""
    max_length: int | None = None
    """Tokens of a sequence including the prompt. The default is four times the model's training length."""
    max_number: int = 16
    """Sequences of one prompt."""
    max_prompts: int = 64
    """Prompts of one request."""
    max_steps: int = 100_000
    """Steps of a sampler."""
    max_work: int = 2**24
    """Network calls times length, summed over the sequences of one request."""
    max_positions: int = 2**11
    """Positions in one network call; a larger pass is split into several calls. One sequence is never split."""
    max_body_bytes: int = 1_000_000
    """Bytes of a request."""
    max_logits: int = 2**27
    """Logits of one network call: rows times the vocabulary."""
    max_joint: int = 2**22
    """The same for a step of a sampler without a plan, over all its sequences, which advance together."""
    header_seconds: float = 10.0
    """Seconds within which the header of a request must arrive; otherwise the connection is closed."""
    body_seconds: float = 30.0
    """Seconds within which the body of a request must arrive; otherwise it is rejected."""
    patience_seconds: float = 60.0
    """Seconds after which a client that reads nothing of its response is disconnected."""
    keep_alive_seconds: float = 5.0
    """Seconds after which an idle connection is closed."""
    grace_seconds: float = 30.0
    """Seconds that running requests have to finish after SIGTERM."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name.endswith("seconds") else 1
            if value is not None and not value >= least:
                raise ValueError(f"{field.name} must be at least {least}, got {value}")

    def length_of(self, trained: int | None) -> int:
        """The longest sequence for a model with this training length."""
        return self.max_length or (LONGER * trained if trained else LONGEST)

    @property
    def share(self) -> int:
        """The places that one request may have."""
        return max(1, self.max_batch // 2)

    @property
    def spare(self) -> int:
        """Places beyond max_batch, for clients without any while others hold all of them."""
        return max(1, self.max_batch // 4)
