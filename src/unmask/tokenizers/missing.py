"""The tokenizer of a checkpoint without one: its ids can be sampled, and have no text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from unmask.tokenizers.external import ExternalTokenizer


@dataclass(frozen=True)
class NoTokenizer(ExternalTokenizer):
    """It knows how many ids there are. Whatever needs a text raises ValueError, which says what is missing."""

    ids: int = 0
    why: str = ""

    @property
    def vocab_size(self) -> int:
        return self.ids

    def encode(self, text: str) -> NoReturn:
        raise ValueError(self.why)

    def pieces(self, ids: Iterable[int], **how: Any) -> NoReturn:
        raise ValueError(self.why)

    def to_json(self) -> NoReturn:
        raise ValueError(self.why)


def without_tokenizer(ids: int, mask_id: int, why: str) -> NoTokenizer:
    """For a network of so many ids."""
    return NoTokenizer("bpe", (), mask_id if mask_id < ids else None, ids=ids, why=why)
