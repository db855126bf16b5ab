"""The items, in the order of the paper.

Each module has TITLE, PAPER (its place in the paper), run(settings), which measures, and claims(tables), a pure
function that draws conclusions, so that stored numbers can be judged again by the current rule.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from reproduction.item import ItemResult, Settings

ITEMS = (
    "beta_densities",
    "sampling_time",
    "cached_calls",
    "published_steps",
    "largest_gumbel",
    "precisions",
    "after_the_fix",
    "temperature",
    "known_truth",
    "training_variants",
    "variance_reduction",
    "high_order",
    "first_hitting_precision",
    "prioritised_unmasking",
    "efficiency",
    "generated_text",
    "propositions",
    "masked_against_uniform",
)
WITH_SUBJECTS = (
    *("published_steps", "precisions", "after_the_fix", "temperature"),
    *("high_order", "first_hitting_precision", "generated_text"),
)
"""The items that sample and judge several subjects, with a table of cells."""


def module(name: str) -> ModuleType:
    if name not in ITEMS:
        raise ValueError(f"there is no item {name!r}; python -m reproduction list names them: {', '.join(ITEMS)}")
    return importlib.import_module(f"reproduction.items.{name}")


def run(name: str, settings: Settings) -> ItemResult:
    """Compute an item; nothing is written."""
    result: ItemResult = module(name).run(settings)
    return result
