"""A likelihood in all its units, with both of its standard errors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Bound:
    """An upper bound on -log p of each sequence in nats, and the standard error of its estimate.

    For a left-to-right model it is -log p, and the errors are 0. p depends on how tokens are drawn: ``law``. All tokens
    that the model predicts are counted, including eos and padding.
    """

    nats: Tensor  # float64 [B]
    errors: Tensor  # float64 [B]; infinite after a single pass
    tokens: Tensor  # int64 [B]
    characters: Tensor | None = None  # float64 [B]; None where tokens are not text
    law: str = ""  # of what p is: tokens drawn "in a random order", "from left to right", ...

    def __repr__(self) -> str:
        """Three lines with the perplexity, and one that names the law."""
        what = "-log p" if self.exact else "upper bound on -log p"
        character = self.bits_per_character
        more = "" if character is None else f", {character:.4g} per character"
        several = "sequence" if self.sequences == 1 else "sequences"
        law = [f"  tokens drawn {self.law}"] if self.law else []
        return "\n".join(
            (
                f"Bound({what} of {self.sequences:,} {several}, {int(self.tokens.sum()):,} tokens)",
                f"  {self.nats_per_token:.4f} ± {self.error:.2g} nats per token, {self.bits_per_token:.4f} bits{more}",
                f"  perplexity {self.perplexity:.5g} ± {self.perplexity_error:.2g}",
                *law,
            )
        )

    @property
    def sequences(self) -> int:
        return len(self.nats)

    @property
    def exact(self) -> bool:
        return not bool(self.errors.any())

    @property
    def nats_per_token(self) -> float:
        return float(self.nats.sum() / self.tokens.sum())

    @property
    def bits_per_token(self) -> float:
        return self.nats_per_token / math.log(2)

    @property
    def bits_per_character(self) -> float | None:
        return None if self.characters is None else float(self.nats.sum() / self.characters.sum()) / math.log(2)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nats_per_token, 700.0))

    @property
    def error_of_estimate(self) -> float:
        """The standard error of nats_per_token for these sequences; more passes make it smaller."""
        return self._of_estimate(self.tokens)

    @property
    def error_over_sequences(self) -> float:
        """The standard error of nats_per_token for the population, estimation error included; inf for one sequence."""
        return self._over_sequences(self.tokens)

    @property
    def error(self) -> float:
        """The standard error of nats_per_token: over sequences, or of the estimate if there is only one."""
        return self._error(self.tokens)

    @property
    def perplexity_error(self) -> float:
        return self.perplexity * self.error

    @property
    def bits_per_character_error(self) -> float | None:
        return None if self.characters is None else self._error(self.characters) / math.log(2)

    def record(self) -> dict[str, Any]:
        """One record with one error, as written to metrics.jsonl."""
        return {
            "nats_per_token": self.nats_per_token,
            "error": self.error,
            "perplexity": self.perplexity,
            "perplexity_error": self.perplexity_error,
            "bits_per_character": self.bits_per_character,
            "bits_per_character_error": self.bits_per_character_error,
            "sequences": self.sequences,
        }

    def units(self) -> dict[str, tuple[float, float, float]]:
        """The value in every unit, its error of the estimate, and its error over sequences."""
        estimate, over = self.error_of_estimate, self.error_over_sequences
        bit, perplexity = math.log(2), self.perplexity
        table = {
            "nats per token": (self.nats_per_token, estimate, over),
            "perplexity": (perplexity, perplexity * estimate, perplexity * over),
            "bits per token": (self.bits_per_token, estimate / bit, over / bit),
        }
        if self.characters is not None and self.bits_per_character is not None:
            errors = (self._of_estimate(self.characters) / bit, self._over_sequences(self.characters) / bit)
            table["bits per character"] = (self.bits_per_character, *errors)
        return table

    def _of_estimate(self, per: Tensor) -> float:
        return float(self.errors.square().sum().sqrt() / per.sum())

    def _over_sequences(self, per: Tensor) -> float:
        # A ratio of sums: its error is that of the residuals, which is std / sqrt(B) if all sequences have the same
        # length.
        if self.sequences < 2:
            return math.inf
        residual = self.nats - per * (self.nats.sum() / per.sum())
        return float(residual.square().sum().sqrt() * math.sqrt(len(per) / (len(per) - 1)) / per.sum())

    def _error(self, per: Tensor) -> float:
        return self._over_sequences(per) if self.sequences > 1 else self._of_estimate(per)


def per_text(parts: Iterable[tuple[Tensor, Bound]], characters: Tensor) -> Bound:
    """The bounds of texts of so many characters from those of their parts: part b belongs to text owner[b]."""
    nats, variance = torch.zeros(2, len(characters), dtype=torch.float64)
    tokens, law = torch.zeros(len(characters), dtype=torch.int64), ""
    for owner, bound in parts:
        nats.index_add_(0, owner, bound.nats)
        variance.index_add_(0, owner, bound.errors.square())
        tokens.index_add_(0, owner, bound.tokens)
        law = bound.law
    return Bound(nats, variance.sqrt(), tokens, characters.double(), law)
