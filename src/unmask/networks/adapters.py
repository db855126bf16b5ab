"""Adapters that let a left-to-right network fill positions in any order: of a block, or of the whole sequence.

Entry l of such a network reads token l - 1 and predicts token l. While a block is filled from left to right, that is
all it needs: its answers are those of the left-to-right network, exactly. Two kinds of entries are out of turn: those
behind a masked position of their block, which a left-to-right network is never asked for, and a masked position with a
visible token of its block to the right. They see their whole block, they also read their own token where it is visible,
and every linear map W x of theirs becomes W x + B A x, of low rank (LoRA, Hu et al. 2021). Without blocks the block is
the whole sequence.

So the adapters are trained without any change to what the network knew (``train_alone``). The visible tokens before the
first masked one are all in turn, so their keys and values are those of the left-to-right network, and can be kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.networks.attention import Entries, inside
from unmask.networks.blocks import all_blocks, noised_blocks
from unmask.networks.cache.adapters import AdaptedCached, out_of_turn
from unmask.networks.cache.packing import packed
from unmask.networks.cache.rows import private_copy
from unmask.networks.config import Attention, TransformerConfig
from unmask.networks.first_token import begun, first_known
from unmask.networks.layers import Angles, Block, Convolution, Vectors, by_rows
from unmask.networks.masked import MaskedNetwork, all_positions
from unmask.processes import BlockByBlock, Masked, Process


@dataclass(frozen=True)
class AdaptersConfig(TransformerConfig):
    """The blocks of the left-to-right network, and what is added to it."""

    adaln: bool = False
    adapters: int = field(kw_only=True)  # the rank
    start: int = field(default=-1, kw_only=True)  # the token that begins every sequence; -1 for none
    block: int = field(default=0, kw_only=True)  # positions of a block; 0 if the canvas is one

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adaln or self.adapters < 1 or self.block < 0:
            raise ValueError(
                f"adapters need a rank of at least 1, blocks of at least 0 and adaln=False, got {self.adapters}, "
                f"{self.block} and adaln={self.adaln}"
            )
        if self.block and (self.convolution or self.length % self.block):
            raise ValueError(f"blocks of {self.block} take no convolution, and a length that is a multiple of them")
        if not -1 <= self.start < self.vocab_size:
            raise ValueError(f"start is the id that begins every sequence, or -1, got {self.start}")


class AdaptedBlock(Block):
    """A block whose four linear maps have low-rank additions, for the entries that are out of turn.

    Its pass is conditioned on which entries these are, ``turned`` [B, M, 1]: 1 out of turn, else 0; None for nowhere.
    """

    def __init__(self, config: AdaptersConfig) -> None:
        super().__init__(config, None, causal=False)
        width = config.width
        if config.convolution:  # as in the left-to-right network: of an entry in turn it reads others in turn
            self.convolution = Convolution(width, config.convolution, causal=True)
        first, last = cast("nn.Linear", self.mlp[0]), cast("nn.Linear", self.mlp[2])
        inner = config.heads * config.head_size
        self.adapters = Adapters(width, inner, first.out_features, last.in_features, config.adapters)

    def vectors(self, c: Tensor | None) -> Vectors | None:
        return None if c is None else (c,)

    def vectors_at(self, vectors: Vectors | None, at: tuple[Tensor, ...]) -> Vectors | None:
        return vectors and (vectors[0][at],)

    def project(self, h: Tensor, angles: Angles, vectors: Vectors | None = None) -> tuple[Tensor, Tensor, Tensor]:
        return self.rotated(adapted(self.attn_qkv, self.adapters.qkv, h, vectors), angles)

    def attended(self, x: Tensor, mixed: Tensor, vectors: Vectors | None) -> Tensor:
        return self.add(x, None, adapted(self.attn_out, self.adapters.out, mixed, vectors))

    def feed_forward(self, x: Tensor, vectors: Vectors | None) -> Tensor:
        h = self.mlp[1](adapted(self.mlp[0], self.adapters.up, self.norm2(x), vectors))
        return self.add(x, None, adapted(self.mlp[2], self.adapters.down, h, vectors))


class Adapters(nn.Module):
    """The low-rank maps of one transformer block. They start at zero."""

    def __init__(self, width: int, inner: int, up: int, hidden: int, rank: int) -> None:
        super().__init__()
        self.qkv, self.out = _low_rank(width, 3 * inner, rank), _low_rank(inner, width, rank)
        self.up, self.down = _low_rank(width, up, rank), _low_rank(hidden, width, rank)


def _low_rank(inputs: int, outputs: int, rank: int) -> nn.Sequential:
    down, up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
    nn.init.zeros_(up.weight)
    return nn.Sequential(down, up)


def adapted(linear: nn.Module, adapter: nn.Module, x: Tensor, vectors: Vectors | None) -> Tensor:
    """linear(x), and the adapter's part where an entry is out of turn."""
    out: Tensor = linear(x)
    return out if vectors is None else torch.addcmul(out, vectors[0], adapter(x))


