"""The paper's network that also reads the token to the left of each position: to start from left-to-right weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.networks.attention import Entries
from unmask.networks.config import DDiTConfig
from unmask.networks.ddit import DDiT


class LeftReadingDDiT(DDiT):
    """Its input is the embedding of the left neighbour, plus a linear map of that of the token where it is visible."""

    architecture = "left-reading"
    opens = 1.0  # in training: the part of what lies ahead that attention sees, below 1 on the way from left to right

    def __init__(self, config: DDiTConfig) -> None:
        super().__init__(config)
        self.own_token = nn.Linear(config.width, config.width, bias=False)

    @property
    def reads_position_alone(self) -> bool:
        return False

    def entries(self, tokens: Tensor, lengths: Tensor | None = None) -> Entries:
        """Every position, seen by all; while attention opens, what lies ahead is seen at random."""
        entries = super().entries(tokens, lengths)
        if not self.training or self.opens >= 1 or lengths is not None:
            return entries
        count = tokens.shape[1]
        seen = torch.rand(count, count, device=tokens.device) < self.opens
        return entries._replace(mask=(seen | torch.ones_like(seen).tril())[None, None])

    def embedded(self, tokens: Tensor) -> Tensor:
        left = functional.pad(tokens[:, :-1], (1, 0), value=self.mask_id)  # [B, L]
        own: Tensor = self.own_token(self.vocab_embed(tokens)) * (tokens != self.mask_id).unsqueeze(-1)
        return self.vocab_embed(left) + own  # type: ignore[no-any-return]
