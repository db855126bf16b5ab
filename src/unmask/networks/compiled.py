"""torch.compile for sampling. It changes logits only by rounding, and pays off if many calls have one shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

from unmask.networks.cache.rows import AskedRows
from unmask.networks.masked import MaskedNetwork
from unmask.networks.visible import VisibleDDiT


class Compiled(nn.Module):
    """A bidirectional network whose calls are compiled, with static shapes: the first call of each shape warms up."""

    def __init__(self, network: MaskedNetwork, **options: Any) -> None:
        super().__init__()
        fast = network.for_sampling() if isinstance(network, MaskedNetwork) else None
        if not isinstance(fast, AskedRows) or isinstance(network, VisibleDDiT):
            raise ValueError("only bidirectional networks of this project without a cache can be compiled")
        self.vocab_size, self.mask_id, self.suppresses_mask = fast.vocab_size, fast.mask_id, fast.suppresses_mask
        self.network = torch.compile(fast, dynamic=False, **options)

    def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        try:
            logits: Tensor = self.network(tokens, time=time, rows=rows)
        except BackendCompilerFailed as error:
            why = " ".join(str(error).split("\n\n")[0].split())
            raise ValueError(f"the network cannot be compiled here: {why}; sample without compiling") from error
        return logits
