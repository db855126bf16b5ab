"""Text with blanks: visible text becomes tokens that never change, blanks become masked positions.

A blank is a run of underscores, whose length determines its number of tokens. With a mask character chosen by the user,
each such character is one token, and underscores are text. Every visible piece is tokenized separately.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from unmask.tokenizers.tokenizer import BPE, Tokenizer

if TYPE_CHECKING:
    from unmask.tokenizers.external import ExternalTokenizer

BLANK = "_"
# Three underscores or more, or fewer that touch no word: __init__ and snake_case are words.
APART = re.compile(r"(_{3,}|(?<![^\W_])(?<!_)_{1,2}(?![^\W]))")
HOLE = "\ue000"  # a private-use character that does not occur in texts


@dataclass(frozen=True)
class Blanks:
    """A text with blanks, as ids."""

    ids: tuple[int, ...]  # with the mask id in the blanks
    visible: tuple[str, ...]  # the text before, between and after the blanks
    holes: tuple[tuple[int, int], ...]  # where each begins and ends in ids
    spaced: tuple[int, ...]  # positions in blanks whose token must begin with a space
    smiles: bool = False  # a SMILES whose tokens are SELFIES: its text is that of the whole molecule

    @property
    def begins(self) -> bool:
        """Whether the text begins with a blank."""
        return not self.visible[0] and bool(self.holes) and self.holes[0][0] not in self.spaced

    def up_to(self, end: int) -> Blanks:
        """The beginning of it with this many ids, and the text between them."""
        holes = tuple((start, min(stop, end)) for start, stop in self.holes if start < end)
        after = self.holes[len(holes)][0] if len(holes) < len(self.holes) else len(self.ids)
        visible = (*self.visible[: len(holes)], self.visible[len(holes)] if after <= end else "")
        return Blanks(self.ids[:end], visible, holes, tuple(i for i in self.spaced if i < end))

    def filled(self, ids: Sequence[int], decode: Callable[[Sequence[int]], str], *, apart: bool = False) -> str:
        """The text with the blanks filled from ids, and the rest unchanged; ``apart`` separates numbers by spaces."""
        text = self.visible[0]
        for (start, end), after in zip(self.holes, self.visible[1:], strict=True):
            for part in (decode(ids[start:end]), after):
                joins = apart and text and part and not (text[-1].isspace() or part[0].isspace())
                text += f" {part}" if joins else part
        return text


def split(
    text: str, *, characters_per_token: float, mask_character: str | None = None, words: bool = False
) -> list[str | int]:
    """Visible text and numbers of tokens alternately, text first and last.

    A run of k underscores is k / characters_per_token tokens, rounded, and at least one. With a mask character, a run
    of k of them is k tokens. Where tokens are ``words``, one or two underscores that touch a word belong to it.
    """
    if mask_character is not None and len(mask_character) != 1:
        raise ValueError(f"mask_character must be one character, got {mask_character!r}")
    blank = mask_character or BLANK
    pieces: list[str | int] = []
    in_words = words and mask_character is None
    for i, piece in enumerate(re.split(APART if in_words else f"({re.escape(blank)}+)", text)):
        per_token = 1.0 if mask_character else characters_per_token
        pieces.append(max(1, round(len(piece) / per_token)) if i % 2 else piece)
    inside = sorted(set(re.findall(r"\w*_\w*", "".join(str(one) for one in pieces[::2])))) if in_words else []
    note = (
        f"the underscores of {', '.join(inside[:3])} are text; --mask-character # makes # the blank" if inside else ""
    )
    if len(pieces) == 1:
        says = f"the text has no blank: write one as {blank * (1 if mask_character else 4)}"
        raise ValueError(f"{says} ({note})" if note else says)
    if note:
        warnings.warn(note, stacklevel=2)
    return pieces


def with_mask_token(text: str, mask_token: str | None) -> tuple[str, str | None]:
    """A text with blanks written as ``[MASK]`` or ``<mask>``, rewritten with a mask character; others unchanged."""
    if mask_token is None or mask_token not in text:
        return text, None
    return text.replace(mask_token, HOLE), HOLE


def join(
    pieces: Sequence[str | int],
    tokenizer: Tokenizer | ExternalTokenizer,
    mask_id: int,
    *,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
) -> Blanks:
    """Tokenize each visible piece and put masks between them; ``before`` and ``after`` are ids around the text.

    A BPE's words include their leading space. So a space before a blank moves into the blank, whose first token must
    begin with one: a separate space followed by a word without one does not occur in training text.
    """
    ids, visible, holes, spaced = list(before), [], [], []
    for i in range(0, len(pieces), 2):
        text, count = str(pieces[i]), int(pieces[i + 1]) if i + 1 < len(pieces) else 0
        takes_space = count > 0 and tokenizer.kind in BPE and text.endswith(" ")
        visible.append(text[:-1] if takes_space else text)
        ids += tokenizer.encode(visible[-1])
        if i + 1 < len(pieces):
            spaced += [len(ids)] if takes_space else []
            holes.append((len(ids), len(ids) + count))
            ids += [mask_id] * count
    return Blanks((*ids, *after), tuple(visible), tuple(holes), tuple(spaced))


def spaces(tokenizer: Tokenizer | ExternalTokenizer, vocab_size: int) -> Tensor:
    """Which ids begin with a space: bool [vocab_size]."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size), mask="")
    begins = torch.tensor([piece.startswith(b" ") for piece in pieces])
    return functional.pad(begins, (0, vocab_size - len(begins)))
