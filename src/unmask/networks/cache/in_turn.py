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
from unmask.networks.adapters import begun, first_known, out_of_turn
from unmask.networks.anyorder import neighbours
from unmask.networks.cache.cached import Cached, Feed
from unmask.networks.cache.packing import Ready
from unmask.networks.layers import Transformer, take

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
        """The slots of the convolution's inputs."""
        raise NotImplementedError

    def answer(self, ready: Ready, inputs: Tensor, outputs: Tensor, last: Tensor, here: slice) -> Tensor:
        """Logits [B, R, V] at outputs [B, R], for inputs [B, L]; slots from ``last`` [B, 1] on are read anew."""
        valid, length = self.kept["valid"][here].unsqueeze(1), inputs.shape[1]
        block = self.block or length
        every = torch.arange(length, device=inputs.device)
        same = torch.where(inputs == self.kept["seen"][here, :length], length, every).amin(1, keepdim=True)
        kept = same.minimum(valid).minimum(last)
        ends = upload(torch.tensor(self.lengths[here]), inputs.device).unsqueeze(1)
        turned = self.turned(inputs, ends)
        if turned is None:
            kept = kept // block * block
        outputs = outputs.maximum(kept)
        stop = (outputs.amax(1, keepdim=True) // block + 1) * block
        if turned is not None:  # an entry in turn sees none behind it, and those before it are in turn as well
            behind = turned.gather(1, outputs.clamp(max=length - 1)).any(1, keepdim=True)
            stop = torch.where(behind, stop, outputs.amax(1, keepdim=True) + 1)
        stop = stop.minimum(ends)
        # All that the feed's shape depends on is read at once: an accelerator makes the host wait for each reading.
        out = kept.new_zeros(()) if turned is None else (turned & (every >= kept) & (every < stop)).any().long()
        first, highest, width, some = torch.stack((*kept.aminmax(), (stop - kept).max(), out)).cpu().tolist()
        # Padding to the longest feed comes after everything a sequence may see, and is not cached.
        slots = (kept + torch.arange(width, device=inputs.device)).clamp(max=length)
        level = ((slots // block + 1) * block - 1).minimum(torch.where(slots < ends, ends - 1, slots))
        taps = self.network.config.convolution
        if turned is not None:
            turned = turned.gather(1, slots.clamp(max=length - 1)) & (slots < length)
            level = torch.where(turned, level, slots)
        places = slots.clamp(max=length - 1)
        feed = Feed(
            inputs.gather(1, places),
            places,
            slots,
            level,
            first if first == highest else None,
            min(highest + width - 1, length) + 1,
            self.near(slots, level, length, taps) if taps else None,
            outputs - kept,
            None if turned is None else self._left(inputs, slots),
            turned.to(self.network.vocab_embed.embedding).unsqueeze(-1) if turned is not None and some else None,
        )
        self.kept["valid"][here] = kept.squeeze(1)  # later slots will be overwritten
        logits = self.run(ready, feed, here)
        self.kept["seen"][here, :length], self.kept["valid"][here] = inputs, stop.squeeze(1)
        return logits

    def _left(self, inputs: Tensor, slots: Tensor) -> Tensor:
        """The tokens before those in the slots, of a network with adapters."""
        first = self.network.config.first_token
        before = inputs.gather(1, (slots - 1).clamp(min=0))
        return torch.where(slots > 0, before, self.mask_id if first is None else first)

    def turned(self, inputs: Tensor, ends: Tensor) -> Tensor | None:
        """Which inputs [B, L] are out of turn, for a network with adapters; ends [B, 1] are the lengths."""
        return None


class BlockCached(InTurn):
    """A network with block attention: complete blocks are read once, the incomplete one in every call.

    It computes the first block with masked positions; the outputs at visible rows are meaningless. With adapters the
    tokens before the first masked one are read once, with blocks or without.
    """

    def __init__(self, ready: Ready, block: int | None) -> None:
        super().__init__(ready.network, block)
        self.ready, self.first_token = ready, ready.network.config.first_token

    def for_sampling(self) -> BlockCached:
        """The same with an empty cache."""
        return BlockCached(self.ready, self.block)

    def near(self, slots: Tensor, level: Tensor, length: int, taps: int) -> Tensor:
        if self.network.config.adapters:
            return looking_back(slots, taps)
        every = torch.arange(length, device=slots.device).expand(len(slots), -1)
        return neighbours(every, every, slots, level, slots, taps)

    def at_rows(self, tokens: Tensor, rows: Tensor, here: slice) -> Tensor:
        if self.first_token is not None:
            tokens = begun(tokens, self.mask_id, self.first_token)
        every = torch.arange(tokens.shape[1], device=tokens.device)
        first = torch.where(tokens == self.mask_id, every, len(every) - 1).amin(1, keepdim=True)
        logits = self.answer(self.ready, tokens, rows, first, here)
        return logits if self.first_token is None else first_known(logits, rows, self.first_token)

    def turned(self, inputs: Tensor, ends: Tensor) -> Tensor | None:
        if not self.network.config.adapters:
            return None
        real = torch.arange(inputs.shape[1], device=inputs.device) < ends
        return out_of_turn(inputs, self.mask_id, self.block or 0, real)


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
