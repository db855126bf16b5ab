"""Fast-dLLM's approximate caches (Wu et al., 2025): keys and values that are reused although tokens have changed.

The first call for a block computes everything. Later calls for it compute

    prefix   the block and what is behind it; the keys and values of what is before it are kept
    dual     the block alone; the keys and values of everything else are kept

In a bidirectional network the kept ones depend on the tokens filled since, so the outputs are not the network's. A call
whose rows lie outside the last block, as of a sampler without blocks, begins a block and is exact.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from unmask.devices import download, upload
from unmask.networks.cache.kept_llama import KeptLlama
from unmask.networks.layers import check_tokens
from unmask.networks.llama import Llama

Reused = Literal["prefix", "dual"]


class ApproximateCache(KeptLlama):
    """``unmask.sample(ApproximateCache(network, "dual"), sampler=decoding.blocks(32, decoding.threshold()))``."""

    def __init__(self, network: Llama, reused: Reused) -> None:
        if reused not in get_args(Reused):
            raise ValueError(f"reused must be 'prefix' or 'dual', got {reused!r}")
        if not isinstance(network, Llama) or network.config.block or network.config.causal:
            raise ValueError(f"a {type(network).__name__} has no approximate cache: LLaDA, Dream and their kin have")
        super().__init__(network)
        self.reused = reused

    def for_sampling(self) -> ApproximateCache:
        """The same with an empty cache."""
        return ApproximateCache(self.network, self.reused)

    def blank(self, seats: int, length: int) -> dict[str, Tensor]:
        """With the first and the last position of each sequence's block."""
        new = super().blank(seats, length)
        return new | {
            name: torch.zeros(seats, dtype=torch.int64, device=new["seen"].device) for name in ("first", "last")
        }

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, *, seats: slice | None = None
    ) -> Tensor:
        """tokens [B, L], rows [B, R] -> float32 logits [B, R, V], or [B, L, V] without rows; the time is not read.

        The outputs of rows without a mask are meaningless.
        """
        check_tokens(tokens)
        every = torch.arange(tokens.shape[1], device=tokens.device)
        rows = every.expand_as(tokens) if rows is None else rows
        if not tokens.numel() or not rows.numel():
            return torch.empty(*rows.shape, self.vocab_size, device=rows.device)
        here, shift = self.here(tokens, seats), int(self.network.config.shifted)
        ends = upload(torch.tensor(self.lengths[here]), tokens.device).unsqueeze(1)
        asked = tokens.gather(1, rows) == self.mask_id  # and not padding
        low = torch.where(asked, rows, ends).amin(1, keepdim=True).minimum(ends - 1)
        high = torch.where(asked, rows, 0).amax(1, keepdim=True).maximum(low)
        first, last = (self.kept[name][here].unsqueeze(1) for name in ("first", "last"))
        outside = ((every < first) | (every > last)) & (every < ends)
        changed = (outside & (tokens != self.kept["seen"][here, : tokens.shape[1]])).any(1, keepdim=True)
        new = changed | (low < first) | (high > last)
        # A block's first row needs the output before it if outputs are shifted.
        start = torch.where(new, 0, first.minimum(low - shift).clamp(min=0))
        stop = ends if self.reused == "prefix" else torch.where(new, ends, last + 1)
        begin, end = download(start, stop)
        slots = start + torch.arange(int((end - begin).max()), device=tokens.device)
        places, inside = slots.clamp(max=tokens.shape[1] - 1), slots < stop
        slots = torch.where(inside, slots, tokens.shape[1])
        seen = (torch.arange(max(self.lengths[here]), device=tokens.device) < ends.unsqueeze(-1)).expand(
            -1, slots.shape[1], -1
        )
        wanted = ((rows - shift).clamp(min=0) - start).clamp(0, slots.shape[1] - 1)
        states = self.read(tokens.gather(1, places), places, slots, seen, wanted, here)
        self.kept["first"][here] = torch.where(new, low, first).squeeze(1)
        self.kept["last"][here] = torch.where(new, high, last).squeeze(1)
        self.kept["seen"][here, : tokens.shape[1]] = torch.where(
            new, tokens, self.kept["seen"][here, : tokens.shape[1]]
        )
        return self.network.outputs(states)
