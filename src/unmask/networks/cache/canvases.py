"""Guesses inside a block: one canvas of the block for each, so that a guess costs the rows of the block alone.

Canvas c of a sequence shows the settled tokens and the first c guesses. Its entries see the blocks before, whose keys
and values are cached, and each other. They stand behind everything that the next call needs, which overwrites them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unmask.devices import upload


class BlockWindow(NamedTuple):
    """The next positions of an order, all in one block for each sequence."""

    order: Tensor  # int64 [B, W]: padded with -1
    known: Tensor  # int64 [B, 1]: how many of them hold guesses
    first: Tensor  # int64 [B, 1]: where the block begins
    ends: Tensor  # int64 [B, 1]: the length of each sequence

    @classmethod
    def of(cls, order: Tensor, known: Tensor, ends: Tensor, size: int) -> BlockWindow:
        """A sequence that requests nothing gets its last block."""
        real = (order >= 0).sum(1, keepdim=True)
        known = torch.minimum(upload(known, order.device).unsqueeze(1), (real - 1).clamp(min=0))
        last = (ends - 1).clamp(min=0)
        return cls(order, known, torch.where(real > 0, order[:, :1], last) // size * size, ends)

    def rank(self, size: int) -> Tensor:
        """The place in the window of each position of the block: int64 [B, K], -1 for those outside it."""
        place = torch.where(self.order >= 0, self.order - self.first, size)
        rank = torch.full((len(place), size + 1), -1, device=place.device)
        return rank.scatter(1, place, torch.arange(place.shape[1], device=place.device).expand_as(place))[:, :-1]


class Canvases(NamedTuple):
    """The entries of a call: those of complete blocks that are not cached, and then the canvases."""

    tokens: Tensor  # int64 [B, M]
    positions: Tensor  # int64 [B, M]
    slots: Tensor  # int64 [B, M]: where their keys and values go; padding goes to the last
    level: Tensor  # int64 [B, M]: the last slot of the blocks that an entry sees
    together: Tensor  # int64 [B, M, 2]: the slots, from and up to, of the other entries that it sees
    start: int | None  # the first slot, if all sequences have the same consecutive ones
    stop: int  # one past the highest slot
    wanted: Tensor  # int64 [B, W]: the entry that predicts each position of the window

    @classmethod
    def of(cls, tokens: Tensor, window: BlockWindow, kept: Tensor, size: int, mask_id: int, shift: int = 0) -> Canvases:
        """The entries for tokens [B, L] whose first ``kept`` [B, 1] are cached.

        shift: 1 if a position is predicted by the output before it. A position behind the guesses is predicted on the
        canvas that shows them all.
        """
        order, known, first, ends = window
        length, count = tokens.shape[1], (ends - first).clamp(max=size)  # [B, 1]: positions of the block
        # All that shapes depend on is read at once: an accelerator makes the host wait for each reading.
        numbers = (*kept.aminmax(), *first.aminmax(), (first - kept).max(), known.max() + 1, count.min())
        low, high, lowest, highest, more, canvases, least = torch.stack(numbers).tolist()
        padding = highest + canvases * size
        alike = low == high and lowest == highest and least == size

        early = kept + torch.arange(more, device=tokens.device)  # [B, P]
        early_slots = torch.where(early < first, early, padding)
        early_level = torch.where(early < first, (early // size + 1) * size - 1, -1)

        offset = torch.arange(size, device=tokens.device)  # [K]
        number = torch.arange(canvases, device=tokens.device).unsqueeze(1)  # [C, 1]
        start = first.unsqueeze(1) + number * size  # [B, C, 1]: the first slot of each canvas
        inside = (offset < count).unsqueeze(1)  # [B, 1, K]
        slots = torch.where(inside, start + offset, padding)  # [B, C, K]
        together = torch.stack((start, start + count.unsqueeze(1)), -1).expand(-1, -1, size, -1)  # [B, C, K, 2]
        together = torch.where(inside.unsqueeze(-1), together, padding)  # padding sees itself by its slot
        place = (first + offset).clamp(max=length - 1).unsqueeze(1).expand_as(slots)
        shown = tokens.unsqueeze(1).expand(-1, canvases, -1).gather(2, place)
        shown = torch.where(window.rank(size).unsqueeze(1) >= number, mask_id, shown)  # [B, C, K]

        output = (torch.where(order >= 0, order, first) - shift).clamp(min=0)  # [B, W]
        canvas = torch.arange(order.shape[1], device=tokens.device).minimum(known)
        wanted = torch.where(output < first, output - kept, more + canvas * size + output - first)
        early_place = early.clamp(max=length - 1)
        return cls(
            torch.cat((tokens.gather(1, early_place), shown.flatten(1)), 1),
            torch.cat((early_place, place.flatten(1)), 1),
            torch.cat((early_slots, slots.flatten(1)), 1),
            torch.cat((early_level, (first - 1).expand(-1, canvases * size)), 1),
            torch.cat((early_slots.unsqueeze(-1).expand(-1, -1, 2), together.flatten(1, 2)), 1),
            low if alike else None,
            padding + (not alike),
            wanted,
        )

    @property
    def seen(self) -> Tensor:
        """Which slots each entry sees: bool [B, M, S]."""
        slots = torch.arange(self.stop, device=self.slots.device)
        start, stop = self.together.unsqueeze(-2).unbind(-1)  # [B, M, 1] each
        own = (slots >= start) & (slots < stop) | (slots == self.slots.unsqueeze(-1))
        return own | (slots <= self.level.unsqueeze(-1))

    def near(self, taps: int) -> Tensor:
        """The slots of a convolution's inputs: int64 [B, M, taps], 0 for none and s + 1 for slot s."""
        step = torch.arange(taps, device=self.slots.device) - taps // 2
        before, own = self.positions.unsqueeze(-1) + step, self.slots.unsqueeze(-1) + step  # [B, M, taps]
        start, stop = self.together.unsqueeze(-2).unbind(-1)
        cached = (before >= 0) & (before <= self.level.unsqueeze(-1))
        beside = (own >= start) & (own < stop) | (step == 0)
        return torch.where(beside, own + 1, torch.where(cached, before + 1, 0))
