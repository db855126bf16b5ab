"""First-hitting sampling in diffusers: a scheduler with the conventions of its discrete schedulers, and a pipeline.

    scheduler = FirstHittingScheduler(mask_token_id=tokenizer.mask_token_id)
    pipe = FirstHittingPipeline(model, scheduler, tokenizer)       # any AutoModelForMaskedLM
    pipe("Paris is the [MASK] [MASK] of France.", generator=torch.Generator().manual_seed(0)).texts
    pipe.save_pretrained(folder); FirstHittingPipeline.from_pretrained(folder)

As in diffusers, ``set_timesteps`` comes before the sample is known, a timestep is the number of the step, ``step``
takes (model_output, timestep, sample), draws from ``generator``, and returns an output or a tuple.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unmask import plan as plans
from unmask.draw import Pick
from unmask.names import PREDICTORS
from unmask.noise import Streams
from unmask.predict import log_mean
from unmask.sampler import Task, apply
from unmask.samplers.planned import Planned, PlanState
from unmask.schedule import Linear

try:
    library: Any = importlib.import_module("diffusers")
    ConfigMixin: Any = library.ConfigMixin
    SchedulerMixin: Any = library.SchedulerMixin
    DiffusionPipeline: Any = library.DiffusionPipeline
    register_to_config: Any = importlib.import_module("diffusers.configuration_utils").register_to_config
    BaseOutput: Any = importlib.import_module("diffusers.utils").BaseOutput
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("this needs diffusers: pip install 'unmask[diffusers]'", name="diffusers") from error

ONE_EACH = (
    "num_inference_steps=None is one token per step: set_timesteps(None, sample=...) must see how many are masked"
)


@dataclass
class FirstHittingSchedulerOutput(BaseOutput):  # type: ignore[misc]
    """The result of a step, with the field names of diffusers' block refinement."""

    prev_sample: Tensor  # int64 [B, L]: after the step
    transfer_index: Tensor  # bool [B, L]: the positions that were unmasked
    sampled_tokens: Tensor  # int64 [B, L]: their tokens, as in prev_sample
    sampled_probs: Tensor  # float [B, L]: their probabilities under the model, 0 elsewhere
    pred_logits: Tensor  # [B, L, V]: the model's output


