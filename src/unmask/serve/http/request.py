"""From a request to its Work, with user errors as ApiErrors."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from unmask import plan as plans
from unmask.draw import Pick
from unmask.options import Options
from unmask.protocol import LooksAhead
from unmask.samplers.ahead import Ahead
from unmask.samplers.planned import Planned
from unmask.samplers.scored import Scored
from unmask.sampling import check_ids, sampler_for
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Served, Work
from unmask.serve.http.refusals import ApiError, at_most, blaming, check_text
from unmask.serve.http.schemas import CompletionRequest, SamplingRequest, UnmaskRequest
from unmask.text import particles
from unmask.text.blanks import BLANK, Blanks
from unmask.text.requests import InfillRequest

PARTICLES = 8  # of each guided sequence of a network that computes the next positions alone
COMPLETION = 16  # tokens of a completion, as OpenAI has it
HOLES = "\ue000\ue001\ue002\ue003"  # private-use characters, one of which does not occur in the text

MOST_NAME = 100  # characters of an unknown model's name that are repeated

Prompt = str | list[int]  # a text, or token ids


def find(models: Mapping[str, Served], name: str | None) -> Served:
    """The model of this name; the first one without a name."""
    if name is None:
        return next(iter(models.values()))
    if name not in models:
        served = ", ".join(models)
        raise ApiError(
            404, f"there is no model {name[:MOST_NAME]!r} here: {served}", param="model", code="model_not_found"
        )
    return models[name]


def recorded(served: Served, body: SamplingRequest) -> dict[str, Any]:
    """How the tokens were drawn, as in ``unmask sample --json``."""
    how = body.named.record(served.model.process)
    return {"sampler": how.get("sampler") or how["decoding"], "draw": how["draw"], "dtype": how["dtype"]}


def unmask_work(models: Mapping[str, Served], body: UnmaskRequest, limits: Limits) -> Work:
    """The work of /v1/unmask."""
    given = [name for name in ("text", "prompt", "canvas") if getattr(body, name) is not None]
    if len(given) > 1:
        raise ApiError(400, f"give one of text, prompt and canvas, not {' and '.join(given)}", param=given[1])
    if body.length is not None and given and given != ["prompt"]:
        raise ApiError(400, f"length cannot be combined with {given[0]}", param="length")
    if body.max_tokens is not None and (body.length is not None or given not in ([], ["prompt"])):
        raise ApiError(
            400, "max_tokens needs a prompt or an empty canvas, and cannot be combined with length", param="max_tokens"
        )
    if body.mask_character is not None and given != ["text"]:
        raise ApiError(400, "mask_character needs text", param="mask_character")
    at_most("number", body.number, limits.max_number)
    maker = WorkMaker.of(find(models, body.model), body, body.number, body.seed, limits)
    maker.bounded("length", body.length)
    maker.bounded("max_tokens", body.max_tokens)
    if body.text is not None:
        return maker.infilled("text", body.text, body.mask_character)
    if body.canvas is not None:
        return maker.on_canvas(body.canvas)
    return maker.prompted(body.prompt or "", body.length, room=body.max_tokens)


@dataclass(frozen=True)
class Prompted:
    """A prompt of /v1/completions: the work of completing it, and of scoring it, if requested."""

    prompt: Prompt
    suffix: str
    served: Served
    work: Work | None
    score: Work | None


def completion_works(models: Mapping[str, Served], body: CompletionRequest, limits: Limits) -> list[Prompted]:
    """The prompts of /v1/completions, each with its work."""
    number = body.n or 1
    tokens = COMPLETION if body.max_tokens is None else body.max_tokens
    if body.best_of not in (None, number):
        raise ApiError(400, "best_of other than n is not supported", param="best_of")
    if body.response_format is not None and body.response_format.type != "text":
        for name in ("suffix", "logprobs"):
            if getattr(body, name) is not None:
                raise ApiError(400, f"response_format cannot be combined with {name}", param=name)
        if tokens == 0:
            raise ApiError(400, "response_format needs max_tokens of at least 1", param="max_tokens")
    if body.echo and body.suffix:
        raise ApiError(400, "echo cannot be combined with suffix", param="echo")
    several = isinstance(body.prompt, list) and body.prompt and not isinstance(body.prompt[0], int)
    prompts: list[Any] = [*body.prompt] if several else [body.prompt or ""]  # type: ignore[misc]
    at_most("n", number, limits.max_number)
    if len(prompts) > limits.max_prompts:
        raise ApiError(400, f"{len(prompts)} prompts: this server takes at most {limits.max_prompts}", param="prompt")
    seed = None if body.seed is None else body.seed % 2**64
    maker = WorkMaker.of(find(models, body.model), body, number, seed, limits)
    maker.bounded("max_tokens", tokens)
    scored = body.logprobs is not None and bool(body.echo)
    whole = "max_tokens" not in body.model_fields_set and maker.served.model.layout == "rows" and not body.suffix
    return [
        maker.completion(prompt, body.suffix or "", maker.rest(prompt) if whole else tokens, scored)
        for prompt in prompts
    ]


@dataclass(frozen=True)
class WorkMaker:
    """What the texts of a request have in common."""

    served: Served
    number: int
    seed: int
    options: Options
    body: SamplingRequest
    limits: Limits

    @classmethod
    def of(cls, served: Served, body: SamplingRequest, number: int, seed: int | None, limits: Limits) -> WorkMaker:
        """Without a seed, a random one is drawn, which the answer reports."""
        longest = limits.length_of(served.model.length)
        with blaming():
            named = body.named
            at_most("steps", named.steps, limits.max_steps)
            at_most("block", named.block, longest)
            at_most("ahead", named.ahead if isinstance(named.ahead, int) else None, longest)
            served.model.process.require(*named.given)
            options = Options(**named.arguments())
            check_ids(options, served.model.denoiser.vocab_size)
        seed = secrets.randbits(32) if seed is None else seed
        return cls(served, number, seed, options, body, limits)

    @property
    def longest(self) -> int:
        return self.limits.length_of(self.served.model.length)

    def bounded(self, name: str, tokens: int | None) -> None:
        """Refuse more tokens than a sequence of this model may have."""
        if tokens is not None and tokens > self.longest:
            says = f"{name} asks for {tokens} tokens: a sequence of {self.served.model.name} has at most {self.longest}"
            raise ApiError(400, f"{says} here", param=name)

    def infilled(self, name: str, text: str, mask_character: str | None) -> Work:
        """``Model.infill``: a text with blanks."""
        model = self.served.model
        if not model.process.chooses:
            raise ApiError(400, f"{model.process.phrase} cannot fill blanks here: use unmask infill", param=name)
        self._short(name, text)
        runs = len(re.findall(f"{re.escape(mask_character or BLANK)}+", text))
        self.bounded(name, runs)
        with blaming(name):
            blanks = model.rows.blanks(text, mask_character)
        return self._weighed(name, text, blanks) or self._of_blanks(name, blanks)

    def _weighed(self, name: str, text: str, blanks: Blanks) -> Work | None:
        """The blanks filled by particles where ``Model.infill`` does so by default, as many as this server allows."""
        if not isinstance(self.body, UnmaskRequest):
            return None
        model, how = self.served.model, self.body.named.arguments()
        how |= {"pattern": self.body.pattern, "contains": self.body.contains or ()}
        if model.process.from_left and how.get("plan") is plans.left_to_right:
            del how["plan"]  # the order by default, which the page names
        with blaming(name):
            usual = particles.particles(model, InfillRequest(text, **how))
        together = self.limits.max_joint // (self.number * model.denoiser.vocab_size)
        if usual is None or min(usual, together) < 2:
            return None
        canvas, allowed = particles.canvas(model.rows, blanks)
        self.bounded(name, len(canvas))
        guide = particles.guide(model.rows, canvas, allowed)
        options = replace(self.options, guide=guide, particles=min(usual, together))
        with blaming(canvas=name):
            sampler = sampler_for(model.denoiser, torch.tensor([canvas], dtype=torch.int64), options)
        canvas_of = (self.served, self.number, self.seed, tuple(canvas), blanks)
        return Work(*canvas_of, sampler, options.pick, options.steps, weighed=True)

    def prompted(self, prompt: str, length: int | None, *, room: int | None = None) -> Work:
        """``Model.sample``: a text that begins with the prompt, if any; room: the number of new tokens."""
        model = self.served.model
        length = room or model.length if length is None else length
        if length is None:
            raise ApiError(400, f"{model.name} does not say how long its texts are: give length", param="length")
        if not prompt:
            return self._work("length", (model.denoiser.mask_id,) * length, None)
        self._short("prompt", prompt)
        with blaming("prompt"):
            blanks = model.rows.prompted(prompt, length, room=room)
        return self._of_blanks("prompt", blanks)

    def on_canvas(self, canvas: Sequence[int | None], name: str = "canvas") -> Work:
        """``Model.sample(canvas=...)``: token ids, some of them masked."""
        self.bounded(name, len(canvas))
        network = self.served.model.denoiser
        ids = tuple(network.mask_id if i is None else i for i in canvas)
        wrong = next((i for i in ids if not (i < network.vocab_size or i == network.mask_id)), None)
        if wrong is not None:
            says = f"{name} has the id {wrong}: allowed are 0..{network.vocab_size - 1} and null"
            raise ApiError(400, says, param=name)
        return self._work(name, ids, None)

    def rest(self, prompt: Prompt) -> int:
        """The tokens of a row behind the prompt: models of rows write whole ones by default."""
        length = self.served.model.length or COMPLETION
        if isinstance(prompt, list):
            return max(1, length - len(prompt))
        if prompt:
            self._short("prompt", prompt)
            with blaming("prompt"):
                start, end = self.served.model.rows.prompted(prompt).holes[0]
            return end - start
        return length

    def completion(self, prompt: Prompt, suffix: str, tokens: int, scored: bool) -> Prompted:
        """A prompt of /v1/completions, followed by this many tokens and perhaps a suffix."""
        mask_id, blanks = self.served.model.denoiser.mask_id, None
        ids: Sequence[int] = prompt if isinstance(prompt, list) else ()
        if mask_id in ids:
            raise ApiError(400, f"prompt has the id {mask_id}, which is the mask", param="prompt")
        if isinstance(prompt, str) and prompt and not suffix:
            blanks = self._begun(prompt, tokens)
            ids = blanks.ids[: blanks.holes[0][0]]
        self.bounded("prompt", len(ids) + tokens)
        score = None
        if scored and ids:
            given = Scored.of(self.served.network, tuple(ids))
            score = Work(self.served, 1, self.seed, (mask_id,) * len(ids), None, given, Pick(), None)
        work = None
        if tokens:
            work = self._completed(prompt, suffix, tokens) if blanks is None else self._of_blanks("prompt", blanks)
        return Prompted(prompt, suffix, self.served, work, score)

    def _begun(self, prompt: str, tokens: int) -> Blanks:
        """A prompt and this many masked positions, framed like the training data."""
        self._short("prompt", prompt)
        with blaming("prompt"):
            begun = self.served.model.rows.prompted(prompt, 2 * len(prompt.encode()) + 64)
        (start, end), mask_id = begun.holes[0], self.served.model.denoiser.mask_id
        ids = (*begun.ids[:start], *[mask_id] * tokens, *begun.ids[end:])
        return replace(begun, ids=ids, holes=((start, start + tokens),))

    def _completed(self, prompt: Prompt, suffix: str, tokens: int) -> Work:
        model = self.served.model
        if isinstance(prompt, list):
            if suffix:
                raise ApiError(400, "suffix needs a prompt that is a text, not token ids", param="suffix")
            return self.on_canvas([*prompt, *[None] * tokens], "prompt")
        if not suffix:
            return self.prompted("", tokens)
        if not model.process.chooses:
            raise ApiError(400, f"{model.process.phrase} takes no suffix", param="suffix")
        hole = next((c for c in HOLES if c not in prompt + suffix), None)
        if hole is None:
            raise ApiError(400, "the text uses every character that could stand for a blank", param="prompt")
        return self.infilled("prompt", prompt + hole * tokens + suffix, hole)

    def _short(self, name: str, text: str) -> None:
        check_text(name, text, self.longest)

    def _of_blanks(self, name: str, blanks: Blanks) -> Work:
        if blanks.ids.count(self.served.model.denoiser.mask_id) != sum(end - start for start, end in blanks.holes):
            raise ApiError(400, f"{name} has the mask among its tokens, besides the blanks", param=name)
        return self._work(name, blanks.ids, blanks)

    def _guided(self, ids: tuple[int, ...]) -> Options:
        """The options with the requested guide, and particles where the network needs them."""
        from unmask.serve.http.guided import guide_of, schema_guide

        body = self.body
        if self.schema is not None:
            guide = schema_guide(self.served, ids, self.schema)
        elif isinstance(body, UnmaskRequest) and (body.contains or body.pattern):
            guide = guide_of(self.served, ids, body.pattern, body.contains or ())
        else:
            return self.options
        corrected = self.served.model.process.continues and self.options.pick == Pick(self.options.draw)
        each = min(PARTICLES, max(self.limits.share // self.number, 1)) if corrected else None
        return replace(self.options, guide=guide, particles=each)

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema of the answer, if it has one."""
        form = self.body.response_format if isinstance(self.body, CompletionRequest) else None
        return None if form is None else form.schema_of_answer

    def _work(self, name: str, ids: tuple[int, ...], blanks: Blanks | None) -> Work:
        self.bounded(name, len(ids))
        denoiser = self.served.model.denoiser
        with blaming(canvas=name):
            options = self._guided(ids)
            sampler = sampler_for(denoiser, torch.tensor([ids], dtype=torch.int64), options)
        if isinstance(sampler, Ahead) and not isinstance(self.served.network, LooksAhead):
            # The network gets one canvas for each guess.
            sampler = replace(sampler, most=max(self.limits.max_positions // max(len(ids), 1), 1))
        if not isinstance(sampler, Planned) and self.number > self.limits.share:
            says = f"number={self.number}: this sampler takes at most {self.limits.share}"
            raise ApiError(400, says, param="n" if isinstance(self.body, CompletionRequest) else "number")
        cut = None if self.schema is None else ids.index(denoiser.mask_id)
        return Work(self.served, self.number, self.seed, ids, blanks, sampler, options.pick, options.steps, cut)
