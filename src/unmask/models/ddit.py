"""The paper's network: a bidirectional transformer with rotary positions and adaLN conditioning (DDiT).

Parameter names and shapes are those of the published SEDD and MDLM checkpoints. The network serves SEDD as well: read
its outputs through ``unmask.models.score``. Its attention may be over visible tokens alone, or causal in the order in
which they became visible: see ``unmask.models.anyorder``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self, cast

import torch
from torch import Tensor, nn

from unmask.models import anyorder
from unmask.models.anyorder import Cached, View, take_rows
from unmask.models.config import PRESETS, DDiTConfig, preset
from unmask.models.first_layer import FirstProjections
from unmask.models.kernels import Table, plain
from unmask.models.layers import Block, Embedding, Memory, OutputLayer, Projected, Rotary, Sight, SigmaMap, Vectors
from unmask.models.packed import pack
from unmask.models.pretrained import Pretrained
from unmask.models.self_conditioned import SelfConditioned

__all__ = ["PRESETS", "DDiT", "DDiTConfig", "Transformer", "preset"]

SMALLEST_ALPHA = 1e-3  # where sigma = -log(alpha) stops growing, as in the published log-linear noise


class Transformer(nn.Module):
    """What the DDiT and its left-to-right twin share: parameters, their names, and the constants' folding."""

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


