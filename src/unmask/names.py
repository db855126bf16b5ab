"""The names of samplers, predictors, decoding orders and draws: the only table from strings to objects.

The command line, the HTTP API, the frontier and the harness read their options into ``SamplerOptions``. ``arguments``
turns them into keyword arguments of ``Model.sample`` and of ``unmask.sample``; ``record`` says how samples were made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from unmask import draw as draws
from unmask import plan as plans
from unmask import predict as predictors
from unmask.draw import bounded
from unmask.errors import OptionError
from unmask.noise import Noise
from unmask.options import Numbers
from unmask.plan import Planner
from unmask.predict import Predictor
from unmask.processes import Process
from unmask.sampler import Sampler

PlanName = Literal["first-hitting", "parallel", "ancestral"]
PLANS: dict[str, Planner] = {
    "first-hitting": plans.first_hitting,
    "parallel": plans.parallel,
    "ancestral": plans.ancestral,
}
PublishedName = Literal["published-ancestral", "published-euler", "published-tweedie", "published-law"]
PUBLISHED: tuple[str, ...] = get_args(PublishedName)
UniformName = Literal["uniformised", "uniform-ancestral", "greedy-tail", "psi"]
UNIFORM: tuple[str, ...] = get_args(UniformName)
SamplerName = Literal[PlanName, PublishedName, UniformName]

PredictorName = Literal["first-order", "extrapolate", "correct", "auto"]
PREDICTORS: dict[str, Predictor] = {
    "first-order": predictors.first_order,
    "extrapolate": predictors.extrapolate,
    "correct": predictors.correct,
}

LEFT_TO_RIGHT, DREAM_ORIGIN = "left-to-right", "dream-origin"
DREAM_EPS = 1e-3  # the end of Dream's time grid
DecodingName = Literal[
    "confidence",
    "llada",
    "llada-random",
    "threshold",
    "threshold-dream",
    "dream",
    "dream-origin",
    "margin",
    "entropy",
    "entropy-bounded",
    "left-to-right",
    "remdm-cap",
    "remdm-rescale",
    "remdm-confidence",
]
DECODING: tuple[str, ...] = get_args(DecodingName)


def published(name: str) -> Sampler:
    """A published sampler by name. Sampling by a plan imports none of these modules, nor ``decoding``."""
    from unmask.samplers import law, published

    samplers: dict[str, Callable[[], Sampler]] = {
        "published-ancestral": published.Coupled,
        "published-euler": published.sedd_euler,
        "published-tweedie": published.sedd_tweedie,
        "published-law": law.CoupledByLaw,
    }
    sampler: Sampler = _named("sampler", name, samplers)()
    return sampler


def uniform(name: str, eta: float) -> Sampler:
    """A sampler of uniform-state models by name."""
    from unmask.samplers.uniform import Ancestral, Uniformised, psi

    made: dict[str, Callable[[], Sampler]] = {
        "uniformised": Uniformised,
        "uniform-ancestral": Ancestral,
        "greedy-tail": lambda: Ancestral(last="greedy"),
        "psi": lambda: psi(eta),
    }
    sampler: Sampler = _named("sampler", name, made)()
    return sampler


def decoding(name: str, *, block: int | None = None, **numbers: float) -> dict[str, Any]:
    """A decoding order by name, as ``sampler`` or ``plan``; numbers: its noise, gamma, eta or threshold."""
    from unmask.samplers import decoding, ranked, remasking

    orders: dict[str, Callable[..., Any]] = {
        "confidence": decoding.confidence,
        "llada": decoding.low_confidence,
        "llada-random": decoding.random_order,
        "threshold": decoding.threshold,
        "threshold-dream": partial(decoding.threshold, opening=True),
        "dream": decoding.dream,
        DREAM_ORIGIN: lambda: None,
        "margin": decoding.margin,
        "entropy": decoding.entropy,
        "entropy-bounded": decoding.entropy_bounded,
        LEFT_TO_RIGHT: lambda: None,
        "remdm-cap": remasking.remdm_cap,
        "remdm-rescale": remasking.remdm_rescale,
        "remdm-confidence": remasking.remdm_confidence,
    }
    make = _named("decoding", name, orders)
    for number in numbers:
        if number not in inspect.signature(make).parameters:
            raise OptionError(number, f"decoding {name} takes no {number}")
    order = make(**numbers)
    if block is not None:
        if not isinstance(order, ranked.Ranked):
            raise OptionError("block", f"decoding {name} takes no block")
        order = decoding.blocks(block, order)
    if name in (LEFT_TO_RIGHT, DREAM_ORIGIN):
        return {"plan": plans.left_to_right if name == LEFT_TO_RIGHT else partial(plans.ancestral, eps=DREAM_EPS)}
    return {"sampler": order}


def truncated(logits: Tensor, noise: Noise) -> Tensor:
    """Gumbel-max with Gumbels truncated at float32's largest: the paper's "64-bit + trunc"."""
    from unmask.theory import maximum_gumbel

    return draws.truncated(maximum_gumbel("float32"))(logits, noise)


DrawName = Literal["exponential-race", "inverse-cdf", "gumbel-float64", "gumbel-float32", "truncated"]
DRAWS: dict[str, draws.Draw] = {
    "exponential-race": draws.exponential_race,
    "inverse-cdf": draws.inverse_cdf,
    "gumbel-float64": draws.gumbel(torch.float64),
    "gumbel-float32": draws.gumbel(torch.float32),
    "truncated": truncated,
}
PRECISIONS = {
    "exponential-race": "float64",
    "inverse-cdf": "float64",
    "gumbel-float64": "float64",
    "gumbel-float32": "float32",
    "truncated": "float64, truncated as float32 is",
}
"""The precision of each draw, for whoever judges its samples."""


@dataclass(frozen=True, kw_only=True)
class SamplerOptions(Numbers):
    """Sampling options, as names and numbers."""

    sampler: SamplerName | None = None
    """Which positions are unmasked when. The default is parallel with --steps, and the exact first-hitting otherwise,
    or left to right for a left-to-right network with adapters (stories, molecules).
    The published samplers are for comparison: they draw token and mask together in float32 and are biased.
    published-law has the distribution of published-ancestral but does not draw every number, so it is much faster.
    Uniform-state models take uniformised (exact, the default), and with --steps uniform-ancestral, greedy-tail (DUO)
    and psi (DUO, with --eta)."""
    predictor: PredictorName = "first-order"
    """first-order, or one of the paper's second-order predictors, extrapolate (Algorithm 3) and correct (Algorithm 4),
    which need no extra network call. auto is the paper's rule: extrapolate up to 128 steps, correct beyond."""
    decoding: DecodingName | None = None
    """A decoding order instead of --sampler (docs/sampling.md). confidence (MaskGIT), llada and dream unmask the most
    confident tokens first; threshold (Fast-dLLM) all tokens above a probability, and threshold-dream the same after
    each block's first token; margin the largest margin; entropy the lowest entropy; entropy-bounded as many as an
    entropy bound allows; llada-random and dream-origin random positions; remdm random positions, and masks tokens
    again. remdm and dream-origin need --steps; entropy-bounded and threshold take none; the others unmask one token
    per call without --steps."""
    block: int | None = bounded(None, whole=True, ge=1)
    """With --decoding: the block size. Blocks are filled from left to right, each in the decoding order."""
    noise: float | None = bounded(None, ge=0)
    """The scale of the Gumbel noise on the scores: of confidence (4.5, decaying to 0), of margin and entropy (0)."""
    gamma: float | None = bounded(None, ge=0)
    """The bound of entropy-bounded, in nats (default 0.1): on the sum of entropies per call without the largest."""
    threshold: float | None = bounded(None, ge=0, le=1)
    """For threshold and threshold-dream: the smallest probability of an accepted token (default 0.9)."""
    eta: float | None = bounded(None, ge=0, le=1)
    """How much remdm masks again, from 0 to 1: the cap (default 0.02), or a fraction of the maximum (default 0.05 for
    rescale, 1 for confidence). With --sampler psi: the cap (default 0.1)."""
    draw: DrawName = "exponential-race"
    """How tokens are drawn. The last two have truncated Gumbel noise and are biased; they are for comparison."""

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of ``Model.sample`` and of ``unmask.sample``; defaults are left out."""
        if self.sampler in PUBLISHED:
            return self._as_published(self.sampler)
        how = {name: getattr(self, name) for name in self._given(*(one.name for one in fields(Numbers)))}
        if self._given("draw"):
            how["draw"] = _named("draw", self.draw, DRAWS)
        numbers = {name: getattr(self, name) for name in self._given("block", "noise", "gamma", "threshold", "eta")}
        if self.decoding is not None:
            for name in self._given("sampler", "predictor"):
                raise OptionError(name, f"decoding {self.decoding} chooses the positions itself: it takes no {name}")
            if self.ahead is not None and self.decoding != LEFT_TO_RIGHT:
                says = f"decoding {self.decoding} has an order that is not known in advance: it takes no ahead"
                raise OptionError("ahead", says)
            return decoding(self.decoding, **numbers) | how
        if self.sampler in UNIFORM:
            how["sampler"] = uniform(self.sampler, numbers.pop("eta", 0.1) if self.sampler == "psi" else 0.0)
        for name in numbers:
            raise OptionError(name, f"{name} is for a decoding order: {', '.join(DECODING)}")
        if self.sampler is not None and self.sampler not in UNIFORM:
            how["plan"] = _named("sampler", self.sampler, PLANS | dict.fromkeys(PUBLISHED))
        if self._given("predictor"):
            how["predict"] = predictor(self.predictor, self.steps)
        return how

    def record(self, process: Process) -> dict[str, Any]:
        """How the samples of a kind of network were made: the options chosen, and the precision of the draw."""
        if self.sampler in PUBLISHED:
            draw = "coupled race, by its law" if self.sampler == "published-law" else "coupled race"
            return {"sampler": self.sampler, "steps": self.steps, "draw": draw, "dtype": "float32"}
        how: dict[str, Any] = {"sampler": self.sampler or (process.in_steps if self.steps else process.order)}
        if process.chooses and self.decoding is not None:
            how = {}
        always = {"draw", "temperature", *(["predictor"] if process.chooses else [])}
        for one in fields(SamplerOptions):
            value = getattr(self, one.name)
            if one.name != "sampler" and (one.name in always or value != one.default):
                how[one.name] = value
        return how | {"dtype": PRECISIONS[self.draw]}

    def _given(self, *names: str) -> list[str]:
        """Which of these options differ from their defaults."""
        return [name for name in names if name in self.given]

    def _as_published(self, name: str) -> dict[str, Any]:
        if self.steps is None:
            raise OptionError("steps", f"sampler {name} needs steps")
        names = [one.name for one in fields(SamplerOptions) if one.name not in ("sampler", "steps")]
        for other in self._given(*names):
            raise OptionError(other, f"sampler {name} runs as published: it takes no {other}")
        return {"sampler": published(name), "steps": self.steps}


def predictor(name: str, steps: int | None) -> Predictor:
    """A predictor by name; auto is the paper's rule, by the number of steps."""
    auto = predictors.auto(steps) if steps else predictors.first_order
    chosen: Predictor = _named("predictor", name, PREDICTORS | {"auto": auto})
    return chosen


def _named(what: str, name: str, table: dict[str, Any]) -> Any:
    if name not in table:
        raise OptionError(what, f"{what} must be one of {', '.join(table)}, got {name!r}")
    return table[name]
