"""Block attention: a position sees its block, masked positions included, and the blocks before it (BD3-LM).

So a block model is a masked model of each block given those before; with one block it is the plain one. The keys and
values of a complete block never change, so they are computed once (``unmask.networks.cache.in_turn``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from unmask.networks.attention import Entries, by_levels, inside
from unmask.networks.cache.in_turn import BlocksAhead
from unmask.networks.cache.packing import packed
from unmask.networks.cache.rows import private_copy
from unmask.networks.config import TransformerConfig
from unmask.networks.masked import MaskedNetwork
from unmask.processes import BlockByBlock


@dataclass(frozen=True)
class BlocksConfig(TransformerConfig):
    """The blocks, and how many positions a block of the sequence has."""

    block: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block < 1:
            raise ValueError(f"block must be at least 1, got {self.block}")
        if self.length % self.block:
            raise ValueError(f"length must be a multiple of block={self.block}, got {self.length}")


class BlockDDiT(MaskedNetwork):
    """logits = model(tokens, time, rows); the time is not read: a block that is complete must not change."""

    architecture = "blocks"
    config_class = BlocksConfig
    config: BlocksConfig
    attention = "block"

    @property
    def block(self) -> int:
        return self.config.block

    @property
    def process(self) -> BlockByBlock:
        return BlockByBlock(size=self.config.block)

    def packed(
        self,
        tokens: Tensor,
        time: Tensor | None,
        where: Tensor,
        lengths: Tensor | None = None,
        clean: Tensor | None = None,
    ) -> Tensor:
        """Logits [M, V] at the M positions where the boolean [B, L] is true, in row-major order.

        clean [B, L]: the true tokens of the blocks before a position.
        """
        return self.logits(self.states(tokens, time, where.nonzero(as_tuple=True), lengths, clean))

    def states(
        self,
        tokens: Tensor,
        time: Tensor | None = None,
        at: tuple[Tensor, ...] | None = None,
        lengths: Tensor | None = None,
        clean: Tensor | None = None,
    ) -> Tensor:
        """The final states [B, L, width], or those at some indices; clean as in ``packed``."""
        self.check(tokens)
        config = self.config
        if clean is None:
            entries = self.entries(tokens, lengths)
        elif lengths is None:
            entries = noised_blocks(tokens, clean, config.convolution, config.block)
        else:
            raise ValueError("clean is for sequences of one length: leave lengths out")
        return self.through(self.read(entries.tokens, entries.positions), entries, self.constant_conditioning(), at)

    def entries(self, tokens: Tensor, lengths: Tensor | None = None) -> Entries:
        return all_blocks(tokens, self.config.convolution, self.config.block, lengths)

    def for_sampling(self) -> nn.Module:
        """The network to call in sampling: the same function with an exact cache, for one run."""
        return BlocksAhead(packed(private_copy(self)), self.config.block)


def all_blocks(tokens: Tensor, taps: int, block: int, lengths: Tensor | None = None) -> Entries:
    """Every position is an entry, which sees its block and those before it."""
    every = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)  # [B, L]
    real = torch.ones_like(tokens, dtype=torch.bool) if lengths is None else inside(lengths, tokens.shape[1])
    return by_levels(tokens, every, real, every // block, torch.where(real, every, -1), taps)


def noised_blocks(tokens: Tensor, clean: Tensor, taps: int, block: int) -> Entries:
    """Every block as in tokens [B, L], given the clean blocks before it: a pass of 2 L entries.

    The noised positions come first, so that entry l is position l; after them come the clean ones, which noised blocks
    see, and which see no noised one.
    """
    length = tokens.shape[1]
    every = torch.arange(length, device=tokens.device).expand_as(tokens)  # [B, L]
    number = every // block  # [B, L]
    entries = by_levels(
        torch.cat((tokens, clean), 1),  # [B, 2 L], as all that follow
        torch.cat((every, every), 1),
        torch.cat((torch.zeros_like(every), torch.ones_like(every)), 1).bool(),
        torch.cat((2 * number, 2 * number + 1), 1),
        length + every,
        taps,
        group=torch.cat((number, length + every), 1),
    )
    if entries.near is not None:  # neighbours of a noised position within its block are noised
        at = every.unsqueeze(-1) + torch.arange(taps, device=every.device) - taps // 2  # [B, L, taps]
        within = (at >= 0) & (at < length) & (at // block == number.unsqueeze(-1))
        entries.near[:, :length] = torch.where(within, at + 1, entries.near[:, :length])
    return entries
