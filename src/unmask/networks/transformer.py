"""What all kinds of networks share: the parameters, and the pass through all blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.networks.attention import Entries
from unmask.networks.config import Attention, TransformerConfig
from unmask.networks.layers import (
    Block,
    Embedding,
    OutputLayer,
    Rotary,
    SigmaMap,
    check_tokens,
    modulation,
    of_sequences,
)
from unmask.networks.pretrained import Pretrained


class Transformer(nn.Module, Pretrained):
    """Embeddings, blocks and head. What an entry reads and sees is for the kinds of networks to say."""

    causal: ClassVar[bool]
    suppresses_mask: ClassVar[bool] = True
    config_class: ClassVar[type[TransformerConfig]] = TransformerConfig
    attention: ClassVar[Attention] = "bidirectional"  # the setting of a training run that makes it

    def __init__(self, config: Any) -> None:
        super().__init__()
        if type(config) is not self.config_class:
            raise ValueError(
                f"{type(self).__name__} takes a {self.config_class.__name__}, got a {type(config).__name__}: "
                "unmask.networks.config.blocks_of makes one of the same blocks"
            )
        self.config: TransformerConfig = config
        cond_dim = config.cond_dim if config.adaln else None
        self.vocab_embed = Embedding(max(config.vocab_size, config.mask_id + 1), config.width)
        self.position_embed = Embedding(config.length, config.width) if config.learned_positions else None
        self.sigma_map = None if cond_dim is None else SigmaMap(cond_dim)
        self.rotary_emb = Rotary(config.head_size)
        blocks = nn.ModuleList(self.new_block(config, cond_dim) for _ in range(config.layers))
        self.blocks = cast("Sequence[Block]", blocks)
        self.output_layer = OutputLayer(config, cond_dim)

    def new_block(self, config: Any, cond_dim: int | None) -> Block:
        """One of its blocks, with new parameters."""
        return Block(config, cond_dim, self.causal)

    @property
    def block(self) -> int:
        """The positions of a block of the sequence; 0 if it is one."""
        return 0

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def mask_id(self) -> int:
        return self.config.mask_id

    @property
    def length(self) -> int:
        return self.config.length

    @property
    def conditioned(self) -> bool:
        """Whether its adaLN vectors depend on the call; otherwise they are constants."""
        return False

    def check(self, tokens: Tensor) -> None:
        """Refuse what are not token ids [B, L], and sequences longer than the positions that were learned."""
        check_tokens(tokens)
        if self.position_embed is not None and tokens.shape[1] > self.length:
            raise ValueError(f"the network has learned {self.length} positions: a sequence may have no more tokens")

    def read(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The input [B, M, width] of the first block: embedded tokens [B, M], and learned positions if any."""
        return self.placed(self.embedded(tokens), positions)

    def placed(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [B, M, width] with the vectors of its positions, if there are learned ones."""
        return x if self.position_embed is None else x + self.position_embed(positions)

    def embedded(self, tokens: Tensor) -> Tensor:
        """The embeddings [B, M, width] of tokens [B, M]."""
        return self.vocab_embed(tokens)  # type: ignore[no-any-return]

    def through(self, x: Tensor, entries: Entries, c: Tensor | None, at: tuple[Tensor, ...] | None = None) -> Tensor:
        """The final states of embedded entries x [B, M, width]; the logits are a linear map of them.

        at: the sequences and entries whose states are wanted, as for indexing; the last MLP is computed for them alone.
        """
        angles, last = self.rotary_emb(entries.positions), self.blocks[-1]
        for block in self.blocks[:-1]:
            x = block(x, angles, c, entries)
        vectors, final = last.vectors(c), modulation(self.output_layer.adaLN_modulation, c, 2)
        x = last.attend(x, angles, vectors, entries)
        if at is not None:
            x, vectors, final = x[at], last.vectors_at(vectors, at), of_sequences(final, at[0])
        states: Tensor = self.output_layer.norm_final(last.feed_forward(x, vectors), *(final or ()))
        return states

    def logits(self, states: Tensor) -> Tensor:
        """float32 logits of final states [..., width], the mask's at -inf."""
        return functional.linear(states, *self.head()).float()

    def head(self) -> tuple[Tensor, Tensor]:
        """The linear map from states to logits; the mask's bias is -inf if it has a column."""
        weight, bias = self.output_layer.linear.weight, cast("Tensor", self.output_layer.linear.bias)
        if self.config.tie_embeddings:
            weight = self.vocab_embed.embedding[: len(bias)]
        if self.mask_id < len(bias):
            bias = bias.index_fill(0, torch.full((1,), self.mask_id, device=bias.device), -torch.inf)
        return weight, bias

    def constant_conditioning(self) -> Tensor | None:
        """c [1, cond_dim] at sigma = 0: the same for every sequence and call of a network without conditioning."""
        if self.sigma_map is None:
            return None
        conditioning: Tensor = self.sigma_map(torch.zeros(1, device=self.vocab_embed.embedding.device))
        return conditioning

    @classmethod
    def built(cls, config: Any, state: dict[str, Tensor]) -> Self:
        """A network made from these tensors, without initialising its own."""
        with torch.device("meta"):
            network = cls(config)
        network.load_state_dict(state, assign=True)
        return network
