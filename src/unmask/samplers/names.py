"""The names that plans, predictors and draws have wherever they are asked for by name."""

from __future__ import annotations

import torch

from unmask import draw as draws
from unmask import plan as plans
from unmask import predict as predictors
from unmask import theory
from unmask.draw import Draw
from unmask.plan import Planner
from unmask.predict import Predictor

PLANS: dict[str, Planner] = {
    "first-hitting": plans.first_hitting, "parallel": plans.parallel, "ancestral": plans.ancestral,
}  # fmt: skip
PREDICTORS: dict[str, Predictor] = {
    "1": predictors.first_order, "extrapolate": predictors.extrapolate, "correct": predictors.correct,
}  # fmt: skip
DRAWS: dict[str, Draw] = {
    "inverse-cdf": draws.inverse_cdf, "exponential-race": draws.exponential_race,
    "gumbel-float64": draws.gumbel(torch.float64), "gumbel-float32": draws.gumbel(torch.float32),
    "truncated": draws.truncated(theory.maximum_gumbel("float32")),
}  # fmt: skip


def predictor(name: str, steps: int | None) -> Predictor:
    """A predictor by its name; auto is the paper's rule, by the number of steps."""
    if name == "auto":
        return predictors.auto(steps) if steps else predictors.first_order
    if name not in PREDICTORS:
        raise ValueError(f"order must be one of {', '.join((*PREDICTORS, 'auto'))}, got {name!r}")
    return PREDICTORS[name]
