"""SEDD's uniform-state network: its logits are log-ratios of probabilities, 0 for the token that is there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unmask.processes import Uniform


class LogRatios(nn.Module):
    """logits = log p(x with y at l) / p(x): their softmax is the law of the state's token given the others."""

    process = Uniform(scores=True)
    takes_lengths = False

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.vocab_size, self.mask_id, self.length = network.vocab_size, network.mask_id, network.length
        self.config = getattr(network, "config", None)

    def for_sampling(self) -> LogRatios:
        return LogRatios(self.network.for_sampling())

    def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        here = tokens.gather(1, rows).unsqueeze(2)
        logits: Tensor = self.network(tokens, time=time, rows=rows)
        return logits.scatter(2, here, 0.0)
