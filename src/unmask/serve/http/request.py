"""From a request's names to Work, and whatever is wrong with it to a Wrong that the API can say."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import torch

from unmask.cli.options import Options
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Served, Work
from unmask.serve.http.schemas import CompletionRequest, SamplerOptions, UnmaskRequest, error_body
from unmask.text.blanks import Blanks
from unmask.text.model import Model

HOLES = "\ue000\ue001\ue002\ue003"  # of Unicode's private use: one of them is in no text that anybody sends
OPTIONS = ("sampler", "steps", "order", "block", "noise", "gamma", "eta", "draw", "temperature", "top_k", "top_p")

Prompt = str | list[int]  # a text, or token ids


class Wrong(Exception):
    """An answer that is an error: its status, and what to say."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.body = status, error_body(status, message, param, code)


def find(models: Mapping[str, Served], name: str | None) -> Served:
    """The model of this name; the first without one."""
    if name is None:
        return next(iter(models.values()))
    if name not in models:
        served = ", ".join(models)
        raise Wrong(404, f"there is no model {name!r} here: {served}", param="model", code="model_not_found")
    return models[name]


def chosen_options(served: Served, body: SamplerOptions, seed: int, limits: Limits) -> dict[str, Any]:
    """The keyword arguments of ``Model.sample``."""
    _at_most("steps", body.steps, limits.max_steps)
    try:
        chosen = {name: value for name, value in _options(body, seed).chosen().items() if value is not None}
    except ValueError as error:
        raise Wrong(400, str(error).replace("--", "")) from error
    if served.model.left_to_right:
        given = [name for name in ("sampler", "plan", "steps", "predict") if name in chosen]
        if given:
            what = "order" if given[0] == "predict" else given[0]
            says = f"a left-to-right model draws one token per call from the beginning: it takes no {what}"
            raise Wrong(400, says, param=what)
    return chosen


def recorded(served: Served, body: SamplerOptions, seed: int) -> dict[str, Any]:
    """How the tokens were made, as ``unmask sample --json`` says it."""
    how = _options(body, seed).recorded()
    if served.model.left_to_right:
        how["sampler"] = "left-to-right"
    elif body.order in ("1", "extrapolate", "correct", "auto"):
        how.setdefault("sampler", "parallel" if body.steps else "first-hitting")
    else:
        how["sampler"] = body.order
    return {"sampler": how["sampler"], "draw": how["draw"], "dtype": how["dtype"]}


def unmask_work(models: Mapping[str, Served], body: UnmaskRequest, limits: Limits) -> Work:
    """The work of /v1/unmask."""
    served = find(models, body.model)
    seed = _seed(body.seed)
    given = [name for name in ("text", "prompt", "canvas") if getattr(body, name) is not None]
    if len(given) > 1:
        raise Wrong(400, f"give one of text, prompt and canvas, not {' and '.join(given)}", param=given[1])
    if body.length is not None and given and given != ["prompt"]:
        raise Wrong(400, f"length goes with a prompt or an empty canvas; {given[0]} has its own", param="length")
    if body.mask_character is not None and given != ["text"]:
        raise Wrong(400, "mask_character goes with text", param="mask_character")
    _at_most("number", body.number, limits.max_number)
    _at_most("length", body.length, limits.max_length)
    chosen = chosen_options(served, body, seed, limits)
    if body.text is not None:
        return infilled(served, body.text, body.mask_character, body.number, seed, chosen, limits)
    if body.canvas is not None:
        return on_canvas(served, body.canvas, body.number, seed, chosen, limits)
    return prompted(served, body.prompt or "", body.length, body.number, seed, chosen, limits)


def infilled(
    served: Served, text: str, mask_character: str | None, number: int, seed: int, chosen: dict[str, Any],
    limits: Limits,
) -> Work:  # fmt: skip
    """``Model.infill``: a text with blanks."""
    if served.model.left_to_right:
        raise Wrong(400, f"{served.model.name} is a left-to-right model and cannot fill blanks", param="text")
    blanks = _said("text", lambda: served.model.blanks(_clean("text", text), mask_character))

    def alone(model: Model, callback: Any) -> Any:
        return model.infill(text, number, mask_character=mask_character, callback=callback, **chosen)

    return _checked(Work(served, number, seed, blanks.ids, blanks, chosen, alone), limits)


def prompted(
    served: Served, prompt: str, length: int | None, number: int, seed: int, chosen: dict[str, Any], limits: Limits
) -> Work:
    """``Model.sample``: a text that begins with the prompt, or an empty canvas without one."""
    model = served.model
    if length is None and model.length is None:
        raise Wrong(400, f"{model.name} does not say how long its texts are: give length", param="length")
    blanks: Blanks | None = None
    if prompt:
        blanks = _said("prompt", lambda: model.prompted(_clean("prompt", prompt), length))
        ids = blanks.ids
        if model.left_to_right:
            ids = (*ids[: blanks.holes[0][0]], *[model.denoiser.mask_id] * (len(ids) - blanks.holes[0][0]))
    else:
        ids = (model.denoiser.mask_id,) * (model.length if length is None else length)  # type: ignore[operator]

    def alone(model: Model, callback: Any) -> Any:
        return model.sample(number, prompt=prompt, length=length, callback=callback, **chosen)

    return _checked(Work(served, number, seed, ids, blanks, chosen, alone), limits)


def on_canvas(
    served: Served, canvas: list[int | None], number: int, seed: int, chosen: dict[str, Any], limits: Limits
) -> Work:
    """``Model.sample(canvas=...)``: token ids with holes."""
    _at_most("canvas", len(canvas), limits.max_length)
    network = served.model.denoiser
    ids = tuple(network.mask_id if i is None else i for i in canvas)
    wrong = next((i for i in ids if not (i < network.vocab_size or i == network.mask_id)), None)
    if wrong is not None:
        raise Wrong(400, f"canvas has the id {wrong}: allowed are 0..{network.vocab_size - 1} and null", param="canvas")
    if served.model.left_to_right and ids != _prefix_first(ids, network.mask_id):
        raise Wrong(400, f"{served.model.name} is a left-to-right model: its holes come last", param="canvas")

    def alone(model: Model, callback: Any) -> Any:
        return model.sample(number, canvas=torch.tensor([ids] * number), callback=callback, **chosen)

    return _checked(Work(served, number, seed, ids, None, chosen, alone), limits)


def completion_works(
    models: Mapping[str, Served], body: CompletionRequest, limits: Limits
) -> list[tuple[Prompt, Work]]:
    """The prompts of /v1/completions, each with its work."""
    served = find(models, body.model)
    for name, default in (("logprobs", None), ("logit_bias", None), ("presence_penalty", 0), ("frequency_penalty", 0)):
        if getattr(body, name) not in (None, default, {}):
            raise Wrong(400, f"{name} is not supported", param=name)
    number, tokens = body.n or 1, body.max_tokens or 16
    if body.best_of not in (None, number):
        raise Wrong(400, "best_of other than n is not supported", param="best_of")
    several = isinstance(body.prompt, list) and body.prompt and not isinstance(body.prompt[0], int)
    prompts: list[Any] = [*body.prompt] if several else [body.prompt or ""]  # type: ignore[misc]
    _at_most("n", number * len(prompts), limits.max_number)
    _at_most("max_tokens", tokens, limits.max_length)
    seed = _seed(None if body.seed is None else body.seed % 2**64)
    chosen = chosen_options(served, body, seed, limits)
    return [
        (prompt, _completion(served, prompt, body.suffix, tokens, number, seed, chosen, limits)) for prompt in prompts
    ]


def _completion(
    served: Served, prompt: Prompt, suffix: str | None, tokens: int, number: int, seed: int,
    chosen: dict[str, Any], limits: Limits,
) -> Work:  # fmt: skip
    model = served.model
    if isinstance(prompt, list):
        if suffix:
            raise Wrong(400, "suffix goes with a prompt that is a text", param="suffix")
        return on_canvas(served, [*prompt, *[None] * tokens], number, seed, chosen, limits)
    if suffix:
        if model.left_to_right:
            raise Wrong(400, f"{model.name} is a left-to-right model and takes no suffix", param="suffix")
        hole = next((c for c in HOLES if c not in prompt + suffix), None)
        if hole is None:
            raise Wrong(400, "the text uses every character that could stand for a hole", param="prompt")
        return infilled(served, prompt + hole * tokens + suffix, hole, number, seed, chosen, limits)
    if not prompt:
        return prompted(served, "", tokens, number, seed, chosen, limits)
    _at_most("prompt", len(prompt.encode(errors="replace")), limits.max_body_bytes)
    ample = 2 * len(prompt.encode(errors="replace")) + 64
    begun = _said("prompt", lambda: model.prompted(_clean("prompt", prompt), ample))
    fixed = ample - (begun.holes[0][1] - begun.holes[0][0])
    _at_most("prompt and max_tokens", fixed + tokens, limits.max_length)
    return prompted(served, prompt, fixed + tokens, number, seed, chosen, limits)


def _checked(work: Work, limits: Limits) -> Work:
    _at_most("length", len(work.canvas), limits.max_length)
    if not work.planned and work.number > limits.max_batch:
        raise Wrong(400, f"number={work.number}: this sampler takes at most {limits.max_batch}", param="number")
    return work


def _at_most(name: str, value: int | None, limit: int) -> None:
    if value is not None and value > limit:
        raise Wrong(400, f"{name}={value}: this server takes at most {limit}", param=name.split()[0])


def _clean(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Wrong(400, f"{name} has half of a surrogate pair, which is no character", param=name) from None
    return text


def _said(param: str, make: Any) -> Blanks:
    """What a user can get wrong about a text, as the library says it."""
    try:
        made: Blanks = make()
    except ValueError as error:
        raise Wrong(400, str(error), param=param) from error
    return made


def _prefix_first(ids: tuple[int, ...], mask_id: int) -> tuple[int, ...]:
    return (*(i for i in ids if i != mask_id), *(i for i in ids if i == mask_id))


def _options(body: SamplerOptions, seed: int) -> Options:
    given = {name: getattr(body, name) for name in OPTIONS}
    return Options(**{name: value for name, value in given.items() if value is not None}, seed=seed)


def _seed(given: int | None) -> int:
    """The client's seed, or one that the answer tells."""
    return secrets.randbits(32) if given is None else given
