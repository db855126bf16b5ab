"""MDLM's left-to-right baseline: the causal twin without a start token, since every sequence begins with the same id.

Its output at position l predicts token l + 1, and the first token, <|endoftext|> or [CLS], is given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.networks.causal import Causal
from unmask.networks.config import TransformerConfig
from unmask.networks.layers import check_tokens


class Given(Causal):
    """A causal network whose first token is ``first`` with probability one, without a start token."""

    lag = 1

    def __init__(self, config: TransformerConfig, first: int = 0) -> None:
        super().__init__(config)
        self.first = first

    def inputs(self, tokens: Tensor) -> Tensor:
        check_tokens(tokens)
        return tokens

    def answers(self, logits: Tensor, rows: Tensor) -> Tensor:
        """As in ``Causal``, but the first token is certain."""
        only = torch.full_like(logits[..., :1, :], -torch.inf)
        only[..., self.first] = 0.0
        return torch.where((rows == 0).unsqueeze(-1), only, logits)

    def packed(self, tokens: Tensor, time: Tensor | None, where: Tensor) -> Tensor:
        """Logits [M, V] at the M positions where the boolean [B, L] is true, in row-major order."""
        return self.forward(tokens)[where]
