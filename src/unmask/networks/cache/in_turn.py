"""Exact KV caches of networks that read a canvas from its beginning: by blocks, or left to right, with blocks of one.

Slot i holds the network's input at position i. A call keeps the slots before the first change and feeds the rest up to
the requested rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unmask.devices import upload
from unmask.networks.attention import neighbours
from unmask.networks.cache.cached import Cached, Feed
from unmask.networks.cache.canvases import BlockWindow, Canvases
from unmask.networks.cache.packing import Ready
from unmask.networks.layers import take
from unmask.networks.transformer import Transformer

if TYPE_CHECKING:
    from unmask.networks.causal import Causal


class InTurn(Cached):
    """A network that sees the block of each position and everything before it; without blocks the canvas is one."""

    def __init__(self, network: Transformer, block: int | None) -> None:
        super().__init__(network)
        self.block, self.fills = block, {"seen": -1}

    def blank(self, seats: int, length: int) -> dict[str, Tensor]:
        device = self.network.vocab_embed.embedding.device
        return {"seen": torch.full((seats, length), -1, device=device), **super().blank(seats, length)}  # the inputs

    def near(self, slots: Tensor, level: Tensor, length: int, taps: int) -> Tensor:
        """The slots of the convolution's inputs, [B, M, taps]."""
        raise NotImplementedError

    def answer(self, ready: Ready, inputs: Tensor, outputs: Tensor, last: Tensor, here: slice) -> Tensor:
        """Logits [B, R, V] at outputs [B, R], for inputs [B, L]; slots from ``last`` [B, 1] on are read anew."""
        block, ends = self.block or inputs.shape[1], self.ends(inputs, here)
        kept = self.unchanged(inputs, last, here) // block * block  # [B, 1]
        outputs = outputs.maximum(kept)
        stop = ((outputs.amax(1, keepdim=True) // block + 1) * block).minimum(ends)  # [B, 1]
        # All that the feed's shape depends on is read at once: an accelerator makes the host wait for each reading.
        shape = torch.stack((*kept.aminmax(), (stop - kept).max())).cpu().tolist()
        slots = padded(kept, shape[2], inputs)  # [B, M]
        feed = self.feed(slots, self.block_end(slots, ends, block), outputs - kept, inputs, *shape)
        x = ready.network.read(inputs.gather(1, feed.positions), feed.positions)  # [B, M, width]
        return self.recorded(ready, x, feed, inputs, kept, stop, here)

    def ends(self, inputs: Tensor, here: slice) -> Tensor:
        """The length of each sequence, [B, 1]."""
        return upload(torch.tensor(self.lengths[here]), inputs.device).unsqueeze(1)

    def unchanged(self, inputs: Tensor, last: Tensor, here: slice) -> Tensor:
        """How many slots hold what the inputs [B, L] say, at most ``last`` [B, 1]: [B, 1]."""
        length = inputs.shape[1]
        every = torch.arange(length, device=inputs.device)
        same = torch.where(inputs == self.kept["seen"][here, :length], length, every).amin(1, keepdim=True)
        return same.minimum(self.kept["valid"][here].unsqueeze(1)).minimum(last)

    def block_end(self, slots: Tensor, ends: Tensor, block: int) -> Tensor:
        """The last position of each slot's block, [B, M]."""
        return ((slots // block + 1) * block - 1).minimum(torch.where(slots < ends, ends - 1, slots))

    def feed(
        self, slots: Tensor, level: Tensor, wanted: Tensor, inputs: Tensor, first: int, highest: int, width: int
    ) -> Feed:
        """The entries of the slots [B, M]. first and highest are the least and the largest first slot of a sequence."""
        length, taps = inputs.shape[1], self.network.config.convolution
        return Feed(
            slots.clamp(max=length - 1),
            slots,
            level,
            first if first == highest else None,
            min(highest + width - 1, length) + 1,
            self.near(slots, level, length, taps) if taps else None,
            wanted,
        )

    def recorded(
        self,
        ready: Ready,
        x: Tensor,
        feed: Feed,
        inputs: Tensor,
        kept: Tensor,
        stop: Tensor,
        here: slice,
        c: Tensor | None = None,
    ) -> Tensor:
        """The logits of a pass; if it raises, the slots from ``kept`` [B, 1] on do not count."""
        self.kept["valid"][here] = kept.squeeze(1)  # later slots will be overwritten
        logits = self.run(ready, x, feed, here, c)
        self.kept["seen"][here, : inputs.shape[1]], self.kept["valid"][here] = inputs, stop.squeeze(1)
        return logits


class BlockCached(InTurn):
    """A network with block attention: complete blocks are read once, the incomplete one in every call.

    It computes the first block with masked positions; the outputs at visible rows are meaningless.
    """

    def __init__(self, ready: Ready, block: int | None) -> None:
        super().__init__(ready.network, block)
        self.ready = ready

    def for_sampling(self) -> BlockCached:
        """The same with an empty cache."""
        return type(self)(self.ready, self.block)

    def near(self, slots: Tensor, level: Tensor, length: int, taps: int) -> Tensor:
        every = torch.arange(length, device=slots.device).expand(len(slots), -1)
        return neighbours(every, every, slots, level, slots, taps)

    def at_rows(self, tokens: Tensor, rows: Tensor, here: slice) -> Tensor:
        every = torch.arange(tokens.shape[1], device=tokens.device)
        first = torch.where(tokens == self.mask_id, every, len(every) - 1).amin(1, keepdim=True)
        return self.answer(self.ready, tokens, rows, first, here)


class BlocksAhead(BlockCached):
    """The same, and it looks ahead within a block (the protocol ``LooksAhead``)."""

    @torch.inference_mode()
    def ahead(self, tokens: Tensor, order: Tensor, known: Tensor, *, seats: slice | None = None) -> Tensor:
        """Logits [B, W, V] of the next W tokens, each given the settled tokens and the guesses of those before it.

        order [B, W] are the next positions, all in one block, in order, padded with -1; the first known [B] of them
        hold guesses in tokens [B, L]. Each guess costs the rows of a block.
        """
        if not tokens.numel() or not order.numel():
            return torch.empty(*order.shape, self.vocab_size, device=order.device)
        here, size, taps = self.here(tokens, seats), self.block or tokens.shape[1], self.network.config.convolution
        window = BlockWindow.of(order, known, self.ends(tokens, here), size)
        kept = self.unchanged(tokens, window.first, here) // size * size  # [B, 1]
        one = Canvases.of(tokens, window, kept, size, self.mask_id)
        near = one.near(taps) if taps else None
        feed = Feed(one.positions, one.slots, one.level, one.start, one.stop, near, one.wanted, one.seen)
        x = self.ready.network.read(one.tokens, one.positions)  # [B, M, width]
        return self.recorded(self.ready, x, feed, tokens, kept, window.first, here)


def padded(kept: Tensor, width: int, inputs: Tensor) -> Tensor:
    """The slots of a feed of this width, [B, M]: from ``kept`` [B, 1] on, shorter ones padded with slot L.

    That comes after everything a sequence may see, and is not cached.
    """
    return (kept + torch.arange(width, device=inputs.device)).clamp(max=inputs.shape[1])


def looking_back(slots: Tensor, taps: int) -> Tensor:
    """The inputs of a convolution that ends at each slot: int64 [B, M, taps]."""
    return (slots.unsqueeze(-1) + torch.arange(2 - taps, 2, device=slots.device)).clamp(min=0)


class LeftToRightCached(InTurn):
    """A left-to-right network: slot i holds the i-th input. Any rows may be requested; each new token is fed once.

    several: the network for calls of several rows, made when first needed.
    """

    def __init__(self, network: Causal, several: Callable[[], Ready]) -> None:
        super().__init__(network, 1)
        self.causal_network, self.several = network, several

    def for_sampling(self) -> LeftToRightCached:
        """The same with an empty cache."""
        return LeftToRightCached(self.causal_network, self.several)

    def near(self, slots: Tensor, level: Tensor, length: int, taps: int) -> Tensor:
        return looking_back(slots, taps)

    def at_rows(self, tokens: Tensor, rows: Tensor, here: slice) -> Tensor:
        return self._answer(tokens, rows, here, len(tokens) > 1)

    @torch.inference_mode()
    def ahead(self, tokens: Tensor, order: Tensor, known: Tensor, *, seats: slice | None = None) -> Tensor:
        """Logits [B, W, V] of the next W tokens, each given the settled tokens and the guesses of those before it.

        order [B, W] are the next masked positions from left to right, padded with -1; the first known [B] of them hold
        guesses in tokens [B, L]. After the first position without a guess nothing can be computed: its row is repeated.
        """
        if not tokens.numel() or not order.numel():
            return torch.empty(*order.shape, self.vocab_size, device=order.device)
        here, real = self.here(tokens, seats), (order >= 0).sum(1)
        last = torch.minimum(upload(known, order.device), real - 1).clamp(min=0).unsqueeze(1)
        column = torch.arange(order.shape[1], device=order.device).minimum(last)
        # A sequence without a window repeats its last request: nothing new is read for it.
        idle = (self.kept["valid"][here] - 1).clamp(min=0) + self.causal_network.lag
        rows = torch.where((real > 0).unsqueeze(1), order.gather(1, column), idle.unsqueeze(1))
        if rows.device.type == "cpu":  # an accelerator repeats the last request rather than wait for its number
            rows = rows[:, : int(last.max()) + 1]
        logits = self._answer(tokens, rows, here, True)
        return take(logits, column)

    def _answer(self, tokens: Tensor, rows: Tensor, here: slice, several: bool) -> Tensor:
        network, outputs = self.causal_network, (rows - self.causal_network.lag).clamp(min=0)
        # A product with one row gains nothing from packed weights.
        ready = self.several() if several else Ready(network, network.logits)
        logits = self.answer(ready, network.inputs(tokens), outputs, outputs.amin(1, keepdim=True), here)
        return network.answers(logits, rows)
