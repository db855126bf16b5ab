"""The items, in the order of the paper's story.

Each module has TITLE, PAPER (where it is there), run(settings), which measures, and claims(tables), which says what
follows: a pure function, so that stored numbers are judged again by the rule of today.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from unmask.reproduce.item import ItemResult, Settings

ITEMS = (
    "beta_densities",
    "sampling_time",
    "cached_calls",
    "published_steps",
    "largest_gumbel",
    "precisions",
    "after_the_fix",
    "temperature",
    "training_variants",
    "variance_reduction",
    "high_order",
    "first_hitting_precision",
    "prioritised_unmasking",
    "efficiency",
    "generated_text",
    "propositions",
)


def module(name: str) -> ModuleType:
    if name not in ITEMS:
        raise ValueError(f"there is no item {name!r}; unmask reproduce list names them: {', '.join(ITEMS)}")
    return importlib.import_module(f"unmask.reproduce.items.{name}")


def run(name: str, settings: Settings) -> ItemResult:
    """Compute an item; nothing is written."""
    result: ItemResult = module(name).run(settings)
    return result
