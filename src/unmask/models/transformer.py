"""What the paper's network and its left-to-right twin share: parameters under their published names, and folding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self, cast

import torch
from torch import Tensor, nn

from unmask.models.config import DDiTConfig
from unmask.models.kernels import Table
from unmask.models.layers import Block, Embedding, Memory, OutputLayer, Projected, Rotary, Sight, SigmaMap, Vectors


class Transformer(nn.Module):
    """The parameters, the passes before and after the last block, and the folding of adaLN's constants."""

    causal: ClassVar[bool]
    suppresses_mask: ClassVar[bool] = True

    def __init__(self, config: DDiTConfig) -> None:
        super().__init__()
        self.config = config
        cond_dim = config.cond_dim if config.adaln else None
        self.vocab_embed = Embedding(max(config.vocab_size, config.mask_id + 1), config.width)
        self.sigma_map = None if cond_dim is None else SigmaMap(cond_dim)
        self.rotary_emb = Rotary(config.width // config.heads)
        blocks = nn.ModuleList(
            Block(
                width=config.width, heads=config.heads, mlp_ratio=config.mlp_ratio, dropout=config.dropout,
                cond_dim=cond_dim, norm_bias=config.norm_bias, convolution=config.convolution, causal=self.causal,
            )
            for _ in range(config.layers)
        )  # fmt: skip
        self.blocks = cast("Sequence[Block]", blocks)
        self.output_layer = OutputLayer(
            width=config.width, vocab_size=config.vocab_size, cond_dim=cond_dim, norm_bias=config.norm_bias,
            tied=config.tie_embeddings,
        )  # fmt: skip
        if config.self_conditioning:
            self.self_condition = nn.Linear(2 * config.width, config.width, bias=False)
            with torch.no_grad():  # [identity, 0]: it starts as the network without self-conditioning
                self.self_condition.weight.zero_().fill_diagonal_(1.0)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def mask_id(self) -> int:
        return self.config.mask_id

    @property
    def length(self) -> int:
        return self.config.length

    def logits(self, states: Tensor) -> Tensor:
        """Logits of final states [..., width], the mask's at -inf."""
        return self.output_layer.logits(states, self.vocab_embed.embedding, self.mask_id)

    def constant_conditioning(self) -> Tensor | None:
        """c [1, cond_dim] at sigma = 0: the same for every sequence and call of a network without conditioning."""
        if self.sigma_map is None:
            return None
        conditioning: Tensor = self.sigma_map(torch.zeros(1, device=self.vocab_embed.embedding.device))
        return conditioning

    def body(
        self, x: Tensor, c: Tensor | None, table: Table, sight: Sight | None = None, first: Projected | None = None
    ) -> Tensor:
        """Every block but the last, at every position; ``first`` are the first one's projections, if known."""
        mask, neighbours = sight or (None, None)
        for block in self.blocks[:-1]:
            x = block(x, table, block.vectors(c), mask=mask, neighbours=neighbours, projected=first)
            first = None
        return x

    def last_states(
        self, x: Tensor, c: Tensor | None, table: Table, rows: Tensor | None, mask: Tensor | None = None,
        neighbours: Tensor | None = None, past: Memory | None = None,
    ) -> Tensor:  # fmt: skip
        """The last block and the final norm [B, R, width], for the asked rows alone; mask is [B, 1, R, L]."""
        last = self.blocks[-1]
        vectors = last.vectors(c)
        x = last.feed_forward(last.attend(x, table, vectors, rows, mask, past, neighbours), vectors)
        return self.output_layer.states(x, self.output_layer.vectors(c))

    def packed_states(
        self, x: Tensor, c: Tensor | None, table: Table, where: Tensor, sight: Sight | None = None
    ) -> Tensor:
        """The same [M, width] where the boolean [B, L] holds: attention everywhere, the rest for these alone."""
        last, batch = self.blocks[-1], where.nonzero()[:, 0]
        vectors = last.vectors(c)
        mask, neighbours = sight or (None, None)
        x = last.attend(x, table, vectors, mask=mask, neighbours=neighbours)[where]
        x = last.feed_forward(x, _per_position(vectors, batch))
        return self.output_layer.states(x, _per_position(self.output_layer.vectors(c), batch))

    def for_sampling(self) -> nn.Module:
        """What a run of sampling should call: with the constants folded once, or the network itself."""
        return self.folded() if self.config.adaln and self.config.conditioning == "none" else self

    @torch.no_grad()
    def folded(self) -> Self:
        """The same function without adaLN, for sampling: with no conditioning its vectors are constants.

        Shifts and scales go into the norms, gates into the projections before them. The result is a copy that shares
        nothing with this network, so training on cannot leave it half old and half new.
        """
        if not self.config.adaln or self.config.conditioning != "none":
            raise ValueError(
                f"only adaLN vectors that are constants can be folded: adaln={self.config.adaln}, "
                f"conditioning={self.config.conditioning!r}"
            )
        c = self.constant_conditioning()
        state = {
            name: tensor.clone()
            for name, tensor in self.state_dict().items()
            if not name.startswith("sigma_map.") and ".adaLN_modulation." not in name
        }

        def fold_norm(name: str, shift: Tensor, scale: Tensor) -> None:
            state[f"{name}.weight"] *= 1 + scale
            state[f"{name}.bias"] = torch.addcmul(shift, state.get(f"{name}.bias", torch.zeros_like(shift)), 1 + scale)

        for i, block in enumerate(self.blocks):
            vectors = [vector.flatten() for vector in block.vectors(c) or ()]
            fold_norm(f"blocks.{i}.norm1", *vectors[:2])
            fold_norm(f"blocks.{i}.norm2", *vectors[3:5])
            state[f"blocks.{i}.attn_out.weight"] *= vectors[2].unsqueeze(1)
            state[f"blocks.{i}.mlp.2.weight"] *= vectors[5].unsqueeze(1)
            state[f"blocks.{i}.mlp.2.bias"] *= vectors[5]
        fold_norm("output_layer.norm_final", *(vector.flatten() for vector in self.output_layer.vectors(c) or ()))
        return self.built(replace(self.config, adaln=False, norm_bias=True), state).eval().requires_grad_(False)

    @classmethod
    def built(cls, config: DDiTConfig, state: dict[str, Tensor]) -> Self:
        """A network that takes over these tensors, without initialising any of its own."""
        with torch.device("meta"):
            network = cls(config)
        network.load_state_dict(state, assign=True)
        return network


def _per_position(vectors: Vectors | None, batch: Tensor) -> Vectors | None:
    """adaLN vectors [B, 1, width] for packed positions: [M, width], or [1, width] where one serves all."""
    if vectors is None:
        return None
    return tuple(vector[0] if len(vector) == 1 else vector.squeeze(1)[batch] for vector in vectors)
