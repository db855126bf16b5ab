"""Users' arguments in the form that the core takes; invalid ones are refused in a sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import unmask.draw as draws
import unmask.plan as plans
import unmask.predict as predictors
from unmask.guide import Guide
from unmask.network import device_of
from unmask.protocol import Denoiser, check, length_of
from unmask.sampler import Sampler

MODULES = {"plan": plans, "predict": predictors, "draw": draws}
CHOICES = {
    "plan": ("first_hitting", "parallel", "ancestral", "left_to_right"),
    "predict": ("first_order", "extrapolate", "correct", "auto(steps)"),
    "draw": ("exponential_race", "inverse_cdf", "gumbel(torch.float64)", "truncated(16.6)"),
}


def ids(value: object, name: str) -> Tensor:
    """Token ids as int64 [batch, length]: from a tensor, a numpy array or lists."""
    wanted = f"{name} must be token ids [batch, length]: a tensor, an array, or lists that are equally long"
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"{wanted}; got {type(value).__name__}") from None
    whole = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    if value.ndim != 2 or not (whole or value.numel() == 0):
        hint = f"; a single sequence is {name}[None]" if value.ndim == 1 and whole else ""
        raise ValueError(f"{wanted}; got {value.dtype} {tuple(value.shape)}{hint}")
    tokens: Tensor = value.to(torch.int64)
    return tokens


def complete(model: Denoiser, value: object, name: str) -> Tensor:
    """Token ids of the model's, int64 [batch, length], none of which is the mask."""
    check(model)
    tokens = ids(value, name)
    if tokens.shape[1] < 1:
        raise ValueError(f"{name} must have at least one token per sequence, got {tuple(tokens.shape)}")
    if bool((tokens == model.mask_id).any()):
        raise ValueError(f"{name} must be complete: they hold the mask {model.mask_id}")
    wrong = (tokens < 0) | (tokens >= model.vocab_size)
    if bool(wrong.any()):
        raise ValueError(f"{name} must be ids in 0..{model.vocab_size - 1}, got {int(tokens[wrong][0])}")
    return tokens


def times(t: object, x0: Tensor) -> Tensor:
    """Times in 0..1, one for each sequence of x0 or one for all."""
    return _per_sequence(t, x0, "t", 0, 1, whole=False)


def counts(n: object, x0: Tensor, most: int | None = None) -> Tensor:
    """Numbers of masked tokens, 1 to ``most`` (L), one for each sequence of x0 or one for all."""
    return _per_sequence(n, x0, "n", 1, x0.shape[1] if most is None else most, whole=True)


def _per_sequence(value: object, x0: Tensor, name: str, least: int, most: int, *, whole: bool) -> Tensor:
    kind = "whole numbers" if whole else "numbers"
    wanted = f"{name} must be {kind} in {least}..{most}, one for each of the {len(x0)} sequences or one for all"
    try:
        given = torch.as_tensor(value, device=x0.device)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{wanted}, got {value!r}") from None
    if given.dtype == torch.bool or (whole and given.is_floating_point()) or given.shape not in ((), (len(x0),)):
        raise ValueError(f"{wanted}, got {given.dtype} {tuple(given.shape)}")
    wrong = ~((given >= least) & (given <= most))  # NaN too
    if bool(wrong.any()):
        raise ValueError(f"{wanted}, got {given[wrong].flatten()[0].item()}")
    given = given.long() if whole else given if given.is_floating_point() else given.double()
    return given.expand(len(x0))


def generator(value: object) -> torch.Generator:
    if not isinstance(value, torch.Generator):
        example = "torch.Generator().manual_seed(0)"
        raise ValueError(f"generator must be a torch.Generator, such as {example}, got {value!r}")
    return value


def choices(**given: Any) -> None:
    """Refuse the name of a plan, predictor or draw, or its factory, where the object itself belongs; samplers too."""
    for name, value in given.items():
        if name in MODULES:
            _object(name, value)
    sampler, schedule = given.get("sampler"), given.get("schedule")
    parts = all(callable(getattr(sampler, part, None)) for part in ("begin", "ask", "fill"))
    if sampler is not None and (isinstance(sampler, type) or not parts):
        made = f"call it: {sampler.__name__}(...)" if callable(sampler) else "such as decoding.confidence()"
        raise ValueError(f"sampler must be a sampler of unmask.samplers, {made}; got {sampler!r}")
    if schedule is not None and (isinstance(schedule, type) or not callable(getattr(schedule, "inverse", None))):
        raise ValueError(f"schedule must be a schedule such as unmask.Linear() or unmask.Cosine(), got {schedule!r}")


