"""A masked language model as a Denoiser: special tokens stand around every canvas and are never drawn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from unmask.text.foreign import Frame


class Framed(nn.Module):
    """``network(ids [B, T], rows [B, R]) -> logits [B, R, V]`` with the ids ``around`` every canvas.

    A canvas holds the text alone. special_ids carry -inf, as the mask does. limit: the most tokens that the network
    takes, those around the canvas included, or None; ``length`` is what it leaves for the canvas.
    """

    suppressed: Tensor
    before: Tensor
    after: Tensor

    def __init__(
        self,
        network: Any,
        *,
        vocab_size: int,
        mask_id: int,
        special_ids: Iterable[int] = (),
        around: Frame = ((), ()),
        limit: int | None = None,
    ) -> None:
        super().__init__()
        never = sorted({*special_ids, mask_id})
        if not 0 <= never[0] <= never[-1] < vocab_size:
            raise ValueError(f"the mask and special ids must be in 0..{vocab_size - 1}, got {never[0]}..{never[-1]}")
        self.network, self.vocab_size, self.mask_id, self.limit = network, vocab_size, mask_id, limit
        self.length = None if limit is None else limit - len(around[0]) - len(around[1])
        suppressed = torch.zeros(vocab_size, dtype=torch.bool)
        suppressed[never] = True
        self.register_buffer("suppressed", suppressed)
        self.register_buffer("before", torch.tensor(around[0], dtype=torch.int64))
        self.register_buffer("after", torch.tensor(around[1], dtype=torch.int64))

    def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        batch, length = tokens.shape
        if self.length is not None and length > self.length:
            raise ValueError(
                f"a canvas of {length} tokens: this network takes at most {self.length}"
                + (f" ({self.limit} with the special tokens around them)" if self.limit != self.length else "")
            )
        if rows is None:
            rows = torch.arange(length, device=tokens.device).expand(batch, -1)
        ids = torch.cat([self.before.expand(batch, -1), tokens, self.after.expand(batch, -1)], 1)
        logits: Tensor = self.network(ids, rows + len(self.before))
        return logits.masked_fill(self.suppressed, -torch.inf)
