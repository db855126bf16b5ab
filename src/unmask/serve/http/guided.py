"""The guide of a request: words that its texts contain, a regular expression that they match, or a JSON Schema.

An automaton can be far larger than its pattern, so a server limits what it builds: the words and their letters, the
pattern, the time, and the number of states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from unmask.errors import OptionError
from unmask.guides.automaton import Matching
from unmask.guides.patterns import Bounds
from unmask.serve.engine.work import Served
from unmask.text.constraints import constraint, described, require_possible

MOST_SECONDS = 2.0
MOST_STATES = 256


def guide_of(served: Served, ids: Sequence[int], pattern: str | None, contains: Sequence[str]) -> Matching:
    """The guide to such texts. An OptionError if it would be too large, or no text on this canvas can match."""
    what = " and ".join(name for name, given in (("pattern", pattern), ("contains", contains)) if given)
    option, model, bounds = what.split()[0], served.model, Bounds(MOST_SECONDS, MOST_STATES)
    try:
        guide = constraint(model.rows, pattern, contains, bounds=bounds, chain=model.look_ahead)
        bounds.check(guide.automaton.states, what)
    except ValueError as error:
        raise OptionError(option, str(error)) from error
    if not guide.possible(torch.tensor(ids, dtype=torch.int64), model.denoiser.mask_id):
        raise OptionError(option, f"no text of {len(ids)} tokens can match this {what}")
    return guide


def schema_guide(served: Served, ids: Sequence[int], schema: Mapping[str, Any]) -> Matching:
    """The guide to completions, from the first masked position on, that are JSON and satisfy the schema."""
    model, bounds = served.model, Bounds(MOST_SECONDS, MOST_STATES)
    mask_id = model.denoiser.mask_id
    try:
        guide = described(model.rows, schema, list(ids).index(mask_id), bounds=bounds, chain=model.look_ahead)
        require_possible(guide, torch.tensor(ids, dtype=torch.int64), mask_id)
    except OptionError as error:
        raise OptionError("response_format", str(error)) from error
    return guide