class FirstHittingScheduler(SchedulerMixin, ConfigMixin):  # type: ignore[misc]
    """Algorithms 1 and 2 of Zheng et al.: exact with one token per step, parallel decoding with fewer steps.

    The first step draws when each position is unmasked; a step without a position costs one call. The tokens are those
    of ``unmask.sample`` with the same seed. special_token_ids are never drawn. Settings are keyword arguments, so that
    diffusers can tell given values from defaults.
    """

    order = 1

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        *,
        mask_token_id: int,
        special_token_ids: Sequence[int] = (),
        num_inference_steps: int | None = 32,
        predictor: str = "first-order",
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> None:
        if predictor not in PREDICTORS:
            raise ValueError(f"predictor must be one of {', '.join(PREDICTORS)}, got {predictor!r}")
        self.num_inference_steps = num_inference_steps
        self.timesteps = torch.arange(num_inference_steps or 0)
        self._state: PlanState | None = None
        self._due = 0  # the next step

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: str | torch.device | None = None,
        sample: Tensor | None = None,
    ) -> None:
        """This many steps, or with None one per masked token of ``sample``, which is exact."""
        if num_inference_steps is None:
            if sample is None:
                raise ValueError(ONE_EACH)
            number = int((sample == self.config.mask_token_id).sum(1).max())
        elif num_inference_steps <= 0:
            raise ValueError(f"`num_inference_steps` must be > 0, got {num_inference_steps}.")
        else:
            number = num_inference_steps
        self.num_inference_steps = num_inference_steps
        self.timesteps = torch.arange(number, device=device)
        self._state = None

    def scale_model_input(self, sample: Tensor, timestep: int | Tensor | None = None) -> Tensor:
        """Return the sample unchanged: a masked model reads tokens as they are."""
        return sample

    def step(
        self,
        model_output: Tensor,
        timestep: int | Tensor,
        sample: Tensor,
        *,
        generator: torch.Generator | None = None,
        return_dict: bool = True,
    ) -> FirstHittingSchedulerOutput | tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The sample after step ``timestep``. Step 0 draws the plan; steps are taken in order.

        model_output: logits [B, L, V]; sample: int64 [B, L]; generator: provides the seed at step 0, by default
        torch's.
        """
        index, mask_id = int(timestep), self.config.mask_token_id
        if index == 0:
            self._begin(sample, generator)
        if self._state is None:
            raise ValueError(f"timestep={index}: begin with timestep 0, which draws when each position is unmasked")
        if model_output.shape[:2] != sample.shape or sample.shape != self._state.x.shape:
            raise ValueError(
                f"model_output must be [batch, length, vocabulary] and sample [batch, length], got "
                f"{tuple(model_output.shape)} and {tuple(sample.shape)}; step 0 had a sample of "
                f"{tuple(self._state.x.shape)}"
            )
        planned = self._state.plan.call_time.shape[1]
        if index != self._due or (index >= planned and bool((sample == mask_id).any())):
            due = f"{self._due} of {planned}"
            raise ValueError(f"timestep={index}: the next step is {due}; set_timesteps starts again")
        filled = self._filled(self._state, model_output, sample) if index < planned else sample.clone()
        self._due = index + 1
        moved = (sample == mask_id) & (filled != mask_id)
        token = filled.to(model_output.device).clamp(max=model_output.shape[-1] - 1).unsqueeze(-1)
        sure = model_output.float().softmax(-1).gather(-1, token).squeeze(-1)
        out = (filled, moved, filled, torch.where(moved.to(sure.device), sure, 0.0), model_output)
        return FirstHittingSchedulerOutput(*out) if return_dict else out

    def add_noise(
        self, original_samples: Tensor, timesteps: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Mask each token with probability t, float [B] in (0, 1): the forward process of a linear schedule."""
        time = torch.as_tensor(timesteps, dtype=torch.float64).view(-1, 1)
        if bool(((time < 0) | (time > 1)).any()):
            raise ValueError("add_noise takes times from 0, clean, to 1, masked")
        u = torch.rand(original_samples.shape, dtype=torch.float64, generator=generator).to(original_samples.device)
        return torch.where(u < time.to(u.device), self.config.mask_token_id, original_samples)

    def _begin(self, sample: Tensor, generator: torch.Generator | None) -> None:
        """Draw when each masked position is unmasked, grouped into the steps that were asked for."""
        config, device = self.config, "cpu" if generator is None else generator.device
        seed = int(torch.randint(2**62, (), generator=generator, device=device))
        plan = plans.first_hitting if self.num_inference_steps is None else plans.parallel
        self._sampler = Planned(plan, PREDICTORS[config.predictor])
        pick = Pick(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
        task = Task(config.mask_token_id, Streams.of(seed, len(sample)), pick, Linear(), self.num_inference_steps)
        self._state, self._due = self._sampler.begin(sample, task), 0

    def _filled(self, state: PlanState, logits: Tensor, sample: Tensor) -> Tensor:
        """The sample after the step that is due; special tokens and the mask are not drawn."""
        state = self._state = replace(state, x=sample)
        ask = self._sampler.ask(state)
        row, column = (ask.rows >= 0).nonzero(as_tuple=True)
        asked = logits[row.to(logits.device), ask.rows[row, column].to(logits.device)].clone()
        never = {self.config.mask_token_id, *self.config.special_token_ids}
        asked[:, [i for i in sorted(never) if i < logits.shape[-1]]] = -torch.inf
        return apply(self._sampler.fill(state, ask, log_mean(asked)), sample.clone(), self.config.mask_token_id)


@dataclass
class FirstHittingPipelineOutput(BaseOutput):  # type: ignore[misc]
    sequences: Tensor  # int64 [B, L]
    texts: list[str] | None = None


class FirstHittingPipeline(DiffusionPipeline):  # type: ignore[misc]
    """Fill the masks of texts with any masked language model of transformers."""

    model: Any
    scheduler: FirstHittingScheduler
    tokenizer: Any

    def __init__(self, model: Any, scheduler: FirstHittingScheduler, tokenizer: Any) -> None:
        super().__init__()
        self.register_modules(model=model, scheduler=scheduler, tokenizer=tokenizer)

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str],
        num_inference_steps: int | None = None,
        generator: torch.Generator | None = None,
        output_type: str = "text",
        return_dict: bool = True,
        callback_on_step_end: Callable[..., dict[str, Any] | None] | None = None,
    ) -> FirstHittingPipelineOutput | tuple[Tensor, list[str] | None]:
        """num_inference_steps: None draws one token per call, which is exact. output_type: "text", or "seq" for ids."""
        if output_type not in ("text", "seq"):
            raise ValueError(f"output_type must be 'text' or 'seq', got {output_type!r}")
        texts = [prompt] if isinstance(prompt, str) else prompt
        given = self.tokenizer(texts, return_tensors="pt", padding=len(texts) > 1).to(self.model.device)
        x = given["input_ids"]
        if not bool((x == self.scheduler.config.mask_token_id).any()):
            raise ValueError(f"the text has no {self.tokenizer.mask_token}: write it where a token is missing")
        self.scheduler.set_timesteps(num_inference_steps, device=x.device, sample=x)
        for t in self.progress_bar(self.scheduler.timesteps):
            logits = self.model(**{**given, "input_ids": x}).logits
            x = self.scheduler.step(logits, t, x, generator=generator, return_dict=False)[0]
            if callback_on_step_end is not None:
                x = (callback_on_step_end(self, int(t), t, {"x": x}) or {}).get("x", x)
        written = self.tokenizer.batch_decode(x, skip_special_tokens=True) if output_type == "text" else None
        return FirstHittingPipelineOutput(x, written) if return_dict else (x, written)
