"""Texts that end: positions after an end, in the same run of masked positions, are filled with the end's id.

The tokens that count are those up to the first end of each run of masked positions. Whether another position is drawn
depends only on known tokens. So for a model whose conditionals come from one joint distribution, the tokens that count
have the distribution of the truncated sequence: the chain rule holds in any order that depends only on drawn tokens.
From left to right, where nothing after an end is drawn before the end, they are the same tokens as without stopping,
for any network. By blocks that holds for all blocks before that of the end. In its block an end may be drawn before
earlier positions, which are then not conditioned on the positions that it removes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.devices import upload
from unmask.protocol import Batched
from unmask.sampler import Step, packed


def stop_ids(stop: int | Sequence[int] | None, vocab_size: int) -> tuple[int, ...]:
    """The ids that end a text: one, several or none."""
    given = () if stop is None else (stop,) if isinstance(stop, int) else tuple(stop)
    for one in given:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < vocab_size:
            raise ValueError(f"stop must be token ids in 0..{vocab_size - 1}, got {one!r}")
    return given


@dataclass(frozen=True)
class Stopping(Batched):
    """The runs of masked positions of some canvases, and the ids that end them."""

    hole: Tensor  # bool [B, L]: masked at first
    start: Tensor  # int64 [B, L]: the first position of a position's run
    ids: tuple[int, ...]
    mask_id: int

    @classmethod
    def of(cls, canvas: Tensor, ids: tuple[int, ...], mask_id: int) -> Stopping:
        hole = (canvas == mask_id).cpu()
        position = torch.arange(canvas.shape[1]).expand_as(hole)
        begins = hole & ~torch.cat((torch.zeros_like(hole[:, :1]), hole[:, :-1]), 1)
        start = torch.where(begins, position, 0).cummax(1).values if canvas.shape[1] else position
        return cls(hole, start, ids, mask_id)

    def behind(self, x: Tensor) -> Tensor:
        """Which positions of x [B, L] are after an end of their run: bool [B, L]."""
        ends = self.hole & torch.isin(x.cpu(), torch.tensor(self.ids, dtype=torch.int64))
        before = ends.long().cumsum(1) - ends.long()
        return self.hole & (before > before.gather(1, self.start))

    def needless(self, x: Tensor) -> Tensor:
        """Which of them are masked and need not be drawn."""
        return self.behind(x) & (x == self.mask_id).cpu()

    def finished(self, x: Tensor) -> Tensor:
        """Which sequences have nothing left that counts: bool [B]."""
        return ~((x == self.mask_id).cpu() & ~self.needless(x)).any(1)

    def padded(self, step: Step, x: Tensor) -> Step:
        """The Step that also fills the positions after the ends of finished sequences; x is the canvas after it."""
        if step.hidden is not None:
            raise ValueError("stop cannot be combined with samplers that mask tokens again")
        extra = packed(self.behind(x) & self.finished(x).unsqueeze(1))
        if not extra.shape[1]:
            return step
        real, none = extra >= 0, torch.zeros(extra.shape, dtype=torch.float64)
        return replace(
            step,
            positions=torch.cat((step.positions, extra), 1),
            tokens=torch.cat((step.tokens, upload(torch.where(real, self.ids[0], -1), step.tokens.device)), 1),
            probabilities=torch.cat((step.probabilities, upload(real.double(), step.probabilities.device)), 1),
            tau=torch.cat((step.tau, none.to(step.tau)), 1),
            drawn=torch.cat((step.drawn, torch.zeros_like(real)), 1),
        )
