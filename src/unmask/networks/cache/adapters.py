"""The exact KV cache of a network with adapters: the tokens before the first masked one are in turn, and read once."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn import functional

from unmask.networks.cache.cached import Feed
from unmask.networks.cache.in_turn import BlockCached, looking_back, padded
from unmask.networks.cache.packing import Ready
from unmask.networks.first_token import begun, first_known

if TYPE_CHECKING:
    from unmask.networks.adapters import AdaptedDDiT


class AdaptedCached(BlockCached):
    """A network with adapters; those that are not needed in a call are not computed."""

    @property
    def first_token(self) -> int | None:
        return cast("AdaptedDDiT", self.network).first_token

    def at_rows(self, tokens: Tensor, rows: Tensor, here: slice) -> Tensor:
        logits = super().at_rows(begun(tokens, self.mask_id, self.first_token), rows, here)
        return first_known(logits, rows, self.first_token)

    def near(self, slots: Tensor, level: Tensor, length: int, taps: int) -> Tensor:
        return looking_back(slots, taps)

    def hidden(self, feed: Feed) -> Tensor:
        hidden = super().hidden(feed)
        if self.first_token is None:
            return hidden
        slots = torch.arange(feed.stop, device=hidden.device)
        return hidden | (slots == 0) & (feed.slots > 0).unsqueeze(-1)  # its entry is seen by no other

    def answer(self, ready: Ready, inputs: Tensor, outputs: Tensor, last: Tensor, here: slice) -> Tensor:
        length, ends = inputs.shape[1], self.ends(inputs, here)
        block, every = self.block or length, torch.arange(length, device=inputs.device)
        turned = out_of_turn(inputs, self.mask_id, self.block or 0, every < ends)  # [B, L]
        kept = self.unchanged(inputs, last, here)  # [B, 1]
        outputs = outputs.maximum(kept)
        highest = outputs.amax(1, keepdim=True)
        # An entry in turn sees none behind it, and those before it are in turn as well.
        behind = turned.gather(1, outputs.clamp(max=length - 1)).any(1, keepdim=True)
        stop = torch.where(behind, (highest // block + 1) * block, highest + 1).minimum(ends)  # [B, 1]
        some = (turned & (every >= kept) & (every < stop)).any().long()
        *shape, some_turned = torch.stack((*kept.aminmax(), (stop - kept).max(), some)).cpu().tolist()
        slots = padded(kept, shape[2], inputs)  # [B, M]
        turned = turned.gather(1, slots.clamp(max=length - 1)) & (slots < length)  # [B, M]
        level = torch.where(turned, self.block_end(slots, ends, block), slots)
        feed = self.feed(slots, level, outputs - kept, inputs, *shape)
        network = cast("AdaptedDDiT", ready.network)
        c = turned.to(network.vocab_embed.embedding).unsqueeze(-1) if some_turned else None  # [B, M, 1]
        x = network.read_two(inputs.gather(1, feed.positions), feed.positions, self._left(inputs, slots), c)
        return self.recorded(ready, x, feed, inputs, kept, stop, here, c)

    def _left(self, inputs: Tensor, slots: Tensor) -> Tensor:
        """The tokens before those in the slots, [B, M]."""
        before = inputs.gather(1, (slots - 1).clamp(min=0))
        return torch.where(slots > 0, before, self.mask_id if self.first_token is None else self.first_token)


def out_of_turn(tokens: Tensor, mask_id: int, block: int = 0, real: Tensor | None = None) -> Tensor:
    """Which entries of a canvas [B, L] are out of turn in their blocks: bool [B, L].

    block: 0 if the canvas is one. real bool [B, L]: false behind a sequence's end, where nothing is visible.
    """
    length = tokens.shape[1]
    block = block or max(1, length)
    masked = tokens == mask_id if real is None else (tokens == mask_id) | ~real
    masked = functional.pad(masked, (0, -length % block), value=True).view(len(tokens), -1, block)
    before = masked.cumsum(2) - masked.int()  # masked positions of the block to the left, and visible ones to the right
    behind = (~masked).flip(2).cumsum(2).flip(2) - (~masked).int()
    turned: Tensor = (before > 0) | masked & (behind > 0)
    return turned.flatten(1)[:, :length]
