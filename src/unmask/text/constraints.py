"""Constraints on a model's texts, as guides: a regular expression, and words that must occur."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from unmask.guides.automaton import Matching, matching, of_text
from unmask.networks.oracles.hidden_markov import HiddenMarkovOracle

if TYPE_CHECKING:
    from unmask.text.model import Model

TEXTS = 8  # from which token frequencies are estimated
NEVER = b"\xff"  # no text has this byte


def constraint(model: Model, pattern: str | None = None, contains: Sequence[str] = ()) -> Matching:
    """The guide to texts that match a regular expression as a whole, and contain some words.

    The constraint is on the text of the canvas, in the tokenizer's notation: for a row up to its first eos; in wrapped
    text eos is a newline. Words match as substrings: "ark" is in "dark", and " ark " is not.
    """
    if isinstance(contains, str) or not all(isinstance(word, str) and word for word in contains):
        raise ValueError(f"contains must be a list of words, got {contains!r}")
    patterns = [*([] if pattern is None else [pattern]), *(f"(?s:.*){re.escape(word)}(?s:.*)" for word in contains)]
    if not patterns:
        raise ValueError("give a pattern, or words that the text contains")
    tokenizer, end = model.tokenizer, None
    pieces = tokenizer.pieces(range(tokenizer.vocab_size), mask="")
    if tokenizer.eos_id is not None and tokenizer.frame is None:
        end = tokenizer.eos_id if model.layout == "rows" else None
        pieces[tokenizer.eos_id] = b"" if model.layout == "rows" else b"\n"
    pieces += [NEVER] * (model.denoiser.vocab_size - len(pieces))
    automata = [of_text(one, pieces[: model.denoiser.vocab_size], end=end) for one in patterns]
    both = automata[0]
    for one in automata[1:]:
        both = both & one
    return matching(both, chain=_frequencies(model) if model.process.continues else None)


def _frequencies(model: Model) -> HiddenMarkovOracle:
    """Independent tokens, as often as in a few texts of the model, each id counted once more: what a network that
    answers for the next positions alone looks ahead with.
    """
    size = model.denoiser.vocab_size
    counts = torch.bincount(model.sample(TEXTS).tokens.flatten(), minlength=size)[:size].double() + 1
    one = torch.ones(1, 1, dtype=torch.float64)
    return HiddenMarkovOracle(one[0], one, (counts / counts.sum()).unsqueeze(0))
