"""What can be asked of ``unmask sample``, ``unmask infill`` and ``unmask models``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, Literal

import torch

from unmask import predict as predictors
from unmask import samplers as orders
from unmask.evaluate.judge.samples import DTYPES
from unmask.samplers import law as published_law
from unmask.samplers import published
from unmask.samplers.names import DRAWS, PLANS, predictor
from unmask.sampling import Sample

PUBLISHED: dict[str, Callable[..., Sample]] = {
    "published-ancestral": published.coupled_ancestral, "published-euler": published.sedd_euler,
    "published-tweedie": published.sedd_tweedie, "published-law": published_law.coupled_by_law,
}  # fmt: skip
LOOKING: dict[str, Callable[..., orders.Order]] = {
    "confidence": orders.confidence, "llada": orders.low_confidence, "dream": orders.dream, "margin": orders.margin,
    "entropy": orders.entropy, "entropy-bounded": orders.entropy_bounded, "left-to-right": orders.left_to_right,
    "remdm-cap": orders.remdm_cap, "remdm-rescale": orders.remdm_rescale, "remdm-confidence": orders.remdm_confidence,
}  # fmt: skip
Sampler = Literal[
    "first-hitting", "parallel", "ancestral", "published-ancestral", "published-euler", "published-tweedie",
    "published-law",
]  # fmt: skip
OrderName = Literal[
    "1", "extrapolate", "correct", "auto", "confidence", "llada", "dream", "margin", "entropy", "entropy-bounded",
    "left-to-right", "remdm-cap", "remdm-rescale", "remdm-confidence",
]  # fmt: skip
DEFAULT_MODEL = "kjv"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What sample and infill have in common."""

    sampler: Sampler | None = None
    """Which positions are unmasked when. By default parallel with --steps, and first-hitting, exact, without. The
    published ones draw token and mask together in float32, for comparison: they have the fault. published-law does what
    published-ancestral does, by its law: without drawing a number for every step, position and token."""
    steps: int | None = None
    """Steps of parallel and ancestral sampling: at most so many network calls per sequence."""
    order: OrderName = "1"
    """1, or one of the second-order variants; auto is the paper's rule: extrapolate up to 128 steps, correct beyond.
    The others look at the network to choose which position is next, and have another law (docs/orders.md): the most
    confident first (confidence: MaskGIT's; llada and dream: as those do), the largest margin, the lowest entropy, as
    many as an entropy bound allows, left to right; or unmask at random and mask again (remdm, which needs --steps).
    Without --steps they unmask one token per call."""
    block: int | None = None
    """With an order that looks: fill blocks of so many blanks from left to right, each in that order."""
    noise: float | None = None
    """Of the Gumbels added to the scores of confidence (4.5, falling to 0), margin and entropy (0)."""
    gamma: float | None = None
    """The bound of entropy-bounded, in nats (0.1): sum of the entropies unmasked together, less the largest."""
    eta: float | None = None
    """How much remdm masks again, from 0 to 1: the cap (0.02), or a factor of the most there can be (0.05; 1 by
    confidence)."""
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
    threads: int | None = None
    """CPU threads. By default as many as there are cores; 1 is best where every core has other work (docs/speed.md)."""
    compile: bool = False
    """torch.compile the network: worth its warming up (half a minute or more) for many calls of one shape."""
    json: bool = False
    """One JSON line per sequence: text, tokens, seed, index, nfe, ncs, model and the trace of every call."""
    output: str | None = None
    """Write there instead of to stdout; the file appears whole or not at all."""

    def chosen(self) -> dict[str, Any]:
        """The keyword arguments of ``Model.sample``: names become what they stand for, here and nowhere else."""
        if self.order in LOOKING:
            return self._looking(LOOKING[self.order])
        for name in ("block", "noise", "gamma", "eta"):
            if getattr(self, name) is not None:
                raise ValueError(f"--{name} is for an order that looks at the network: {', '.join(LOOKING)}")
        if self.sampler in PUBLISHED:
            return self._as_published(self.sampler)
        predict = predictor(self.order, self.steps)
        return {
            "plan": PLANS[self.sampler] if self.sampler else None, "steps": self.steps,
            "predict": None if predict is predictors.first_order else predict, "draw": DRAWS[self.draw],
            "temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p, "seed": self.seed,
            "batch": self.batch,
        }  # fmt: skip

    def recorded(self) -> dict[str, Any]:
        """How the samples were made, for whoever judges them: what was chosen, and the precision of the draw."""
        if self.sampler in PUBLISHED:
            # As other codebases do: token and mask in one Gumbel race, in float32.
            draw = "coupled race, by its law" if self.sampler == "published-law" else "coupled race"
            return {"sampler": self.sampler, "steps": self.steps, "draw": draw, "dtype": "float32"}
        sampler = self.sampler or ("parallel" if self.steps else "first-hitting")
        names = ("steps", "order", "block", "noise", "gamma", "eta", "draw", "temperature", "top_k", "top_p")
        chosen = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        looking: dict[str, Any] = {} if self.order in LOOKING else {"sampler": sampler}
        return looking | chosen | {"dtype": DTYPES[self.draw]}

    def _looking(self, make: Callable[..., orders.Order]) -> dict[str, Any]:
        if self.sampler is not None:
            raise ValueError(f"--order {self.order} says itself what is unmasked when: it takes no --sampler")
        values = {name: getattr(self, name) for name in ("noise", "gamma", "eta") if getattr(self, name) is not None}
        for name in values:
            if name not in inspect.signature(make).parameters:
                raise ValueError(f"--order {self.order} takes no --{name}")
        made = make(**values)
        if self.block is not None:
            if not isinstance(made, orders.Ranked):
                raise ValueError(f"--order {self.order} takes no --block")
            made = orders.blocks(self.block, made)
        return {
            "sampler": made, "steps": self.steps, "draw": DRAWS[self.draw], "temperature": self.temperature,
            "top_k": self.top_k, "top_p": self.top_p, "seed": self.seed, "batch": self.batch,
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


def use_threads(count: int | None) -> None:
    """So many CPU threads from now on; None leaves torch's choice."""
    if count is None:
        return
    if count < 1:
        raise ValueError(f"--threads must be at least 1, got {count}")
    torch.set_num_threads(count)


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
