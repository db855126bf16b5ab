"""Uniform state: tokens are replaced by random ones, not by a mask (``unmask.uniform``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from unmask.errors import OptionError
from unmask.masking import Masking, Uniforms
from unmask.network import logits_at
from unmask.options import Options
from unmask.processes.process import By, Process, at_least_float32
from unmask.protocol import Denoiser
from unmask.sampler import Sampler
from unmask.schedule import Linear, Schedule
from unmask.uniform import noised, score_entropies, stretched

WHOLE = "a uniform-state model cannot tell given tokens from random ones"
REDRAWS = "a uniform-state model redraws random positions: it takes no {it}"


@dataclass(frozen=True)
class Uniform(Process):
    """Every position holds a token at any time, and may change more than once."""

    name = "uniform"
    phrase = "a uniform-state model"
    bounds: ClassVar[Mapping[str, str]] = {"time": "time (docs/uniform.md)"}
    chooses = False
    orders = "with the fewest jumps"
    in_steps = "uniform-ancestral"
    objectives = ("time",)
    settings: ClassVar[Mapping[str, Any]] = {"uniform": True}
    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("plan", "predict", "predictor", "decoding", "ahead", "draft", "guide", "stop", "allowed"), REDRAWS
        ),
        **dict.fromkeys(("presence_penalty", "frequency_penalty", "adaptive", "n"), REDRAWS),
        **dict.fromkeys(("prompt", "text"), WHOLE + ": it draws whole texts and takes no {it}"),
        **dict.fromkeys(("fill_blanks", "score_continuations", "be_measured_by_steps"), WHOLE + ": it cannot {it}"),
        **dict.fromkeys(
            ("by=count", "by=order", "by=mixture", "by=left-to-right"),
            "a uniform-state model has no masked tokens to count and no order: its bound takes by='time' alone",
        ),
        "where": WHOLE + ": its bound takes no where",
        "orders": "a uniform-state model has no order of positions: unmask.nelbo bounds its likelihood",
        "profile": "a uniform-state model has no order of positions, and no profile over them",
    }

    reads_time: bool = True  # whether the network's output depends on the time
    scores: bool = False  # whether it predicts the noisy token q(. | nu), and not nu

    def check_sampler(self, sampler: Sampler | None) -> None:
        if sampler is not None and getattr(sampler, "process", None) != self.name:
            name = type(sampler).__name__
            raise OptionError("sampler", f"{self.phrase} takes a sampler of unmask.samplers.uniform, not {name}")

    def check(self, model: Denoiser, canvas: Tensor, options: Options) -> None:
        super().check(model, canvas, options)
        if model.mask_id != model.vocab_size:
            says = f"a uniform-state model has no mask: its mask_id must be {model.vocab_size}, got {model.mask_id}"
            raise ValueError(says)
        if bool((canvas != model.mask_id).any()):
            raise OptionError("canvas", f"{WHOLE}: it draws whole texts and takes no given token")

    @property
    def order(self) -> str:
        return "uniformised"

    @property
    def default_by(self) -> By:
        return "time"

    def law(self, by: By) -> str:
        """The bound is of the reverse of the forward process; the default sampler takes the jumps that are needed."""
        return f"by jumps back and forth (by default, sampling draws {self.orders})"

    def sampler(self, options: Options) -> Sampler:
        from unmask.samplers.uniform import Ancestral, Uniformised

        if isinstance(options.sampler, Ancestral):
            return replace(options.sampler, scores=self.scores)
        if options.steps is None:
            chosen = options.sampler if isinstance(options.sampler, Uniformised) else Uniformised()
            return replace(chosen, scores=self.scores, reads_time=self.reads_time)
        if options.sampler is not None:
            raise OptionError("steps", "the uniformised sampler draws its number of steps: leave steps out")
        return Ancestral(scores=self.scores)

    def masking(
        self, objective: str, u: Uniforms, *, schedule: Schedule | None = None, where: Tensor | None = None, **how: Any
    ) -> Masking:
        """A time for each sequence; ``when`` holds each position's replacement in 0..1, -1 if it has none, and alpha.

        One uniform number is enough for a position: below alpha its token is kept, and what remains of it is uniform.
        """
        if where is not None and not bool(where.all()):
            raise OptionError("where", self.refused["where"])
        keys, schedule = u.keys, schedule or Linear()
        alpha, slope = stretched(schedule, u.t.to(keys.device))
        level = alpha.unsqueeze(1)
        replaced = torch.where(keys < level, -1.0, (keys - level) / (1 - level))
        when = torch.stack((replaced, level.expand_as(keys)), 2)
        return Masking(torch.ones_like(keys, dtype=torch.bool), schedule.inverse(alpha), -slope / alpha, when)

    def terms(self, model: Any, x0: Tensor, masking: Masking, objective: str = "time") -> Tensor:
        assert masking.when is not None
        replaced, alpha = masking.when.unbind(2)
        x = noised(x0, replaced, model.vocab_size)
        every = torch.arange(x.shape[1], device=x.device).expand_as(x)  # every position has a term
        logits = at_least_float32(logits_at(model, x, masking.time, every).flatten(0, 1))
        now, target, level = x[masking.at], x0[masking.at], alpha[masking.at]
        return masking.summed(score_entropies(logits, now, target, level, scores=self.scores))

    def states(self, network: Any, x0: Tensor, masking: Masking, objective: str) -> Tensor | None:
        return None

    def validated(self, objective: str) -> str:
        return "time"

    def along_order(self, model: Any, x0: Tensor, order: Tensor, *, time: Tensor | None = None) -> Tensor:
        raise OptionError("orders", self.refused["orders"])

    def per_position(self, model: Denoiser, x0: Tensor, where: Tensor) -> Tensor:
        raise OptionError("orders", self.refused["orders"])
