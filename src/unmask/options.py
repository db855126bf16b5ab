"""The options of sampling, declared once.

``unmask.sample`` builds an ``Options`` at the door; the command line, the HTTP API and the reproduction build the same
one from names (``unmask.names``). What needs no network is checked here; what a kind of network cannot do is
refused by its process (``unmask.processes``).
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from types import FunctionType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast

from torch import Tensor

import unmask.draw as draws
import unmask.plan as plans
import unmask.predict as predictors
from unmask.draw import Draw, Pick, Shaping, bounded, exponential_race
from unmask.errors import OptionError, check_number
from unmask.guide import Guide
from unmask.plan import Planner
from unmask.predict import Predictor, first_order
from unmask.protocol import Allowed, Denoiser
from unmask.sampler import Sampler
from unmask.schedule import Linear, Schedule

__all__ = ["Numbers", "OptionError", "Options", "help_texts", "takes"]

Canvas = Tensor | Sequence[Sequence[int]]
"""Token ids [batch, length], with mask_id at masked positions."""

MODULES = {"plan": plans, "predict": predictors, "draw": draws}
CHOICES = {
    "plan": ("first_hitting", "parallel", "ancestral", "left_to_right"),
    "predict": ("first_order", "extrapolate", "correct", "auto(steps)"),
    "draw": ("exponential_race", "inverse_cdf", "gumbel(torch.float64)", "truncated(16.6)"),
}


@dataclass(frozen=True, kw_only=True)
class Numbers(Shaping):
    """The options that are numbers everywhere: in Python, on the command line and over HTTP."""

    steps: int | None = bounded(None, whole=True, ge=1)
    """The number of steps of parallel and ancestral sampling: the maximum of network calls per sequence."""
    ahead: int | Literal["auto"] | None = None
    """The look-ahead window in tokens, or auto: the same tokens in fewer network passes. For samplers that fill one
    token per step, such as first-hitting, and for left-to-right models (docs/sampling.md)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ahead not in (None, "auto") and not isinstance(self.ahead, bool):
            try:
                check_number("ahead", self.ahead, whole=True, ge=1)
            except OptionError as error:
                raise OptionError("ahead", f"{error}; True or 'auto' chooses the window") from None

    @property
    def given(self) -> tuple[str, ...]:
        """The options that differ from their defaults."""
        return tuple(one.name for one in fields(self) if not _same(getattr(self, one.name), one.default))

    @property
    def window(self) -> int | Literal["auto"] | None:
        """The look-ahead window; None if there is none."""
        if isinstance(self.ahead, bool):
            return "auto" if self.ahead else None
        return self.ahead


