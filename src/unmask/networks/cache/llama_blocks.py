"""An exact cache of a Llama with block attention: complete blocks are read once, the incomplete one in every call.

A call keeps the slots of the complete blocks that
have not changed, and reads the rest up to the end of the last requested block. Shifted outputs also need the state of
the position before, so that one is read again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.devices import download, upload
from unmask.networks.cache.canvases import BlockWindow, Canvases
from unmask.networks.cache.kept_llama import KeptLlama
from unmask.networks.layers import check_tokens


class CachedBlocks(KeptLlama):
    """A block Llama with an exact cache of the complete blocks."""

    def for_sampling(self) -> CachedBlocks:
        """The same with an empty cache."""
        return CachedBlocks(self.network)

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, *, seats: slice | None = None
    ) -> Tensor:
        """tokens [B, L], rows [B, R] -> float32 logits [B, R, V], or [B, L, V] without rows; the time is not read.

        The outputs after the first block with masked positions are meaningless.
        """
        check_tokens(tokens)
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        if not tokens.numel() or not rows.numel():
            return torch.empty(*rows.shape, self.vocab_size, device=rows.device)
        here, config = self.here(tokens, seats), self.network.config
        size, shift = config.block, int(config.shifted)
        ends, unchanged = self._unchanged(tokens, here)
        first, outputs = unchanged // size * size, (rows - shift).clamp(min=0)
        start = (first - shift).clamp(min=0).minimum(outputs.amin(1, keepdim=True))
        stop = ((outputs.amax(1, keepdim=True) // size + 1) * size).maximum(first).minimum(ends)
        # All that the call's shape depends on is read at once: an accelerator makes the host wait for each reading.
        begin, end = download(start, stop)
        width, lengths = int((end - begin).max()), torch.tensor(self.lengths[here]).unsqueeze(1)
        held = torch.where(end - begin < width, lengths, ((end + size - 1) // size * size).minimum(lengths))
        slots = start + torch.arange(width, device=tokens.device)
        slots = torch.where(slots < stop, slots, tokens.shape[1])
        level = ((slots // size + 1) * size).minimum(ends) - 1  # the last slot that an entry sees
        seen = torch.arange(int(held.max()), device=tokens.device) <= level.unsqueeze(-1)
        places = slots.clamp(max=tokens.shape[1] - 1)
        states = self.read(tokens.gather(1, places), places, slots, seen, outputs - start, here)
        self._record(tokens, stop, here)
        return self.network.outputs(states)

    @torch.inference_mode()
    def ahead(self, tokens: Tensor, order: Tensor, known: Tensor, *, seats: slice | None = None) -> Tensor:
        """Logits [B, W, V] of the next W tokens, each given the settled tokens and the guesses of those before it.

        order [B, W] are the next positions, all in one block, in order, padded with -1; the first known [B] of them
        hold guesses in tokens [B, L]. Each guess costs the rows of a block.
        """
        if not tokens.numel() or not order.numel():
            return torch.empty(*order.shape, self.vocab_size, device=order.device)
        here, config = self.here(tokens, seats), self.network.config
        size, shift = config.block, int(config.shifted)
        ends, unchanged = self._unchanged(tokens, here)
        window = BlockWindow.of(order, known, ends, size)
        start = (unchanged.minimum(window.first) // size * size - shift).clamp(min=0)
        entries = Canvases.of(tokens, window, start, size, self.mask_id, shift)
        self.make_room(entries.stop)
        self._record(tokens, start, here)  # the slots behind are written now
        states = self.read(entries.tokens, entries.positions, entries.slots, entries.seen, entries.wanted, here)
        self._record(tokens, window.first, here)
        return self.network.outputs(states)

    def _unchanged(self, tokens: Tensor, here: slice) -> tuple[Tensor, Tensor]:
        """The length of each sequence, and how many slots hold what tokens [B, L] show: [B, 1] each."""
        ends = upload(torch.tensor(self.lengths[here]), tokens.device).unsqueeze(1)
        changed = (tokens != self.kept["seen"][here, : tokens.shape[1]]) | (tokens == self.mask_id)
        return ends, torch.where(changed, torch.arange(tokens.shape[1], device=tokens.device), ends).amin(1, True)

    def _record(self, tokens: Tensor, stop: Tensor, here: slice) -> None:
        """The slots before ``stop`` [B, 1] hold tokens [B, L], and no others count."""
        every = torch.arange(tokens.shape[1], device=tokens.device)
        self.kept["seen"][here, : tokens.shape[1]] = torch.where(every < stop, tokens, -1)
