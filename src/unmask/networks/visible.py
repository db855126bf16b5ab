"""Attention over visible tokens: masked positions are no keys, so a pass computes only what is visible or requested."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from unmask.networks.attention import Entries, by_levels, inside
from unmask.networks.ddit import DDiT


class VisibleDDiT(DDiT):
    """The paper's network in which a masked position is seen by itself alone."""

    architecture = "visible"
    attention = "visible"

    @property
    def reads_position_alone(self) -> bool:
        return False

    def entries(self, tokens: Tensor, lengths: Tensor | None = None) -> Entries:
        """Every position is an entry, and only visible tokens are keys."""
        every = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        visible = tokens != self.mask_id
        if lengths is not None:
            visible = visible & inside(lengths, tokens.shape[1])
        level = torch.where(visible, 0, tokens.shape[1])
        place = torch.where(visible, every, -1)
        return by_levels(tokens, every, visible, level, place, self.config.convolution)

    def asked(self, tokens: Tensor, rows: Tensor, lengths: Tensor | None = None) -> Entries:
        """The visible tokens and the requested rows [B, R], or every position if that is fewer."""
        taps, length, visible = self.config.convolution, tokens.shape[1], tokens != self.mask_id
        if lengths is not None:
            visible = visible & inside(lengths, length)
        known = int(visible.sum(1).max()) if len(tokens) else 0
        if known + rows.shape[1] >= length:
            return super().asked(tokens, rows, lengths)
        first = (~visible).to(torch.int8).argsort(dim=1, stable=True)  # [B, L]: the visible positions, then the others
        place = torch.where(visible, first.argsort(1), -1)  # [B, L]
        positions, more = torch.cat((first[:, :known], rows), 1), (0, rows.shape[1])  # [B, known + R]
        # Rows with fewer visible tokens than the longest are filled up with masked positions, which are not keys.
        key = functional.pad(visible.gather(1, first[:, :known]), more)
        level = torch.where(key, 0, length)
        entries = by_levels(tokens.gather(1, positions), positions, key, level, place, taps)
        own = place.gather(1, rows)  # [B, R]: a visible row is an entry already
        behind = known + torch.arange(rows.shape[1], device=rows.device)
        return entries._replace(rows=torch.where(own < 0, behind, own))