class AdaptedDDiT(MaskedNetwork):
    """logits = model(tokens, time, rows) of a left-to-right network with adapters; the time is not read."""

    architecture = "adapters"
    config_class = AdaptersConfig
    config: AdaptersConfig

    def __init__(self, config: AdaptersConfig) -> None:
        super().__init__(config)
        self.own_token = nn.Linear(config.width, config.width, bias=False)

    def new_block(self, config: Any, cond_dim: int | None) -> Block:
        return AdaptedBlock(config)

    @property
    def attention(self) -> Attention:  # type: ignore[override]
        return "block" if self.block else "bidirectional"

    @property
    def block(self) -> int:
        return self.config.block

    @property
    def first_token(self) -> int | None:
        """The id that begins every sequence, if one does."""
        return self.config.start if self.config.start >= 0 else None

    @property
    def process(self) -> Process:
        how: dict[str, Any] = {"from_left": True, "first_token": self.first_token}
        return BlockByBlock(size=self.config.block, **how) if self.config.block else Masked(**how)

    def forward(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        at = None if rows is None else by_rows(rows)
        positions = torch.arange(tokens.shape[1], device=tokens.device) if rows is None else rows
        return first_known(self.logits(self.states(tokens, time, at, lengths)), positions, self.first_token)

    def packed(
        self,
        tokens: Tensor,
        time: Tensor | None,
        where: Tensor,
        lengths: Tensor | None = None,
        clean: Tensor | None = None,
    ) -> Tensor:
        """Logits [M, V] at the M positions where the boolean [B, L] is true; clean as in ``BlockDDiT.packed``."""
        at = where.nonzero(as_tuple=True)
        return first_known(self.logits(self.states(tokens, time, at, lengths, clean)), at[1], self.first_token)

    def states(
        self,
        tokens: Tensor,
        time: Tensor | None = None,
        at: tuple[Tensor, ...] | None = None,
        lengths: Tensor | None = None,
        clean: Tensor | None = None,
    ) -> Tensor:
        self.check(tokens)
        tokens, block, taps = begun(tokens, self.mask_id, self.first_token), self.config.block, self.config.convolution
        if clean is not None and (not block or lengths is not None):
            raise ValueError("clean is for a network with blocks, and for sequences of one length")
        if clean is not None:
            entries = noised_blocks(tokens, clean, taps, block)
        elif block:
            entries = all_blocks(tokens, taps, block, lengths)
        else:
            entries = all_positions(tokens, lengths)
        entries, left, turned = in_turn(entries, tokens, clean, lengths, self.config)
        return self.through(self.read_two(entries.tokens, entries.positions, left, turned), entries, turned, at)

    def read_two(self, tokens: Tensor, positions: Tensor, left: Tensor, turned: Tensor | None) -> Tensor:
        """The embedded tokens to the left [B, M], and out of turn a linear map of the visible tokens [B, M] too."""
        x = self.embedded(left)
        if turned is not None:
            own = self.own_token(self.vocab_embed(tokens)) * (tokens != self.mask_id).unsqueeze(-1)
            x = torch.addcmul(x, turned, own)
        return self.placed(x, positions)

    def for_sampling(self) -> nn.Module:
        """The network to call in sampling: the same function with an exact cache, for one run."""
        return AdaptedCached(packed(private_copy(self)), self.config.block or None)


def train_alone(network: nn.Module) -> nn.Module:
    """The network with gradients for its adapters and nothing else."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(".adapters." in name or name.startswith("own_token."))
    return network


def in_turn(
    entries: Entries, tokens: Tensor, clean: Tensor | None, lengths: Tensor | None, config: AdaptersConfig
) -> tuple[Entries, Tensor, Tensor]:
    """The entries of a pass, the tokens to their left [B, M], and which are out of turn, float [B, M, 1].

    Each entry also reads its left neighbour; the first reads the start token, or the mask if there is none. In turn an
    entry sees no later position, out of turn its whole block. The start token has no left neighbour, and no other entry
    sees its entry: a left-to-right network does not have it.
    """
    block, every = config.block, torch.arange(tokens.shape[1], device=tokens.device)
    start = config.mask_id if config.start < 0 else config.start
    real = None if lengths is None else inside(lengths, tokens.shape[1])
    turned = out_of_turn(tokens, config.mask_id, block, real)  # [B, L]
    left = functional.pad(tokens[:, :-1], (1, 0), value=start)  # [B, L]
    if clean is not None:
        before = functional.pad(clean[:, :-1], (1, 0), value=start)
        left = torch.cat((torch.where(every % block == 0, before, left), before), 1)  # [B, 2 L]
        turned = functional.pad(turned, (0, clean.shape[1]))
    place = entries.positions.expand_as(turned)
    seen = turned.unsqueeze(2) | (place.unsqueeze(1) <= place.unsqueeze(2))  # [B, M, M]
    if config.start >= 0:
        seen &= (place.unsqueeze(1) > 0) | (place.unsqueeze(2) == 0)
    mask = seen.unsqueeze(1) if entries.mask is None else entries.mask & seen.unsqueeze(1)
    return entries._replace(mask=mask, ends=None), left, turned.float().unsqueeze(-1)
