"""The guide of a request: words that its texts contain, and a regular expression that they match.

An automaton can be far larger than its pattern, so a server limits what it builds: the words and their letters, the
pattern, the time, and the number of states.
"""

from __future__ import annotations

import sys
import time as clock
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from unmask.guide import Call
from unmask.guides.automaton import Matching
from unmask.sampler import packed
from unmask.text.constraints import constraint
from unmask.text.model import Model

MOST_SECONDS = 2.0
MOST_STATES = 256


def guide_of(model: Model, ids: Sequence[int], pattern: str | None, contains: Sequence[str]) -> Matching:
    """The guide to such texts. ValueError if it would be too large, or no text on this canvas can match."""
    if model.process.continues:
        raise ValueError(
            f"contains, pattern: {model.name} answers for its next positions alone, and this server looks ahead with "
            "masked models only; unmask sample --contains does it for this one"
        )
    try:
        with _within(MOST_SECONDS):
            guide = constraint(model, pattern, contains)
    except ValueError as error:
        raise ValueError(f"pattern: {str(error).removeprefix('pattern: ')}") from error
    except Exception as error:  # a third-party parser may fail in any way
        raise ValueError(f"pattern: it is not understood ({type(error).__name__})") from error
    what = " and ".join(name for name, given in (("pattern", pattern), ("contains", contains)) if given)
    if guide.automaton.states > MOST_STATES:
        states = f"{guide.automaton.states:,} states"
        raise ValueError(f"{what}: its automaton has {states}, this server takes at most {MOST_STATES}; ask for less")
    if not _possible(model, guide, ids):
        raise ValueError(f"{what}: no text on this canvas of {len(ids)} tokens is such a one")
    return guide


def _possible(model: Model, guide: Matching, ids: Sequence[int]) -> bool:
    """Whether some text is accepted, if every token may fill every masked position."""
    mask_id, size = model.denoiser.mask_id, model.denoiser.vocab_size
    x = torch.tensor([ids], dtype=torch.int64)
    holes = x == mask_id
    if not bool(holes.any()):
        return bool(guide.automaton.accepted(x).all())
    log_mu = torch.zeros(int(holes.sum()), size, dtype=torch.float64) - torch.tensor(size).log()
    weigh = guide(Call(x, packed(holes), log_mu, torch.zeros(1, dtype=torch.float64), ~holes, mask_id))
    return bool((weigh(torch.zeros(1, dtype=torch.int64), x, holes.long().argmax(1), None) > -torch.inf).any())


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Stop after this time: the thread's trace function checks the clock in every call."""
    end, before = clock.monotonic() + seconds, sys.gettrace()

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        if clock.monotonic() > end:
            raise ValueError(f"pattern: its automaton is not made in {seconds:g} s; ask for something simpler")

    sys.settrace(watch)
    try:
        yield
    finally:
        sys.settrace(before)