class DDiT(Transformer, Pretrained):
    """The paper's denoiser: logits = model(tokens, time, rows).

    Another conditioning of the same weights is another config: ``model.config = replace(model.config,
    conditioning="time")`` feeds the time to a checkpoint that was trained without it.
    """

    architecture = "ddit"
    causal = False
    first: FirstProjections | None = None  # of a network that was made for sampling

    @property
    def any_order(self) -> bool:
        """Whether the answer depends on the order in which tokens became visible, and a cache is exact."""
        return self.config.attention == "order"

    def forward(
        self,
        tokens: Tensor,
        time: Tensor | None = None,
        rows: Tensor | None = None,
        previous: Tensor | None = None,
        order: Tensor | None = None,
    ) -> Tensor:
        """tokens [B, L], time [B], rows [B, R] -> float32 logits [B, R, V], or [B, L, V] without rows.

        With rows, the last block's queries and MLP and the head are computed for those rows alone. ``previous``
        [B, L, width] is an earlier answer of ``states``, for a self-conditioned network. ``order`` [B, L], for one with
        attention="order", says when each visible token became visible, smaller numbers first; without it they are in
        ``anyorder.usual_order``.
        """
        return self.logits(self.states(tokens, time, rows, previous, order))

    def states(
        self,
        tokens: Tensor,
        time: Tensor | None = None,
        rows: Tensor | None = None,
        previous: Tensor | None = None,
        order: Tensor | None = None,
    ) -> Tensor:
        """The final states [B, R, width], of which the logits are a linear map: arguments as in ``forward``."""
        self._check(tokens)
        rule, mask_id = self.config.attention, self.mask_id
        if rule == "bidirectional":
            return self.last_states(*self._before_last(tokens, time, previous)[:3], rows)
        if rows is None:
            return self._seen(anyorder.everywhere(tokens, mask_id, rule, order), tokens, time)
        return self._seen(anyorder.asked(tokens, mask_id, rule, rows, order), tokens, time)

    def two_streams(self, tokens: Tensor, order: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """The final states [B, R, width] of the rows, each as if masked and given the tokens before it in the order.

        For a network with attention="order" and complete tokens. order is [B, L] as in ``forward``. One pass of length
        L + R gives, with all rows, every conditional of the chain rule along the order.
        """
        self._check(tokens)
        if not self.any_order:
            raise ValueError(f"two streams need attention='order', got {self.config.attention!r}")
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        return self._seen(anyorder.two_streams(tokens, self.mask_id, order, rows), tokens, None)

    def ragged(self, tokens: Tensor, time: Tensor | None, rows: Tensor, real: Tensor) -> Tensor:
        """Logits [M, V] at the rows [B, R] where the boolean [B, R] holds, in row-major order: no head for pads."""
        return self.logits(self.states(tokens, time, rows)[real])

    def packed(
        self, tokens: Tensor, time: Tensor | None, where: Tensor, previous: Tensor | None = None,
        order: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Logits [M, V] at the M positions where the boolean [B, L] holds, in row-major order."""
        return self.logits(self.states_where(tokens, time, where, previous, order))

    def states_where(
        self, tokens: Tensor, time: Tensor | None, where: Tensor, previous: Tensor | None = None,
        order: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The final states [M, width] of ``packed``."""
        self._check(tokens)
        view = None
        if self.config.attention != "bidirectional":
            view = anyorder.everywhere(tokens, self.mask_id, self.config.attention, order)
        x, c, table, sight = self._before_last(tokens, time, previous, view)
        return self.packed_states(x, c, table, where, sight)

    def for_sampling(self) -> nn.Module:
        """What a run of sampling should call; one with a memory, or a cache, needs its own for each run."""
        network = cast("DDiT", super().for_sampling())
        if self.config.self_conditioning:
            return SelfConditioned(network)
        remembers = self.config.conditioning == "none" and self.config.attention == "bidirectional"
        if network is self and (self.any_order or (remembers and self.first is None)):
            # The copy keeps what these weights gave, so they must not change under it.
            state = {name: tensor.clone() for name, tensor in self.state_dict().items()}
            network = self.built(self.config, state).eval().requires_grad_(False)
        if self.any_order:
            pack(network)
            return Cached(network)
        if remembers and self.first is None:
            network.first = FirstProjections()
        return network

    def _check(self, tokens: Tensor) -> None:
        if tokens.ndim != 2 or tokens.dtype != torch.int64:
            raise ValueError(f"tokens must be int64 [batch, length], got {tokens.dtype} {tuple(tokens.shape)}")

    def _seen(self, view: View, tokens: Tensor, time: Tensor | None) -> Tensor:
        """The final states of a view's rows."""
        x, c, table, sight = self._before_last(tokens, time, None, view)
        assert sight is not None
        return self.last_states(x, c, table, view.rows, take_rows(sight.mask, view.rows), sight.neighbours)

    def _before_last(
        self, tokens: Tensor, time: Tensor | None, previous: Tensor | None, view: View | None = None
    ) -> tuple[Tensor, Tensor | None, Table, Sight | None]:
        """The last block's input, the conditioning, the rotary table and who sees whom."""
        c = self._conditioning(tokens, time)
        first = self.first if torch.is_inference_mode_enabled() and not plain(self.vocab_embed.embedding) else None
        if first is not None and len(self.blocks) > 1 and tokens.numel():
            x = self._embedded(tokens, time, previous)
            table, projected = first(self.blocks[0], tokens, x, self.rotary_emb)
            return self.body(x, c, table, first=projected), c, table, None
        table = self.rotary_emb(0, tokens.shape[1])
        if view is None:
            return self.body(self._embedded(tokens, time, previous), c, table), c, table, None
        table, sight = (table[0][view.positions], table[1][view.positions]), view.sight(self.config.convolution)
        return self.body(self._embedded(view.tokens, time, previous), c, table, sight), c, table, sight

    def _conditioning(self, tokens: Tensor, time: Tensor | None) -> Tensor | None:
        """c [B, cond_dim] from the time or the masked ratio, or [1, cond_dim] where it is a constant."""
        if self.config.conditioning == "none" or self.sigma_map is None:
            return self.constant_conditioning()
        if self.config.conditioning == "ratio":
            level = (tokens == self.mask_id).double().mean(1)
        elif time is None:
            raise ValueError("this network is conditioned on the time: call it with time, float [batch]")
        else:
            level = time.to(tokens.device).double().expand(len(tokens))
        if self.config.time_embedding == "sigma":
            level = -torch.log((1 - level).clamp(min=SMALLEST_ALPHA))
        else:
            level = 1000 * level  # where the frequencies 1 .. 1e-4 tell the times in [0, 1] apart
        conditioning: Tensor = self.sigma_map(level)
        return conditioning

    def _embedded(self, tokens: Tensor, time: Tensor | None, previous: Tensor | None) -> Tensor:
        """Embedded tokens, joined by the network's own prediction F_{theta^-} if it is self-conditioned.

        The prediction is given as the final states: the logits are a linear map of them, so nothing is lost and no
        [B, L, V] tensor is made. In training it is blank half of the time and otherwise comes from a pass without
        gradients; otherwise it is ``previous``, or blank.
        """
        x: Tensor = self.vocab_embed(tokens)
        if not self.config.self_conditioning:
            if previous is not None:
                raise ValueError("previous is for a network with self_conditioning=True")
            return x
        if previous is None:
            previous = torch.zeros_like(x)
            if self.training and float(torch.rand(())) < 0.5:
                with torch.no_grad():
                    previous = self.states(tokens, time, previous=previous)
        projected: Tensor = self.self_condition(torch.cat((x, previous.detach()), -1))
        return projected


def _per_position(vectors: Vectors | None, batch: Tensor) -> Vectors | None:
    """adaLN vectors [B, 1, width] for packed positions: [M, width], or [1, width] where one serves all."""
    if vectors is None:
        return None
    return tuple(vector[0] if len(vector) == 1 else vector.squeeze(1)[batch] for vector in vectors)
