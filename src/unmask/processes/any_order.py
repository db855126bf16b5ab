"""Any order: a masked process whose network's attention is causal in the order of unmasking.

The output depends on the order in which the visible tokens came, so a masking has one (``when``), and the chain rule
along an order is one pass: two streams, of which one reads the tokens and the other predicts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unmask.masking import Masking, Uniforms, all_tokens
from unmask.network import suppress_mask
from unmask.processes.process import MASKED_OBJECTIVES, Process

TWO_STREAM = "two-stream"
LOGITS = 1 << 24  # per piece; a sequence may need as many as L V


@dataclass(frozen=True)
class AnyOrder(Process):
    """The network has ``two_streams``, and its calls take ``when`` [B, L], smaller first."""

    name = "any-order"
    phrase = "an any-order model"
    reads_order = True
    objectives = (*MASKED_OBJECTIVES, TWO_STREAM)

    def masking(self, objective: str, u: Uniforms, *, where: Tensor | None = None, **how: Any) -> Masking:
        if objective == TWO_STREAM:
            assert u.when is not None
            return all_tokens(u.when, where)
        return super().masking(objective, u, where=where, **how)

    def logits(self, model: Any, x0: Tensor, masking: Masking) -> Tensor:
        if masking.when is None:
            return super().logits(model, x0, masking)
        x = masking.hide(x0, model.mask_id)
        return suppress_mask(model, model.packed(x, masking.time, masking.masked, when=masking.when))

    def terms(self, model: Any, x0: Tensor, masking: Masking, objective: str = "count") -> Tensor:
        if objective == TWO_STREAM:
            assert masking.when is not None
            return self.along_order(model, x0, masking.when.argsort(1))
        return super().terms(model, x0, masking, objective)

    def states(self, network: Any, x0: Tensor, masking: Masking, objective: str) -> Tensor | None:
        if objective == TWO_STREAM:
            states: Tensor = network.two_streams(x0, masking.when)[masking.at]
            return states
        if objective == "score-entropy":
            return None
        return self._states(network, masking.hide(x0, network.mask_id), masking, when=masking.when)

    def validated(self, objective: str) -> str:
        return objective if objective == TWO_STREAM else "count"

    def pass_uniforms(self, t: Tensor, u: Tensor) -> Uniforms:
        return Uniforms(t, *u.unbind(1))

    def along_order(self, model: Any, x0: Tensor, order: Tensor, *, time: Tensor | None = None) -> Tensor:
        """The chain rule in one pass of length L + K."""
        places = torch.arange(order.shape[1], device=x0.device).expand_as(order)
        when = torch.full_like(x0, -1).scatter(1, order, places)  # positions outside the order come first
        states, targets = model.two_streams(x0, when, order), x0.gather(1, order)
        total = torch.zeros(len(x0), dtype=torch.float64, device=x0.device)
        size = max(1, LOGITS // max(1, len(x0) * model.vocab_size))
        for some, target in zip(torch.split(states, size, 1), torch.split(targets, size, 1), strict=True):
            losses = functional.cross_entropy(model.logits(some).double().mT, target, reduction="none")
            total = total + losses.sum(1)
        return total
