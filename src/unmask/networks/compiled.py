"""torch.compile for sampling. It changes logits only by rounding, and pays off if many calls have one shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

from unmask.networks.cache.rows import AskedRows
from unmask.networks.masked import MaskedNetwork
from unmask.networks.visible import VisibleDDiT

dynamo: Any = torch._dynamo.config
SHAPES = 256  # powers of two of sequences, times those of rows


class Compiled(nn.Module):
    """A bidirectional network whose calls are compiled, with static shapes: the first call of each shape warms up.

    A plan's calls differ in their numbers of sequences and of rows. Both are padded to powers of two, so that a run has
    few shapes, and none is compiled twice.
    """

    def __init__(self, network: MaskedNetwork, **options: Any) -> None:
        super().__init__()
        fast = network.for_sampling() if isinstance(network, MaskedNetwork) else None
        if not isinstance(fast, AskedRows) or isinstance(network, VisibleDDiT):
            raise ValueError("only bidirectional networks of this project without a cache can be compiled")
        self.vocab_size, self.mask_id, self.suppresses_mask = fast.vocab_size, fast.mask_id, fast.suppresses_mask
        self.network = torch.compile(fast, dynamic=False, **options)

    def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        batch, count = len(tokens), tokens.shape[1] if rows is None else rows.shape[1]
        tokens = padded(tokens, 0)
        time = None if time is None else padded(time, 0)
        rows = None if rows is None else padded(padded(rows, 0), 1, most=tokens.shape[1])
        try:
            with dynamo.patch(recompile_limit=SHAPES):  # beyond its limit torch would stop compiling without a word
                logits: Tensor = self.network(tokens, time=time, rows=rows)
        except BackendCompilerFailed as error:
            why = " ".join(str(error).split("\n\n")[0].split())
            raise ValueError(f"the network cannot be compiled here: {why}; sample without compiling") from error
        return logits[:batch, :count]


def padded(tensor: Tensor, dim: int, most: int | None = None) -> Tensor:
    """The tensor with its last entry repeated, up to a power of two entries or ``most``."""
    size = tensor.shape[dim]
    power = 1 << (size - 1).bit_length() if size else 0
    wanted = power if most is None else min(power, max(most, size))
    if wanted == size:
        return tensor
    last = tensor.narrow(dim, size - 1, 1)
    return torch.cat([tensor, *[last] * (wanted - size)], dim)
