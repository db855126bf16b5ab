"""The guide of a request: words that its texts contain, and a regular expression that they match.

An automaton can be far larger than its pattern, so a server limits what it builds: the words and their letters, the
pattern, the time, and the number of states.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache

import torch

from unmask.errors import OptionError
from unmask.guide import Call
from unmask.guides.automaton import Matching
from unmask.sampler import packed
from unmask.text.constraints import constraint
from unmask.text.model import Model

MOST_SECONDS = 2.0
MOST_STATES = 256
COUNT = "import interegular, sys; print(len(interegular.parse_pattern(sys.argv[1]).to_fsm().reduce().states))"


def guide_of(model: Model, ids: Sequence[int], pattern: str | None, contains: Sequence[str]) -> Matching:
    """The guide to such texts. An OptionError if it would be too large, or no text on this canvas can match."""
    what = " and ".join(name for name, given in (("pattern", pattern), ("contains", contains)) if given)
    option = what.split()[0]
    if model.process.continues:
        raise OptionError(
            option,
            f"{what}: {model.name} computes its next positions alone, and this server looks ahead with masked models "
            "only; unmask sample --contains does it for this one",
        )
    if pattern is not None:
        _check_size(pattern, MOST_SECONDS)
    try:
        guide = constraint(model, pattern, contains)
    except ValueError as error:
        raise OptionError(option, str(error)) from error
    except Exception as error:  # a third-party parser may fail in any way
        raise OptionError("pattern", f"pattern is not understood ({type(error).__name__})") from error
    _check_states(guide.automaton.states, what)
    if not _possible(model, guide, ids):
        raise OptionError(option, f"no text of {len(ids)} tokens can match this {what}")
    return guide


@lru_cache(maxsize=64)
def _check_size(pattern: str, seconds: float) -> None:
    """Refuse a pattern whose automaton is too large, which is counted in a process that can be ended."""
    try:
        counted = subprocess.run(
            [sys.executable, "-c", COUNT, pattern], capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        says = f"the automaton of this pattern takes more than {seconds:g} s to build; ask for something simpler"
        raise OptionError("pattern", says) from None
    if counted.returncode == 0:  # otherwise building it says what is wrong
        _check_states(int(counted.stdout), "pattern")


def _check_states(states: int, what: str) -> None:
    if states > MOST_STATES:
        says = f"{what}: its automaton has {states:,} states; this server takes at most {MOST_STATES}: ask for less"
        raise OptionError(what.split()[0], says)


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
