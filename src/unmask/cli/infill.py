"""``unmask infill``: fill the blanks of a text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from unmask.cli import texts
from unmask.cli.command import Command
from unmask.cli.options import MODEL_HELP, guarded, short_warnings

TEXT_HELP = 'The text, for example "In the ____ God ____ the heaven"; - reads it from stdin'


@dataclass(frozen=True, kw_only=True)
class InfillOptions(texts.TextOptions):
    """Fill the blanks of a text. The rest of the text does not change.

    A run of underscores is a blank. With a BPE tokenizer, its number of tokens is its length in characters divided by
    the characters per token of the training data (see unmask models; 4 if unknown), rounded, and at least one. With
    all other tokenizers each underscore is one token.
    """

    model: str
    text: str
    mask_character: str | None = None
    """A character that stands for one token; underscores are then plain text."""


COMMAND = Command(
    "infill",
    InfillOptions,
    {"model": MODEL_HELP, "text": TEXT_HELP},
    (
        'unmask infill kjv "In the ____ God ____ the heaven"',
        'unmask infill kjv "And God said, ____________" --number 4 --seed 2',
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask infill``."""
    chosen = COMMAND.parsed(texts.read(arguments))
    return guarded("infill", lambda: _infill(chosen))


def _infill(chosen: InfillOptions) -> None:
    # The newline that ends stdin is added again when the text is printed.
    text = sys.stdin.read().removesuffix("\n") if chosen.text == "-" else chosen.text
    model = texts.model_for(chosen, chosen.model)
    ids = model.blanks(text, chosen.mask_character).ids
    with short_warnings(), texts.shown(model, ids, chosen.number * chosen.particles) as callback:
        made = model.infill(
            text, chosen.number, mask_character=chosen.mask_character, callback=callback, **chosen.sampling()
        )
    texts.write(chosen, model, made)
