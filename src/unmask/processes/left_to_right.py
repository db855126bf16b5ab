"""Left to right: the logits at a position depend only on the tokens before it.

Nothing is masked in training or evaluation: every token is a term, given those before it, and all L terms come from one
pass. The likelihood is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from unmask import plan as plans
from unmask.errors import OptionError
from unmask.masking import Masking, Uniforms, all_tokens
from unmask.network import logits_where
from unmask.options import Options
from unmask.processes.process import LEFT_TO_RIGHT, Process, token_nats
from unmask.protocol import Denoiser

ONE_PER_CALL = (
    "a left-to-right model draws one token per call from the beginning: it takes no {it}; "
    "leave it out, or take a masked model: kjv"
)


@dataclass(frozen=True)
class LeftToRight(Process):
    """The only order is from left to right."""

    name = "left-to-right"
    phrase = "a left-to-right model"
    chooses = False
    continues = True
    exact = True
    objectives = (LEFT_TO_RIGHT,)
    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("sampler", "steps", "predict", "predictor", "decoding"), ONE_PER_CALL),
        "profile": "a left-to-right model has one order and no profile",
    }
    from_left: bool = True

    def check(self, model: Denoiser, canvas: Tensor, options: Options) -> None:
        super().check(model, canvas, options)
        if options.plan not in (None, plans.left_to_right):
            raise OptionError("plan", ONE_PER_CALL.format(it="plan"))
        masked = canvas == model.mask_id
        if bool((masked[:, :-1] & ~masked[:, 1:]).any()):
            raise OptionError(
                "canvas",
                "a left-to-right model continues a text: the masked positions must come last; unmask infill and "
                "Model.infill fill blanks by particles",
            )

    def masking(self, objective: str, u: Uniforms, *, where: Tensor | None = None, **how: Any) -> Masking:
        return all_tokens(u.keys if u.when is None else u.when, where)

    def logits(self, model: Any, x0: Tensor, masking: Masking) -> Tensor:
        return logits_where(model, x0, None, masking.masked)

    def states(self, network: Any, x0: Tensor, masking: Masking, objective: str) -> Tensor | None:
        return self._states(network, x0, masking)

    def validated(self, objective: str) -> str:
        return LEFT_TO_RIGHT

    def per_position(self, model: Denoiser, x0: Tensor, where: Tensor) -> Tensor:
        """One call gives all positions."""
        nats = torch.zeros(x0.shape, dtype=torch.float64)
        nats[where.cpu()] = token_nats(logits_where(model, x0, None, where), x0[where])
        return nats
