"""A Llama with attention by blocks: a position sees its block, masked positions included, and the blocks before it.

With shifted outputs the first position of a block is predicted by the last one of the block before, which is complete.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.networks.blocks import noised_blocks
from unmask.networks.cache.llama_blocks import CachedBlocks
from unmask.networks.layers import Angles
from unmask.networks.llama import Llama
from unmask.processes import BlockByBlock


class BlockLlama(Llama):
    """logits = model(tokens, time, rows): a Denoiser of the process ``BlockByBlock``."""

    @property
    def process(self) -> BlockByBlock:
        return BlockByBlock(size=self.config.block)

    def seen(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        block = torch.arange(tokens.shape[1], device=tokens.device) // self.config.block
        below = (block <= block.unsqueeze(1))[None, None]
        return below if mask is None else mask & below

    def packed(
        self,
        tokens: Tensor,
        time: Tensor | None,
        where: Tensor,
        lengths: Tensor | None = None,
        clean: Tensor | None = None,
    ) -> Tensor:
        """Logits [M, V] at the M positions where the boolean [B, L] is true, in row-major order.

        clean int64 [B, L]: the complete sequences. Every block of tokens then sees the clean blocks before it.
        """
        if clean is None:
            return self.outputs(self.states(tokens, lengths=lengths)[where])
        return self.outputs(self.two_streams(tokens, clean)[where])

    def two_streams(self, tokens: Tensor, clean: Tensor) -> Tensor:
        """The final states [B, L, width] of every block of tokens, given the clean blocks before it: a pass of 2 L."""
        size, length = self.config.block, tokens.shape[1]
        entries = noised_blocks(tokens, clean, 0, size)
        every = torch.arange(length, device=tokens.device)
        rows = every
        if self.config.shifted:  # a block's first position is predicted by the clean one before it
            rows = torch.where(every % size == 0, length + every, every) - 1
            rows[0] = 0
        table = self.angles(length, tokens.device)
        twice: Angles = (torch.cat((table[0], table[0])), torch.cat((table[1], table[1])))
        return self.through(entries.tokens, twice, rows.expand(len(tokens), -1), entries.mask)

    def for_sampling(self) -> CachedBlocks:
        """The same function with an exact cache of the complete blocks, for one run."""
        return CachedBlocks(self)
