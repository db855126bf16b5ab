"""What can be asked of ``unmask sample``, ``unmask infill`` and ``unmask models``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, Literal

import torch

from unmask import draw as draws
from unmask import plan as plans
from unmask import predict as predictors
from unmask import published, theory
from unmask.plan import Planner
from unmask.predict import Predictor
from unmask.sample import Sample

SAMPLERS: dict[str, Planner] = {
    "first-hitting": plans.first_hitting, "parallel": plans.parallel, "ancestral": plans.ancestral,
}  # fmt: skip
PUBLISHED: dict[str, Callable[..., Sample]] = {
    "published-ancestral": published.coupled_ancestral, "published-euler": published.sedd_euler,
    "published-tweedie": published.sedd_tweedie,
}  # fmt: skip
ORDERS: dict[str, Predictor] = {
    "1": predictors.first_order, "extrapolate": predictors.extrapolate, "correct": predictors.correct,
}  # fmt: skip
DRAWS: dict[str, draws.Draw] = {
    "inverse-cdf": draws.inverse_cdf, "exponential-race": draws.exponential_race,
    "gumbel-float64": draws.gumbel(torch.float64), "gumbel-float32": draws.gumbel(torch.float32),
    "truncated": draws.truncated(theory.maximum_gumbel("float32")),
}  # fmt: skip
Sampler = Literal[
    "first-hitting", "parallel", "ancestral", "published-ancestral", "published-euler", "published-tweedie"
]  # fmt: skip
DEFAULT_MODEL = "kjv"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What sample and infill have in common."""

    sampler: Sampler | None = None
    """Which positions are unmasked when. By default parallel with --steps, and first-hitting, exact, without. The
    published ones draw token and mask together in float32, for comparison: they have the fault."""
    steps: int | None = None
    """Steps of parallel and ancestral sampling: at most so many network calls per sequence."""
    order: Literal["1", "extrapolate", "correct", "auto"] = "1"
    """1, or one of the second-order variants; auto is the paper's rule: extrapolate up to 128 steps, correct beyond."""
    draw: Literal["inverse-cdf", "exponential-race", "gumbel-float64", "gumbel-float32", "truncated"] = "inverse-cdf"
    """How tokens are drawn. The last two have the float32 fault, to be studied."""
    temperature: float = 1.0
    """Below 1 the likelier tokens come more often; 0 takes the likeliest."""
    top_k: int | None = None
    """Draw from the k likeliest tokens."""
    top_p: float | None = None
    """Draw from the fewest tokens of probability p."""
    number: int = 1
    """How many sequences."""
    batch: int | None = None
    """At most so many sequences per network call. By default all."""
    seed: int = 0
    """Sequence i of a seed is always the same."""
    device: str = "auto"
    """cpu, cuda, cuda:1, xpu, ...; auto takes an accelerator that has float64, if there is one."""
    json: bool = False
    """One JSON line per sequence: text, tokens, seed, index, nfe, ncs, model and the trace of every call."""
    output: str | None = None
    """Write there instead of to stdout; the file appears whole or not at all."""

    def chosen(self) -> dict[str, Any]:
        """The keyword arguments of ``Model.sample``: names become what they stand for, here and nowhere else."""
        if self.sampler in PUBLISHED:
            return self._as_published(self.sampler)
        predict = ORDERS.get(self.order)
        if self.order == "auto":
            predict = predictors.auto(self.steps) if self.steps else predictors.first_order
        return {
            "plan": SAMPLERS[self.sampler] if self.sampler else None, "steps": self.steps,
            "predict": None if predict is predictors.first_order else predict, "draw": DRAWS[self.draw],
            "temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p, "seed": self.seed,
            "batch": self.batch,
        }  # fmt: skip

    def _as_published(self, name: str) -> dict[str, Any]:
        if self.steps is None:
            raise ValueError(f"--sampler {name} needs --steps")
        for other in ("order", "draw", "temperature", "top_k", "top_p"):
            if getattr(self, other) != getattr(Options, other):
                raise ValueError(f"--sampler {name} is run as published: it takes no --{other.replace('_', '-')}")
        return {"sampler": PUBLISHED[name], "steps": self.steps, "seed": self.seed, "batch": self.batch}


@dataclass(frozen=True, kw_only=True)
class SampleOptions(Options):
    """Sample from a model. Texts go to stdout, one after the other; wrapped texts have an empty line between them."""

    model: str | None = None
    prompt: str = ""
    """How every text begins."""
    length: int | None = None
    """Tokens per sequence. By default that of the training sequences."""
    watch: str | None = None
    """Replay what --json saved in this file, or on stdin (-), instead of sampling."""


@dataclass(frozen=True, kw_only=True)
class InfillOptions(Options):
    """Fill the blanks of a text; the rest of it is not changed.

    A run of underscores is a blank. For a BPE tokenizer its length in characters, divided by the characters per token
    of the training data (unmask models tells them; 4 if unknown) and rounded, is its number of tokens, at least one.
    For all other tokenizers each underscore is one token.
    """

    model: str
    text: str
    mask_character: str | None = None
    """Each such character is a blank of one token instead, and underscores are text."""


@dataclass(frozen=True, kw_only=True)
class ModelsOptions:
    """List the models that can be called by name, and say how to add one."""

    json: bool = False
    """One JSON line per model."""


MODEL_HELP = "A name that unmask models lists, a run's folder, or ORG/NAME on the Hugging Face hub"
TEXT_HELP = 'The text, for example "In the ____ God ____ the heaven"; - reads it from stdin'


def parsed(cls: type[Any], arguments: Sequence[str], verb: str, **positional: str) -> Any:
    """The options from the command line. tyro leaves with 2 where they are wrong, and with 0 after --help."""
    try:
        import tyro
    except ImportError as error:
        raise ModuleNotFoundError("the command line needs tyro: pip install 'unmask[cli]'", name="tyro") from error
    fields: list[Any] = []
    for name, text in positional.items():
        optional = cls is SampleOptions
        about = tyro.conf.arg(help=text, metavar=f"[{name.upper()}]" if optional else name.upper())
        kind: Any = Annotated[str | None if optional else str, tyro.conf.Positional, about]
        fields.append((name, kind, field(default=None)) if optional else (name, kind))
    Parsed: Any = make_dataclass("Parsed", fields, bases=(cls,), frozen=True, kw_only=True)
    return tyro.cli(
        Parsed, args=list(arguments), prog=f"unmask {verb}", description=inspect.cleandoc(cls.__doc__ or ""),
        config=(tyro.conf.FlagCreatePairsOff,),
    )  # fmt: skip
