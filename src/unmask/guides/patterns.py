"""Regular expressions over a text as automata over token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from unmask.extras import needed
from unmask.guides.automaton import Automaton, Chain, Matching
from unmask.guides.characters import characters, characters_within


def matching(
    pattern: str | Automaton,
    pieces: Sequence[bytes] | None = None,
    *,
    end: int | None = None,
    chain: Chain | None = None,
) -> Matching:
    """Guide to sequences that an automaton accepts, or whose whole text matches a regular expression.

    Args:
        pattern: An Automaton over ids, or a regular expression in Python's syntax, which needs the interegular package.
        pieces: For a regular expression, the text of each id in UTF-8; b"" writes nothing. An id that is only part of a
            character is never drawn.
        end: The id after which nothing counts.
        chain: A hidden Markov chain to look ahead with, instead of the network's predictions.
    """
    if isinstance(pattern, str):
        if pieces is None:
            raise ValueError("a regular expression needs pieces: the bytes that each token id writes")
        pattern = of_text(pattern, pieces, end=end)
    elif pieces is not None or end is not None:
        raise ValueError("pieces and end go with a regular expression: an Automaton reads ids")
    return Matching(pattern, chain)


@dataclass(frozen=True)
class Bounds:
    """What the automaton of a pattern may cost."""

    seconds: float
    states: int

    def check(self, states: int, what: str) -> None:
        if states > self.states:
            says = f"{what}: its automaton has {states:,} states; the limit is {self.states:,}"
            raise ValueError(says)


def of_text(
    pattern: str,
    pieces: Sequence[bytes],
    *,
    end: int | None = None,
    bounds: Bounds | None = None,
    what: str = "pattern",
) -> Automaton:
    """The automaton over ids for a regular expression over their text; what: its name in messages."""
    needed("interegular", "regular expressions need the interegular package", "regex")
    if bounds is None:
        initial, finals, table = characters(pattern)
    else:
        initial, finals, table = characters_within(pattern, bounds.seconds, what)
        bounds.check(len(table), what)
    number = {state: k for k, state in enumerate(sorted(table, key=lambda state: state != initial))}
    dead, ended = len(number), len(number) + 1  # ended, ended + 1: after the end, accepted or not
    moves = np.full((len(number) + 3, len(pieces)), dead, dtype=np.int64)
    step = {character: np.full(len(number) + 1, dead) for character in {None}.union(*table.values())}
    for state, after in table.items():
        for character, to in after.items():
            step[character][number[state]] = number[to] if to is not None else dead
    live = np.arange(len(number) + 1)
    for v, piece in enumerate(pieces):
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            continue
        q = live
        for character in text:
            q = step.get(character, step[None])[q]
        moves[: len(number) + 1, v] = q
    accepts = np.zeros(len(moves), dtype=bool)
    accepts[[number[one] for one in finals]] = True
    accepts[ended] = True
    moves[ended], moves[ended + 1] = ended, ended + 1
    if end is not None:
        moves[:ended, end] = np.where(accepts[:ended], ended, ended + 1)
    return Automaton(torch.from_numpy(moves), torch.from_numpy(accepts))
