"""MDLM's left-to-right baseline: the causal twin without a start token, because every sequence begins with the same id.

Its output at position l predicts token l + 1, and the first token, <|endoftext|> or [CLS], is given.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from unmask.models.causal import Causal, Past
from unmask.models.ddit import DDiTConfig


class Given(Causal):
    """A causal network whose first token is ``first`` with probability one, and which has no other start."""

    def __init__(self, config: DDiTConfig, first: int = 0) -> None:
        super().__init__(config)
        self.first = first

    def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """tokens [B, L], rows [B, R] -> float32 logits [B, R, V], or [B, L, V] without rows."""
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
        logits = self.next_logits(tokens, (rows - 1).clamp(min=0))
        return torch.where((rows == 0).unsqueeze(-1), self._begins(logits), logits)

    def for_sampling(self) -> nn.Module:
        """As in ``Causal``; a folded copy begins as this one does."""
        network = cast("Given", super().for_sampling())
        network.first = self.first
        return network

    def packed(self, tokens: Tensor, time: Tensor | None, where: Tensor) -> Tensor:
        """Logits [M, V] at the M positions where the boolean [B, L] holds, in row-major order."""
        return self.forward(tokens)[where]

    def step(self, inputs: Tensor, past: list[Past]) -> Tensor:
        """As in ``Causal``, whose start token is the first input: here it is not shown to the network."""
        if past[0].used == 0 and int(inputs[0, 0]) == self.mask_id:
            inputs = inputs[:, 1:]
            if inputs.shape[1] == 0:
                return self._begins(self.vocab_embed.embedding.new_empty(len(inputs), self.vocab_size))
        return super().step(inputs, past)

    def _begins(self, like: Tensor) -> Tensor:
        only = torch.full_like(like, -torch.inf)
        only[..., self.first] = 0.0
        return only
