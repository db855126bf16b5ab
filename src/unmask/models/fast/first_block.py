"""The first block's projections, computed once for each token that a canvas shows."""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor
from torch.nn import functional

from unmask.models.layers import Angles, Block


class FirstProjections(threading.local):
    """The first block's queries, keys and values of the last canvas: of a new one only what has changed is computed.

    They depend on a token, its position and, with a convolution, its neighbours, and on nothing else: the mask's are
    computed in the first call and never again. Whatever canvases come, the answer is that of ``Block.project``; the
    weights must stay as they are. Each thread has its own.
    """

    def __init__(self) -> None:
        self.tokens: Tensor | None = None  # int64 [B, L]
        self.kept: tuple[Tensor, Tensor, Tensor]

    def __reduce__(self) -> tuple[Any, ...]:
        return FirstProjections, ()  # a copy begins with nothing

    def __call__(self, block: Block, tokens: Tensor, x: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """The projections of tokens [B, L] whose embeddings are x [B, L, width]; angles are [L, 1, head_dim]."""
        batch, known = len(tokens), self.tokens
        if known is None or len(known) < batch or known.shape[1] != tokens.shape[1]:
            self.kept = block.project(block.prepared(x, None, None), angles)
        else:
            q, k, v = self.kept
            self.kept = q[:batch], k[:batch], v[:batch]
            self._update(block, tokens != known[:batch], x, angles)
        self.tokens = tokens.clone()
        return self.kept

    def _update(self, block: Block, changed: Tensor, x: Tensor, angles: Angles) -> None:
        if block.convolution is not None:
            x, taps = block.prepared(x, None, None), block.convolution.weight.shape[1]
            changed = functional.max_pool1d(changed.float(), taps, stride=1, padding=taps // 2) > 0
        row, at = changed.nonzero(as_tuple=True)
        h = x[row, at].unsqueeze(1)
        h = h if block.convolution is not None else block.prepared(h, None, None)
        new = block.project(h, (angles[0][at].unsqueeze(1), angles[1][at].unsqueeze(1)))
        for kept, part in zip(self.kept, new, strict=True):
            kept[row, :, at] = part.squeeze(2)
