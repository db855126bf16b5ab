"""A context and its continuation as ids on a canvas, framed like the training sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.model import Model
from unmask.tokenizers.external import ExternalTokenizer
from unmask.tokenizers.tokenizer import BPE


@dataclass(frozen=True)
class Page:
    """Canvases of ``length`` tokens for a model, each with a context, its continuation, and masks up to the end."""

    model: Model
    length: int

    def __post_init__(self) -> None:
        if self.room < 1:
            raise ValueError(f"length={self.length} has no room for text between the eos of a training sequence")

    @property
    def before(self) -> list[int]:
        """Wrapped sequences begin with eos; a row begins with its text; other tokenizers have their own frame."""
        if isinstance(self.model.tokenizer, ExternalTokenizer):
            return list(self.model.tokenizer.frame[0])
        eos = self.model.tokenizer.eos_id
        return [] if self.model.layout != "wrapped" or eos is None else [eos]

    @property
    def after(self) -> list[int]:
        """Wrapped sequences end with eos, too. A left-to-right model does not see it."""
        if isinstance(self.model.tokenizer, ExternalTokenizer):
            return list(self.model.tokenizer.frame[1])
        return [] if self.model.process.from_left else self.before

    @property
    def room(self) -> int:
        """The number of text tokens that fit on a canvas."""
        return self.length - len(self.before) - len(self.after)

    def canvases(self, parts: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
        """int64 [B, L] for each (context, continuation), and where the continuation is: bool [B, L]."""
        canvas = torch.full((len(parts), self.length), self.model.denoiser.mask_id, dtype=torch.int64)
        asked = torch.zeros_like(canvas, dtype=torch.bool)
        for row, where, (context, continuation) in zip(canvas, asked, parts, strict=True):
            ids = [*self.before, *context, *continuation]
            row[: len(ids)] = torch.tensor(ids, dtype=torch.int64)
            row[self.length - len(self.after) :] = torch.tensor(self.after, dtype=torch.int64)
            where[len(ids) - len(continuation) : len(ids)] = True
        return canvas, asked


def encode_pair(model: Model, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """The ids of both, divided where the context's ids end.

    A BPE's words include their leading space, so spaces at the end of the context move to the continuation. If the ids
    of the joined text do not begin with the context's, each is encoded separately.
    """
    bare, spaces = without_last_spaces(model, context)
    alone = model.tokenizer.encode(bare)
    whole = model.tokenizer.encode(context + continuation)
    if whole[: len(alone)] == alone:
        return alone, whole[len(alone) :]
    return alone, model.tokenizer.encode(spaces + continuation)


def without_last_spaces(model: Model, context: str) -> tuple[str, str]:
    """The context, and the spaces at its end that belong to a BPE's next token; none for other tokenizers."""
    bare = context.rstrip(" ") if model.tokenizer.kind in BPE else context
    return bare, context[len(bare) :]


def windows(context: list[int], continuation: list[int], room: int) -> list[tuple[list[int], list[int]]]:
    """(context, scored part) within ``room`` tokens, such that every token of the continuation is scored once.

    A continuation that fits is scored whole, and the context cut at its beginning. One that does not fit is scored in
    parts of half the room, each given the tokens before it.
    """
    whole, size = context + continuation, len(continuation) if len(continuation) <= room else max(room // 2, 1)
    parts = []
    for start in range(len(context), len(whole), max(size, 1)):
        end = min(start + size, len(whole))
        parts.append((whole[max(end - room, 0) : start], whole[start:end]))
    return parts
