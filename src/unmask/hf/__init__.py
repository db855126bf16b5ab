"""Use unmask with a transformers model, or inside another pipeline.

``generate`` fills the masks of a text with any ``AutoModelForMaskedLM``; ``Scheduler`` is first-hitting sampling with
the interface of a diffusers scheduler, for use in another sampling loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from unmask import plan as plans
from unmask import predict as predictors
from unmask.draw import Draw, Pick, exponential_race
from unmask.noise import Streams
from unmask.plan import Planner
from unmask.predict import Predictor, log_mean
from unmask.sampler import Planned, PlanState, Task, apply
from unmask.sampling import Sample, sample
from unmask.schedule import Linear, Schedule
from unmask.text import external
from unmask.text.adapters import transformers_mlm
from unmask.text.adapters.framed import Framed
from unmask.text.model import Model, ModelOptions, TextSample


def generate(
    model: Any, tokenizer: Any, text: str, *, length: int | None = None, num: int = 1, **options: Unpack[ModelOptions]
) -> TextSample:
    """Fill every ``tokenizer.mask_token`` of a text, ``num`` times, with any masked LM of transformers.

    Special tokens are never drawn. Texts are decoded by the tokenizer.

    Args:
        model: An ``AutoModelForMaskedLM``.
        tokenizer: Its tokenizer.
        text: The text with mask tokens.
        num: The number of texts.
        length: Append this many masks to the text.
        **options: Those of ``unmask.sample``: steps, seed, temperature, top_k, top_p, batch, ... Without ``steps`` one
            token is drawn per network call, which is exact; with ``steps`` it is parallel decoding.
    """
    if getattr(tokenizer, "mask_token_id", None) is None:
        raise ValueError(f"{type(tokenizer).__name__} has no mask token: the model is not a masked language model")
    if length is not None:
        if length < 1:
            raise ValueError(f"length, the number of masks to append, must be at least 1, got {length}")
        # Most tokenizers accept the mask token without spaces; word-level ones need them, and the others drop them.
        text = " ".join([text, *[tokenizer.mask_token] * length]).strip()
    canvas = torch.tensor([tokenizer(text)["input_ids"]])
    if not bool((canvas == tokenizer.mask_token_id).any()):
        raise ValueError(f"the text has no {tokenizer.mask_token}: write it where a token is missing, or give length")
    made = sample(denoiser(model, tokenizer), canvas=canvas.expand(num, -1).clone(), **options)
    written = [tokenizer.decode(row, skip_special_tokens=True) for row in made.tokens.tolist()]
    return TextSample(**{field.name: getattr(made, field.name) for field in fields(Sample)}, text=written)


def denoiser(model: Any, tokenizer: Any) -> Framed:
    """A masked LM of transformers as a Denoiser, for canvases that its tokenizer makes, special tokens included."""
    return transformers_mlm.denoiser(model, external.of_transformers(tokenizer), framed=False)


def wrap(model: Any, tokenizer: Any, *, name: str | None = None) -> Model:
    """A masked LM of transformers as an ``unmask.Model``: sample, infill, bound, every sampler of the package."""
    own = external.of_transformers(tokenizer)
    made = transformers_mlm.denoiser(model, own)
    return Model(made, own, name=name or str(getattr(model, "name_or_path", "") or type(model).__name__), layout="rows")


class Scheduler:
    """Algorithms 1 and 2 with a diffusers-style interface; a seed gives the tokens that it gives in ``unmask.sample``.

        scheduler.set_timesteps(16, canvas)          # or None: one token per call, which is exact
        for i, t in enumerate(scheduler.timesteps):  # t: float64 [B], one time per sequence
            canvas = scheduler.step(model(canvas, t), i, canvas)

    special_ids and the mask are never drawn. Steps must be taken in order, once each.
    """

    def __init__(
        self,
        mask_id: int,
        *,
        special_ids: Iterable[int] = (),
        schedule: Schedule | None = None,
        predict: Predictor = predictors.first_order,
        draw: Draw = exponential_race,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> None:
        self.mask_id, self.never, self.seed = mask_id, sorted({mask_id, *special_ids}), seed
        self.schedule, self.predict = schedule or Linear(), predict
        self.pick = Pick(draw, temperature, top_k, top_p)
        self.state: PlanState | None = None

    def set_timesteps(self, num: int | None, canvas: Tensor, *, plan: Planner | None = None) -> None:
        """Draw when each masked position of the canvas, int64 [B, L], is unmasked, grouped into ``num`` steps.

        num: None for one token per step (Algorithm 1), else parallel decoding (Algorithm 2), or another ``plan``.
        """
        self.sampler = Planned(plan or (plans.first_hitting if num is None else plans.parallel), self.predict)
        streams = Streams.of(self.seed, len(canvas))
        self.state = self.sampler.begin(canvas, Task(self.mask_id, streams, self.pick, self.schedule, num))
        self.next_index = 0

    @property
    def timesteps(self) -> Tensor:
        """The time of each call for each sequence, float64 [steps, B]; 0 for a finished sequence."""
        return self._begun().plan.call_time.T

    def step(self, logits: Tensor, index: int, canvas: Tensor) -> Tensor:
        """The canvas after call ``index``, whose logits are [B, L, V]; the given canvas is not changed."""
        state = self._begun()
        if index != self.next_index or index >= len(self.timesteps):
            due = f"{self.next_index} of {len(self.timesteps)}"
            raise ValueError(f"index={index}: steps are taken in turn, and {due} is due; set_timesteps begins anew")
        if logits.shape[:2] != canvas.shape or canvas.shape != state.x.shape:
            raise ValueError(
                f"logits must be [batch, length, vocabulary] and canvas [batch, length], got {tuple(logits.shape)} and "
                f"{tuple(canvas.shape)}; set_timesteps had a canvas of {tuple(state.x.shape)}"
            )
        state = self.state = replace(state, x=canvas)
        ask = self.sampler.ask(state)
        row, column = (ask.rows >= 0).nonzero(as_tuple=True)
        asked = logits[row.to(logits.device), ask.rows[row, column].to(logits.device)].clone()
        asked[:, [i for i in self.never if i < logits.shape[-1]]] = -torch.inf
        made = self.sampler.fill(state, ask, log_mean(asked))
        self.next_index = index + 1
        return apply(made, canvas.clone(), self.mask_id)

    def _begun(self) -> PlanState:
        if self.state is None:
            raise ValueError("call set_timesteps first")
        return self.state
