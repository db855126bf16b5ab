"""Constraints on a model's texts, as guides: a regular expression, words that must occur, and a JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unmask.errors import OptionError
from unmask.guides.automaton import Matching
from unmask.guides.patterns import Bounds, of_text
from unmask.guides.schema import ANY_OBJECT, expression
from unmask.networks.oracles.hidden_markov import HiddenMarkovOracle
from unmask.text.rows import TextRows

NEVER = b"\xff"  # no text has this byte
BOUNDS = Bounds(seconds=30.0, states=4096)  # of a schema
SECONDS_OF_ANY = 60.0  # ANY_OBJECT takes a few seconds, once


def constraint(
    rows: TextRows,
    pattern: str | None = None,
    contains: Sequence[str] = (),
    *,
    bounds: Bounds | None = None,
    chain: HiddenMarkovOracle | None = None,
) -> Matching:
    """The guide to texts that match a regular expression as a whole, and contain some words.

    The constraint is on the text of the canvas, in the tokenizer's notation: for a row up to its first eos; in wrapped
    text eos is a newline. Words match as substrings: "ark" is in "dark", and " ark " is not. bounds: what an automaton
    may cost. chain: ``Model.look_ahead``.
    """
    if isinstance(contains, str) or not all(isinstance(word, str) and word for word in contains):
        raise ValueError(f"contains must be a list of words, got {contains!r}")
    patterns = [*([] if pattern is None else [pattern]), *(f"(?s:.*){re.escape(word)}(?s:.*)" for word in contains)]
    if not patterns:
        raise ValueError("give a pattern, or words that the text contains")
    tokenizer, end = rows.tokenizer, None
    pieces = tokenizer.pieces(range(tokenizer.vocab_size), mask="")
    if tokenizer.eos_id is not None and tokenizer.frame is None:
        end = tokenizer.eos_id if rows.layout == "rows" else None
        pieces[tokenizer.eos_id] = b"" if rows.layout == "rows" else b"\n"
    pieces += [NEVER] * (rows.vocab_size - len(pieces))
    automata = [of_text(one, pieces[: rows.vocab_size], end=end, bounds=bounds) for one in patterns]
    both = automata[0]
    for one in automata[1:]:
        both = both & one
    return Matching(both, chain)


def described(
    rows: TextRows,
    schema: Mapping[str, Any],
    begin: int,
    *,
    allowed: Mapping[int, Tensor] | None = None,
    bounds: Bounds = BOUNDS,
    chain: HiddenMarkovOracle | None = None,
) -> Matching:
    """The guide to texts that, from the position ``begin`` to their end, are JSON that satisfies the schema.

    Behind an end anything may follow: ``ended`` cuts it off. allowed: the only ids at some masked positions.
    """
    pattern, tokenizer = expression(schema), rows.tokenizer
    pieces = [piece or NEVER for piece in tokenizer.pieces(range(tokenizer.vocab_size), mask="")]
    pieces += [NEVER] * (rows.vocab_size - len(pieces))
    bounds = replace(bounds, seconds=SECONDS_OF_ANY) if schema == ANY_OBJECT else bounds
    try:
        automaton = of_text(pattern, pieces[: rows.vocab_size], end=tokenizer.eos_id, bounds=bounds, what="schema")
    except ValueError as error:
        raise OptionError("schema", str(error)) from error
    return Matching(automaton, chain, begin, allowed or {})


def require_possible(guide: Matching, canvas: Tensor, mask_id: int) -> None:
    """Refuse a canvas [L] on which no text can satisfy the schema."""
    if not guide.possible(canvas, mask_id):
        says = f"no text of {len(canvas)} tokens can satisfy this schema: take more tokens"
        raise OptionError("schema", f"{says}, if the vocabulary has all its characters")


def ended(tokens: Tensor, begin: int, end: int | None) -> Tensor:
    """The tokens [B, L], with the end behind the first end from the position ``begin`` on."""
    if end is None:
        return tokens
    ends = tokens == end
    ends[:, :begin] = False
    return torch.where(ends.long().cumsum(1) > 0, end, tokens)
