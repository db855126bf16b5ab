"""The bound on held-out data: nats per token, perplexity and bits per character, each with its standard error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.data.tokens import TokenFile
from unmask.schedule import Schedule
from unmask.train.masking import Losses, Masking, for_validation


@dataclass(frozen=True)
class Bound:
    """An upper bound on -log p (exact for a left-to-right model), estimated on ``sequences`` held-out sequences.

    The standard error is that of independent draws. The counts are spread evenly, so the truth is somewhat better.
    """

    nats_per_token: float
    error: float
    sequences: int
    characters_per_token: float | None  # None where tokens are not text

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nats_per_token, 700.0))

    @property
    def perplexity_error(self) -> float:
        return self.perplexity * self.error

    @property
    def bits_per_character(self) -> float | None:
        return self._per_character(self.nats_per_token)

    @property
    def bits_per_character_error(self) -> float | None:
        return self._per_character(self.error)

    def _per_character(self, nats: float) -> float | None:
        return None if self.characters_per_token is None else nats / math.log(2) / self.characters_per_token

    def record(self) -> dict[str, Any]:
        """As it stands in metrics.jsonl."""
        return {
            "nats_per_token": self.nats_per_token, "error": self.error,
            "perplexity": self.perplexity, "perplexity_error": self.perplexity_error,
            "bits_per_character": self.bits_per_character, "bits_per_character_error": self.bits_per_character_error,
            "sequences": self.sequences,
        }  # fmt: skip


def validate(
    losses: Losses,
    tokens: TokenFile,
    accelerator: Any,
    *,
    kind: str,
    sequences: int,
    micro_batch: int,
    schedule: Schedule,
    stop: Callable[[], object] = lambda: False,
) -> Bound | None:
    """Eq. 7 (or the exact likelihood, left to right) on evenly spaced sequences; None if ``stop`` said so on the way.

    The sequences and their masks are the same every time, so that differences between validations are the network's.
    Where fewer sequences are held out than asked for, each is masked several times, with counts spread over 1..L.
    """
    num = min(sequences, len(tokens)) if kind == "left-to-right" else sequences
    chosen = torch.arange(num) * len(tokens) // num if num <= len(tokens) else torch.arange(num) % len(tokens)
    masking = for_validation(kind, batch=num, length=tokens.length, schedule=schedule)
    # Every process makes as many passes as every other, as FSDP needs: what is left over is computed twice.
    share = -(-num // accelerator.num_processes)
    rows = torch.arange(share) + accelerator.process_index * share
    total = torch.zeros(num, dtype=torch.float64, device=accelerator.device)
    was_training = losses.training
    losses.eval()
    try:
        for part in rows.split(micro_batch):
            if stop():
                return None
            values = _pass(losses, tokens, chosen, masking, part % num, accelerator.device)
            own = part < num
            total[part[own].to(total.device)] = values[own.to(values.device)]
    finally:
        losses.train(was_training)
    per_token = accelerator.reduce(total, "sum") / tokens.length
    error = float(per_token.std() / math.sqrt(num)) if num > 1 else math.inf
    characters = None if tokens.tokenizer.kind == "levels" else tokens.characters_per_token
    return Bound(float(per_token.mean()), error, min(num, len(tokens)), characters)


@torch.no_grad()
def _pass(
    losses: Losses, tokens: TokenFile, chosen: Tensor, masking: Masking, rows: Tensor, device: torch.device
) -> Tensor:
    x0 = tokens.sequences(chosen[rows]).to(device)
    weight = masking.weight[rows].to(device)
    _, terms = losses(x0, masking.masked[rows].to(device), masking.time[rows].to(device), weight)
    return terms.double() * weight  # type: ignore[no-any-return]