def _object(name: str, value: Any) -> None:
    offered = {one.partition("(")[0]: one for one in CHOICES[name]}
    if isinstance(value, str):
        key = value.replace("-", "_")
        known = [offered[key]] if key in offered else list(offered.values())
        written = " or ".join(f"{name}=unmask.{name}.{one}" for one in known)
        raise ValueError(f"{name} must be the object and not its name {value!r}: write {written}")
    for key, one in offered.items():
        if "(" in one and value is getattr(MODULES[name], key):
            raise ValueError(f"{name}=unmask.{name}.{key} makes a {name}: write {name}=unmask.{name}.{one}")
    if name == "draw" and not callable(value):
        raise ValueError(f"draw must be callable: (logits, noise) -> ids, as unmask.draw.inverse_cdf is, got {value!r}")


def check_canvas(model: Denoiser, canvas: Tensor | None, num: int | None, length: int | None) -> Tensor:
    """The canvas on the model's device, int64 [B, L], with every id one that the model knows."""
    check(model)
    if canvas is None:
        length = length_of(model) if length is None else length
        if length is None:
            raise ValueError("give length, the number of tokens, or a canvas with mask_id at the masked positions")
        num = 1 if num is None else num
        if not (isinstance(num, int) and isinstance(length, int)):
            raise ValueError(f"num and length must be whole numbers, got num={num!r} and length={length!r}")
        if length < 0 or num < 0:
            raise ValueError(f"num and length must be at least 0, got num={num} and length={length}")
        return torch.full((num, length), model.mask_id, dtype=torch.int64, device=device_of(model))
    canvas = ids(canvas, "canvas")
    if length is not None and length != canvas.shape[1]:
        raise ValueError(f"length={length} contradicts the canvas, which has {canvas.shape[1]} positions")
    if num is not None and num != len(canvas):
        raise ValueError(f"num={num} contradicts the canvas, which has {len(canvas)} sequences")
    known = (canvas >= 0) & ((canvas < model.vocab_size) | (canvas == model.mask_id))
    if not bool(known.all()):
        raise ValueError(
            f"canvas has ids that the model does not know, the first is {int(canvas[~known][0])}; allowed are "
            f"0..{model.vocab_size - 1} and the mask {model.mask_id}"
        )
    return canvas.to(device_of(model))


def together(
    plan: object, predict: object, sampler: Sampler | None, looks: bool, guide: Guide | None, particles: int
) -> None:
    """Refuse combinations of options that no network supports."""
    if not isinstance(predict, predictors.Predictor):
        raise ValueError(f"predict must be first_order, extrapolate or correct of unmask.predict, got {predict!r}")
    if plan is not None and not callable(plan):
        raise ValueError(f"plan must be a planner such as unmask.plan.parallel, got {plan!r}")
    other = predict is not predictors.first_order or looks
    if sampler is not None and (plan is not None or other):
        raise ValueError("give a sampler, or a plan, predict and ahead, not both")
    if guide is not None and (sampler is not None or other):
        raise ValueError("a guide weighs the tokens of a plan by predict.first_order: it takes no sampler and no ahead")
    if guide is None and particles != 1:
        raise ValueError("particles are weighed by a guide: give one of unmask.guides")


def left_to_right(
    masked: Tensor,
    plan: plans.Planner | None,
    steps: int | None,
    predict: predictors.Predictor,
    sampler: Sampler | None,
) -> plans.Planner:
    """The only plan of a left-to-right network."""
    given = {
        "sampler": sampler is not None,
        "plan": plan not in (None, plans.left_to_right),
        "steps": steps is not None,
        "predict": predict is not predictors.first_order,
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise ValueError(f"a left-to-right model draws one token per call from the beginning: it takes no {name}")
    if bool((masked[:, :-1] & ~masked[:, 1:]).any()):
        raise ValueError(
            "a left-to-right model continues a text: the holes of its canvas must come last; unmask infill and "
            "Model.infill fill blanks by particles"
        )
    return plans.left_to_right


def insertion(
    model: Denoiser,
    canvas: Tensor,
    plan: plans.Planner | None,
    steps: int | None,
    predict: predictors.Predictor,
    sampler: Sampler | None,
    looks: bool,
    guide: Guide | None,
) -> None:
    """Refuse options that a network with insertion does not support."""
    given = {
        "sampler": sampler is not None and not hasattr(sampler, "inserts"),
        "plan": plan is not None,
        "steps": steps is not None,
        "predict": predict is not predictors.first_order,
        "ahead": looks,
        "guide": guide is not None,
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise ValueError(f"an insertion model inserts masks and unmasks them, one per call: it takes no {name}")
    most = length_of(model)
    if most is not None and canvas.shape[1] != most:
        raise ValueError(
            f"an insertion model draws the length itself, up to the {most} tokens that it was trained for: "
            f"length={canvas.shape[1]} cannot be asked for"
        )


def show_options(function: Callable[..., Any], options: type, defaults: Mapping[str, Any]) -> None:
    """Let help() and inspect.signature show the options of a TypedDict by name instead of ``**options``."""
    own = inspect.signature(function)
    kept = [parameter for parameter in own.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    for name, kind in options.__annotations__.items():
        written = getattr(kind, "__forward_arg__", kind)
        kept.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=written)
        )
    function.__dict__["__signature__"] = own.replace(parameters=kept)
