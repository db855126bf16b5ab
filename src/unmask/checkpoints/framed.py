"""A masked language model as a Denoiser: special tokens surround every canvas and are never drawn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from unmask.tokenizers.external import Frame


class Framed(nn.Module):
    """``network(ids [B, T], rows [B, R]) -> logits [B, R, V]`` with the ids ``around`` every canvas.

    A canvas holds only the text. special_ids have logit -inf, like the mask. limit: the maximum number of tokens of the
    network, including those around the canvas, or None; ``length`` is what remains for the canvas. pad_id: padding
    after the end of a shorter sequence, for a network verified to ignore it.
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
        pad_id: int | None = None,
    ) -> None:
        super().__init__()
        never = sorted({*special_ids, mask_id})
        if not 0 <= never[0] <= never[-1] < vocab_size:
            raise ValueError(f"the mask and special ids must be in 0..{vocab_size - 1}, got {never[0]}..{never[-1]}")
        self.network, self.vocab_size, self.mask_id, self.limit = network, vocab_size, mask_id, limit
        self.pad_id = pad_id
        self.length = None if limit is None else limit - len(around[0]) - len(around[1])
        suppressed = torch.zeros(vocab_size, dtype=torch.bool)
        suppressed[never] = True
        self.register_buffer("suppressed", suppressed)
        self.register_buffer("before", torch.tensor(around[0], dtype=torch.int64))
        self.register_buffer("after", torch.tensor(around[1], dtype=torch.int64))

    @property
    def takes_lengths(self) -> bool:
        return self.pad_id is not None

    def forward(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        batch, length = tokens.shape
        if self.length is not None and length > self.length:
            raise ValueError(
                f"a canvas of {length} tokens: this network takes at most {self.length}"
                + (f" ({self.limit} with the special tokens around them)" if self.limit != self.length else "")
            )
        if rows is None:
            rows = torch.arange(length, device=tokens.device).expand(batch, -1)
        ids = torch.cat([self.before.expand(batch, -1), tokens, self.after.expand(batch, -1)], 1)
        if lengths is None and self.pad_id is not None:  # a row of a token file: shorter texts are padded
            lengths = (tokens != self.pad_id).sum(1)
        if lengths is not None:
            ids = self._padded(ids, lengths.unsqueeze(1) + len(self.before))
        logits: Tensor = self.network(ids, rows + len(self.before))
        return logits.masked_fill(self.suppressed, -torch.inf)

    def _padded(self, ids: Tensor, ends: Tensor) -> Tensor:
        """The ids around each canvas, which ends at int64 [B, 1], followed by padding."""
        assert self.pad_id is not None
        ids = torch.where(torch.arange(ids.shape[1], device=ids.device) < ends, ids, self.pad_id)
        behind = torch.arange(len(self.after), device=ids.device)
        return ids.scatter(1, ends + behind, self.after.expand(len(ids), -1))
