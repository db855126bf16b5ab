"""``unmask infill``: fill the blanks of a text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from unmask.cli import texts
from unmask.cli.command import Command
from unmask.cli.grid import typed
from unmask.cli.options import MODEL_HELP, guarded, short_warnings
from unmask.processes import Process
from unmask.text import particles as weighed
from unmask.text.requests import InfillRequest

TEXT_HELP = 'The text, for example "In the ____ God ____ the heaven"; - reads it from stdin'


@dataclass(frozen=True, kw_only=True)
class InfillOptions(texts.TextOptions):
    """Fill the blanks of a text. The rest of the text does not change.

    A run of underscores is a blank. With a BPE tokenizer, its number of tokens is its length in characters divided by
    the characters per token of the training data (see unmask models; 4 if unknown), rounded, and at least one. With
    all other tokenizers each underscore is one token.

    A model that writes from left to right (stories, kjv-ar, molecules) draws 32 continuations of it at once, called
    particles (128 for molecules), and weighs them by how likely the text after the blank is; --particles changes their
    number.

    A puzzle (sudoku, sudoku9) may be typed as a grid, from stdin: spaces, lines and frames between its cells are left
    out, and an empty cell is _, . or 0.
    """

    model: str
    text: str
    proposal: str | None = None
    """A masked model with the same tokenizer, which sees both sides of a blank: it draws the particles, 16 by default,
    and the model weighs them (docs/infilling.md)."""
    mask_character: str | None = None
    """A character that stands for one token; underscores are then plain text."""

    def record(self, process: Process) -> dict[str, Any]:
        """How the texts were made, with the proposal if there was one."""
        proposed = {} if self.proposal is None else {"sampler": "proposal", "proposal": self.proposal}
        return super().record(process) | proposed


COMMAND = Command(
    "infill",
    InfillOptions,
    {"model": MODEL_HELP, "text": TEXT_HELP},
    (
        'unmask infill stories "Once upon a time there was a ________ who could not ________."',
        'unmask infill kjv "And God said, ____________" --number 4 --seed 2',
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask infill``."""
    given = COMMAND.parsed(texts.read(arguments))
    chosen = texts.seeded(given)

    def run() -> None:
        _infill(chosen)
        texts.tell_seed(given, chosen)

    return guarded("infill", run)


def _infill(chosen: InfillOptions) -> None:
    # The newline that ends stdin is added again when the text is printed.
    text = sys.stdin.read().removesuffix("\n") if chosen.text == "-" else chosen.text
    model = texts.model_for(chosen, chosen.model)
    text = typed(text, model)
    proposal = None if chosen.proposal is None else texts.model_for(chosen, chosen.proposal)
    how: dict[str, Any] = {"mask_character": chosen.mask_character, "proposal": proposal, **chosen.sampling()}
    how |= texts.draft_for(chosen, model)
    asked = InfillRequest(text, chosen.number, **how)
    each = weighed.particles(model, asked) if proposal is None else weighed.check_proposal(model, asked)
    number = chosen.in_all(each)
    chosen = chosen if each is None else replace(chosen, particles=each)
    with short_warnings(), texts.shown(model, model.rows.blanks(text, chosen.mask_character).ids, number) as callback:
        sample = model.infill(text, chosen.number, callback=callback, **how)
    texts.write(chosen, model, sample)