@dataclass(frozen=True, kw_only=True)
class Options(Numbers):
    """How a canvas is filled: the options of ``unmask.sample``."""

    plan: Planner | None = None
    """Which positions are unmasked when: a planner of unmask.plan. By default first_hitting, one token per call and
    exact, or parallel with steps."""
    predict: Predictor = first_order
    """unmask.predict.first_order, or extrapolate and correct, the second-order variants for steps."""
    draft: Denoiser | None = None
    """With ahead: a cheap model of the same ids that guesses where there is no guess yet, such as counts
    (unmask.networks.ngram.NgramDenoiser). It changes the number of calls and no token."""
    sampler: Sampler | None = None
    """One of unmask.samplers, instead of plan and predict; its distribution may differ from the model's."""
    guide: Guide | None = None
    """One of unmask.guides, for p(x) h(x) / Z instead of p(x); with a plan and predict.first_order."""
    particles: int | None = bounded(None, whole=True, ge=1)
    """The number of particles per sequence (sequential Monte Carlo), which corrects approximate guides."""
    own_orders: bool = False
    """Each particle draws an order of its own instead of sharing that of its sequence. As their number grows, the
    distribution then tends to p h / Z for any network; with a shared order, if its conditionals belong to one joint."""
    stop: int | Sequence[int] | None = None
    """The id or ids that end a text. Later positions of the same run of masked positions cost no call and are filled
    with the id."""
    allowed: Allowed | list[Allowed] | None = None
    """``{position: bool [V]}``, the only ids that may fill a position; or a list of these, one per sequence."""
    draw: Draw = exponential_race
    """How a token is drawn: unmask.draw.exponential_race (exact), inverse_cdf, gumbel(dtype), truncated(M)."""
    schedule: Schedule | None = None
    """alpha(t), by default unmask.Linear(); it matters only to networks that read the time."""
    seed: int | Sequence[int] = 0
    """An integer, for which sequence i is always the same; or a list with one seed per sequence, each of which gives
    what it gives alone."""
    index: Sequence[int] | None = None
    """Which sequences of the seed to make, by default the first ones."""
    batch: int | None = bounded(None, whole=True, ge=1)
    """The maximum number of sequences per network call, by default all; it changes no token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in MODULES:
            _check_object(name, getattr(self, name))
        _check_sampler(self.sampler)
        _check_schedule(self.schedule)
        self._check_together()

    def _check_together(self) -> None:
        """Refuse combinations that no network supports."""
        given = self.given
        for name in ("plan", "predict", "ahead"):
            if self.sampler is not None and name in given:
                raise OptionError(name, f"give either sampler, or plan, predict and ahead: sampler excludes {name}")
        for name in ("sampler", "predict", "ahead"):
            if self.guide is not None and name in given:
                raise OptionError(name, f"a guide works with a plan and predict.first_order: leave out {name}")
        if self.each != 1 and not self.guided:
            raise OptionError("particles", "particles are weighed by a guide: give one of unmask.guides")
        if self.own_orders and self.each == 1:
            raise OptionError("own_orders", "own_orders is for several particles: give particles")
        if self.stop is not None and self.each != 1:
            raise OptionError("stop", "stop cannot be combined with particles")
        for name in ("steps", "sampler", "predict", "ahead", "guide"):
            if self.penalises and name in given:
                says = f"penalties are exact where one token is drawn per call, by a plan: leave out {name}"
                raise OptionError("presence_penalty" if self.presence_penalty else "frequency_penalty", says)
        if self.draft is not None and self.window is None:
            raise OptionError("draft", "a draft guesses the tokens of the look-ahead window: give ahead too")
        if self.window is not None and not self.predict.plain:
            raise OptionError("predict", "ahead needs predict.first_order: with one token per step there is no other")

    @property
    def given(self) -> tuple[str, ...]:
        plain = {"predict": self.predict.plain, "ahead": self.window is None}
        return tuple(name for name in super().given if not plain.get(name, False))

    @property
    def guided(self) -> bool:
        """Whether a guide weighs the tokens."""
        return self.guide is not None

    @property
    def each(self) -> int:
        """The number of particles of each sequence."""
        return self.particles or 1

    @property
    def pick(self) -> Pick:
        """How tokens are drawn."""
        return Pick(**{one.name: getattr(self, one.name) for one in fields(Pick)})

    @property
    def alpha(self) -> Schedule:
        """The schedule."""
        return self.schedule or Linear()


def _same(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, int | float | str) and bool(value == default))


def _check_object(name: str, value: Any) -> None:
    """Refuse the name of a plan, predictor or draw, or its factory, where the object itself belongs."""
    offered = {one.partition("(")[0]: one for one in CHOICES[name]}
    if isinstance(value, str):
        key = value.replace("-", "_")
        known = [offered[key]] if key in offered else list(offered.values())
        written = " or ".join(f"{name}=unmask.{name}.{one}" for one in known)
        raise OptionError(name, f"{name} must be the object and not its name {value!r}: write {written}")
    for key, one in offered.items():
        if "(" in one and value is getattr(MODULES[name], key):
            raise OptionError(name, f"{name}=unmask.{name}.{key} makes a {name}: write {name}=unmask.{name}.{one}")
    if name == "draw" and not callable(value):
        example = "(logits, noise) -> ids, as unmask.draw.inverse_cdf is"
        raise OptionError(name, f"draw must be callable: {example}, got {value!r}")
    if name == "predict" and not isinstance(value, Predictor):
        raise OptionError(name, f"predict must be first_order, extrapolate or correct of unmask.predict, got {value!r}")
    if name == "plan" and value is not None and not callable(value):
        raise OptionError(name, f"plan must be a planner such as unmask.plan.parallel, got {value!r}")


def _check_sampler(sampler: Any) -> None:
    complete = all(callable(getattr(sampler, part, None)) for part in ("begin", "ask", "fill"))
    if sampler is not None and (isinstance(sampler, type) or not complete):
        hint = f"call it: {sampler.__name__}(...)" if callable(sampler) else "such as decoding.confidence()"
        raise OptionError("sampler", f"sampler must be a sampler of unmask.samplers, {hint}; got {sampler!r}")


def _check_schedule(schedule: Any) -> None:
    if schedule is not None and (isinstance(schedule, type) or not callable(getattr(schedule, "inverse", None))):
        example = "a schedule such as unmask.Linear() or unmask.Cosine()"
        raise OptionError("schedule", f"schedule must be {example}, got {schedule!r}")


CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
# A field, perhaps of several lines, and the string below it. A parser would take as long as the other imports together.
FIELD = re.compile(r'^    (\w+): [^\n]*\n(?:(?:     |    [)\]}])[^\n]*\n)*    """(.*?)"""', re.MULTILINE | re.DOTALL)
OPTIONS = re.compile(r"\*\*options: .*")  # in a docstring: replaced by the help text of each option
P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
O_ = TypeVar("O_")


def takes(build: Callable[P, O_]) -> Callable[[Callable[[T, O_], R]], Callable[Concatenate[T, P], R]]:
    """Let a function of (model, options) take the options as keywords: those of the dataclass ``build``.

    So the dataclass is the one declaration of the options. As ``dataclass`` writes ``__init__``, this writes a function
    with a parameter for each field; Python itself checks the names of a call.
    """
    parameters = tuple(inspect.signature(build).parameters.values())

    def wrap(function: Callable[[T, O_], R]) -> Callable[Concatenate[T, P], R]:
        call = _written(function, build, parameters)
        call.__module__, call.__qualname__ = function.__module__, function.__qualname__
        call.__doc__ = OPTIONS.sub(lambda _: _explained(build, parameters), function.__doc__ or "")
        return cast(Callable[Concatenate[T, P], R], call)

    return wrap


def _written(function: Callable[[T, O_], R], build: Any, parameters: Sequence[inspect.Parameter]) -> FunctionType:
    """The function ``def name(model, /, num: ... = ..., *, steps: ... = ..., ...)``, compiled."""
    first = next(iter(inspect.signature(function).parameters))
    shown, passed = [first, "/"], []
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        default = "" if one.default is one.empty else f" = options[{one.name!r}].default"
        shown.append(f"{one.name}: {one.annotation!r}{default}")
        passed.append(f"{one.name}={one.name}")
    name, returns = function.__name__, inspect.signature(function).return_annotation
    source = f"def {name}({', '.join(shown)}) -> {returns!r}:\n    return function({first}, build({', '.join(passed)}))"
    names = {"function": function, "build": build, "options": {one.name: one for one in parameters}}
    exec(compile(source, f"<options of {name}>", "exec", dont_inherit=True), names)
    return cast(FunctionType, names[name])


def _explained(build: Any, parameters: Sequence[inspect.Parameter]) -> str:
    """The arguments for a docstring in Google's style."""
    helps = help_texts(build)
    return "\n        ".join(f"{one.name}: {helps.get(one.name, '')}" for one in parameters)


def help_texts(options: type) -> dict[str, str]:
    """The string below each field of a dataclass, in the class or in one that it extends, in one line."""
    texts: dict[str, str] = {}
    for one in reversed(options.__mro__[:-1]):
        texts |= _texts_in(one.__module__).get(one.__qualname__, {})
    return texts


@functools.cache
def _texts_in(module: str) -> dict[str, dict[str, str]]:
    """Those of every class of a module."""
    _, *parts = CLASS.split(inspect.getsource(sys.modules[module]))
    return {
        name: {field: " ".join(text.split()) for field, text in FIELD.findall(body.partition("\n\n\n")[0])}
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }
