"""From a request's names to Work, and whatever is wrong with it to an ApiError."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from unmask.draw import Pick
from unmask.sampler import Planned
from unmask.samplers.names import SamplerOptions, moved
from unmask.sampling import chosen
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Served, Work
from unmask.serve.http.schemas import CompletionRequest, SamplingRequest, UnmaskRequest, error_body
from unmask.text.blanks import Blanks

HOLES = "\ue000\ue001\ue002\ue003"  # of Unicode's private use: one of them is in no text that anybody sends

Prompt = str | list[int]  # a text, or token ids


class ApiError(Exception):
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
        raise ApiError(404, f"there is no model {name!r} here: {served}", param="model", code="model_not_found")
    return models[name]


def options(body: SamplingRequest) -> SamplerOptions:
    """The names and numbers of a request about sampling."""
    given = {field.name: getattr(body, field.name) for field in fields(SamplerOptions)}
    return SamplerOptions(**{name: value for name, value in given.items() if value is not None})


def recorded(served: Served, body: SamplingRequest) -> dict[str, Any]:
    """How the tokens were made, as ``unmask sample --json`` says it."""
    how = options(body).record(left_to_right=served.model.left_to_right)
    return {"sampler": how.get("sampler") or how["decoding"], "draw": how["draw"], "dtype": how["dtype"]}


def unmask_work(models: Mapping[str, Served], body: UnmaskRequest, limits: Limits) -> Work:
    """The work of /v1/unmask."""
    given = [name for name in ("text", "prompt", "canvas") if getattr(body, name) is not None]
    if len(given) > 1:
        raise ApiError(400, f"give one of text, prompt and canvas, not {' and '.join(given)}", param=given[1])
    if body.length is not None and given and given != ["prompt"]:
        raise ApiError(400, f"length goes with a prompt or an empty canvas; {given[0]} has its own", param="length")
    if body.mask_character is not None and given != ["text"]:
        raise ApiError(400, "mask_character goes with text", param="mask_character")
    _at_most("number", body.number, limits.max_number)
    _at_most("length", body.length, limits.max_length)
    maker = WorkMaker.of(find(models, body.model), body, body.number, body.seed, limits)
    if body.text is not None:
        return maker.infilled(body.text, body.mask_character)
    return maker.on_canvas(body.canvas) if body.canvas is not None else maker.prompted(body.prompt or "", body.length)


def completion_works(
    models: Mapping[str, Served], body: CompletionRequest, limits: Limits
) -> list[tuple[Prompt, Work]]:
    """The prompts of /v1/completions, each with its work."""
    for name, default in (("logprobs", None), ("logit_bias", None), ("presence_penalty", 0), ("frequency_penalty", 0)):
        if getattr(body, name) not in (None, default, {}):
            raise ApiError(400, f"{name} is not supported", param=name)
    number, tokens = body.n or 1, body.max_tokens or 16
    if body.best_of not in (None, number):
        raise ApiError(400, "best_of other than n is not supported", param="best_of")
    several = isinstance(body.prompt, list) and body.prompt and not isinstance(body.prompt[0], int)
    prompts: list[Any] = [*body.prompt] if several else [body.prompt or ""]  # type: ignore[misc]
    _at_most("n", number * len(prompts), limits.max_number)
    _at_most("max_tokens", tokens, limits.max_length)
    seed = None if body.seed is None else body.seed % 2**64
    maker = WorkMaker.of(find(models, body.model), body, number, seed, limits)
    return [(prompt, maker.completed(prompt, body.suffix, tokens)) for prompt in prompts]


@dataclass(frozen=True)
class WorkMaker:
    """What the texts of a request have in common."""

    served: Served
    number: int
    seed: int
    how: Mapping[str, Any]  # keyword arguments of ``unmask.sample``
    limits: Limits

    @classmethod
    def of(cls, served: Served, body: SamplingRequest, number: int, seed: int | None, limits: Limits) -> WorkMaker:
        """Without a seed it is one that the answer tells."""
        _at_most("steps", body.steps, limits.max_steps)
        if body.order is not None:
            raise ApiError(400, moved(body.order), param="order")
        try:
            how = options(body).arguments()
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        if served.model.left_to_right:
            plain = SamplerOptions()
            for name in ("sampler", "steps", "predictor", "decoding"):
                if getattr(body, name) != getattr(plain, name):
                    says = f"a left-to-right model draws one token per call from the beginning: it takes no {name}"
                    raise ApiError(400, says, param=name)
        return cls(served, number, secrets.randbits(32) if seed is None else seed, how, limits)

    def infilled(self, text: str, mask_character: str | None) -> Work:
        """``Model.infill``: a text with blanks."""
        model = self.served.model
        if model.left_to_right:
            raise ApiError(400, f"{model.name} is a left-to-right model and cannot fill blanks", param="text")
        blanks = _said("text", lambda: model.blanks(_clean("text", text), mask_character))
        return self._work(blanks.ids, blanks)

    def prompted(self, prompt: str, length: int | None) -> Work:
        """``Model.sample``: a text that begins with the prompt, or an empty canvas without one."""
        model = self.served.model
        length = model.length if length is None else length
        if length is None:
            raise ApiError(400, f"{model.name} does not say how long its texts are: give length", param="length")
        if not prompt:
            return self._work((model.denoiser.mask_id,) * length, None)
        blanks = _said("prompt", lambda: model.prompted(_clean("prompt", prompt), length))
        return self._work(blanks.ids, blanks)

    def on_canvas(self, canvas: list[int | None]) -> Work:
        """``Model.sample(canvas=...)``: token ids with holes."""
        _at_most("canvas", len(canvas), self.limits.max_length)
        network = self.served.model.denoiser
        ids = tuple(network.mask_id if i is None else i for i in canvas)
        wrong = next((i for i in ids if not (i < network.vocab_size or i == network.mask_id)), None)
        if wrong is not None:
            says = f"canvas has the id {wrong}: allowed are 0..{network.vocab_size - 1} and null"
            raise ApiError(400, says, param="canvas")
        return self._work(ids, None)

    def completed(self, prompt: Prompt, suffix: str | None, tokens: int) -> Work:
        """A prompt of /v1/completions, followed by so many tokens and perhaps a suffix."""
        model = self.served.model
        if isinstance(prompt, list):
            if suffix:
                raise ApiError(400, "suffix goes with a prompt that is a text", param="suffix")
            return self.on_canvas([*prompt, *[None] * tokens])
        if suffix:
            if model.left_to_right:
                raise ApiError(400, f"{model.name} is a left-to-right model and takes no suffix", param="suffix")
            hole = next((c for c in HOLES if c not in prompt + suffix), None)
            if hole is None:
                raise ApiError(400, "the text uses every character that could stand for a hole", param="prompt")
            return self.infilled(prompt + hole * tokens + suffix, hole)
        if not prompt:
            return self.prompted("", tokens)
        _at_most("prompt", len(prompt.encode(errors="replace")), self.limits.max_body_bytes)
        ample = 2 * len(prompt.encode(errors="replace")) + 64
        begun = _said("prompt", lambda: model.prompted(_clean("prompt", prompt), ample))
        fixed = ample - (begun.holes[0][1] - begun.holes[0][0])
        _at_most("prompt and max_tokens", fixed + tokens, self.limits.max_length)
        return self.prompted(prompt, fixed + tokens)

    def _work(self, ids: tuple[int, ...], blanks: Blanks | None) -> Work:
        _at_most("length", len(ids), self.limits.max_length)
        pick = {name: self.how[name] for name in ("draw", "temperature", "top_k", "top_p") if name in self.how}
        rest = {name: value for name, value in self.how.items() if name not in pick}
        try:
            sampler = chosen(self.served.model.denoiser, torch.tensor([ids], dtype=torch.int64), **rest)
        except ValueError as error:
            raise ApiError(400, str(error), param=None if blanks else "canvas") from error
        if not isinstance(sampler, Planned) and self.number > self.limits.max_batch:
            most = f"this sampler takes at most {self.limits.max_batch}"
            raise ApiError(400, f"number={self.number}: {most}", param="number")
        return Work(self.served, self.number, self.seed, ids, blanks, sampler, Pick(**pick), self.how.get("steps"))


def _at_most(name: str, value: int | None, limit: int) -> None:
    if value is not None and value > limit:
        raise ApiError(400, f"{name}={value}: this server takes at most {limit}", param=name.split()[0])


def _clean(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ApiError(400, f"{name} has half of a surrogate pair, which is no character", param=name) from None
    return text


def _said(param: str, make: Callable[[], Blanks]) -> Blanks:
    """What a user can get wrong about a text, as the library says it."""
    try:
        return make()
    except ValueError as error:
        raise ApiError(400, str(error), param=param) from error
