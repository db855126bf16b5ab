"""The layers of the DDiT and of its left-to-right twin, and a pass through all of them, in plain torch.

Parameter names and shapes are those of the published SEDD and MDLM checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.networks.adapters import Adapters, adapted
from unmask.networks.anyorder import Entries
from unmask.networks.config import DDiTConfig

Angles = tuple[Tensor, Tensor]  # cosines and signed sines of the rotary angles, each [..., M, 1, head_dim]
Vectors = tuple[Tensor, ...]  # an adaLN's shifts, scales and gates, each [B, 1, width], or [1, 1, width] for all

FREQUENCIES = 256  # the width of the embedding of the noise level, in every published checkpoint


def all_positions(tokens: Tensor) -> Entries:
    """The entries of bidirectional attention: every position sees every position."""
    return Entries(tokens, torch.arange(tokens.shape[1], device=tokens.device))


class Embedding(nn.Module):
    """Token id to vector, with the checkpoints' name for the matrix."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(rows, width).uniform_(-1 / math.sqrt(width), 1 / math.sqrt(width)))

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.embedding)


class SigmaMap(nn.Module):
    """Noise level to conditioning vector: silu(mlp([cos(sigma f), sin(sigma f)])), f_k = 10000^(-k/128)."""

    def __init__(self, cond_dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(FREQUENCIES, cond_dim), nn.SiLU(), nn.Linear(cond_dim, cond_dim))

    def forward(self, sigma: Tensor) -> Tensor:
        half = FREQUENCIES // 2
        k = torch.arange(half, dtype=torch.float32, device=sigma.device)
        angles = sigma.float().unsqueeze(-1) * torch.exp(-math.log(10000.0) / half * k)
        return functional.silu(self.mlp(torch.cat((angles.cos(), angles.sin()), -1)))


class Rotary(nn.Module):
    """Rotary positions, base 10000, halves rotated (not interleaved); any length."""

    inv_freq: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        # Not by torch.arange: on the meta device, where models are built to be loaded, that imports for seconds.
        self.register_buffer("inv_freq", torch.tensor([10000.0 ** (-2 * k / head_dim) for k in range(head_dim // 2)]))

    def forward(self, positions: Tensor) -> Angles:
        angles = (positions.unsqueeze(-1) * self.inv_freq.float()).unsqueeze(-2)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Rotate each pair (x_k, x_{k + D/2}) of x [..., M, heads, D] by its position's angle."""
    first, second = x.chunk(2, -1)
    return torch.addcmul(x * angles[0], torch.cat((second, first), -1), angles[1])


class Norm(nn.Module):
    """LayerNorm or RMSNorm in float32, its weight and perhaps a bias, then adaLN's x (1 + scale) + shift."""

    def __init__(self, config: DDiTConfig) -> None:
        super().__init__()
        self.weight, self.kind = nn.Parameter(torch.ones(config.width)), config.norm
        self.bias = nn.Parameter(torch.zeros(config.width)) if config.norm_bias else None

    def forward(self, x: Tensor, shift: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        if self.kind == "layer":
            x = functional.layer_norm(x.float(), self.weight.shape, self.weight, self.bias)
        else:
            x = functional.rms_norm(x.float(), self.weight.shape, self.weight, eps=1e-5)
            x = x if self.bias is None else x + self.bias
        return x if shift is None or scale is None else torch.addcmul(shift, x, 1 + scale)


class SwiGLU(nn.Module):
    """silu(gate) * up, for the two halves of its input."""

    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return functional.silu(gate) * up


def mlp(config: DDiTConfig) -> nn.Sequential:
    """The map up, the activation, and the map down."""
    width, hidden = config.width, config.hidden or config.mlp_ratio * config.width
    if config.mlp == "swiglu":
        return nn.Sequential(nn.Linear(width, 2 * hidden), SwiGLU(), nn.Linear(hidden, width))
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, width))


class Convolution(nn.Module):
    """A depthwise convolution along the sequence, added to its input; it starts as the identity."""

    def __init__(self, width: int, taps: int, causal: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, taps))
        self.left = taps - 1 if causal else taps // 2
        self.right = taps - 1 - self.left

    def forward(self, h: Tensor, near: Tensor | None = None) -> Tensor:
        if near is not None:
            return self.among(h, functional.pad(h, (0, 0, 1, 0)), near)
        padded = functional.pad(h, (0, 0, self.left, self.right))
        for tap in range(self.weight.shape[1]):
            h = torch.addcmul(h, padded[:, tap : tap + h.shape[1]], self.weight[:, tap])
        return h

    def among(self, h: Tensor, source: Tensor, near: Tensor) -> Tensor:
        """The same if each entry's neighbours are rows of source, by number [B, M, taps]; row 0 is all zeros."""
        found = take(source, near.flatten(1)).view(*near.shape, h.shape[-1])
        return h + (found * self.weight.t()).sum(2)


class Block(nn.Module):
    """x + gate * attention(norm(x)), then x + gate * mlp(norm(x)), both norms modulated by adaLN.

    adaLN starts at zero, so a block starts as the identity. Without ``cond_dim`` there is none: plain norms, no gates.
    """

    def __init__(self, config: DDiTConfig, cond_dim: int | None, causal: bool) -> None:
        super().__init__()
        width = config.width
        self.heads, self.causal = config.heads, causal
        self.norm1 = Norm(config)
        self.attn_qkv = nn.Linear(width, 3 * width, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.norm2 = Norm(config)
        self.mlp = mlp(config)
        self.adaLN_modulation = None if cond_dim is None else zeros(nn.Linear(cond_dim, 6 * width))
        # With adapters it stays that of the left-to-right network: of an entry in turn it reads others in turn.
        looks_back = causal or config.adapters > 0
        self.convolution = Convolution(width, config.convolution, looks_back) if config.convolution else None
        self.adapters = None
        if config.adapters:
            first, last = cast("nn.Linear", self.mlp[0]), cast("nn.Linear", self.mlp[2])
            self.adapters = Adapters(width, first.out_features, last.in_features, config.adapters)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, angles: Angles, c: Tensor | None, entries: Entries) -> Tensor:
        vectors = self.vectors(c)
        return self.feed_forward(self.attend(x, angles, vectors, entries), vectors, entries.turned)

    def vectors(self, c: Tensor | None) -> Vectors | None:
        """adaLN's shift, scale and gate of the attention, and then of the MLP."""
        return modulation(self.adaLN_modulation, c, 6)

    def attend(self, x: Tensor, angles: Angles, vectors: Vectors | None, entries: Entries) -> Tensor:
        """x + gate * attention(norm(x))."""
        q, k, v = self.project(self.prepared(x, vectors, entries.near, entries.real), angles, entries.turned)
        mixed = self.mix(q, k, v, entries.mask, entries.ends, entries.turned)
        return self.add(x, vectors[2] if vectors else None, mixed)

    def feed_forward(self, x: Tensor, vectors: Vectors | None, turned: Tensor | None = None) -> Tensor:
        """x + gate * mlp(norm(x)), for x [B, M, width] or [M, width] with vectors to match."""
        shift, scale, gate = vectors[3:] if vectors else (None, None, None)
        h = self.norm2(x, shift, scale)
        if self.adapters is None:
            return self.add(x, gate, self.mlp(h))
        h = self.mlp[1](adapted(self.mlp[0], self.adapters.up, h, turned))
        return self.add(x, gate, adapted(self.mlp[2], self.adapters.down, h, turned))

    def prepared(
        self, x: Tensor, vectors: Vectors | None, near: Tensor | None = None, real: Tensor | None = None
    ) -> Tensor:
        """The input of the projections to queries, keys and values: the norm, and the convolution if there is one."""
        h: Tensor = self.norm1(x, *(vectors[:2] if vectors else ()))
        if self.convolution is None:
            return h
        return self.convolution(h if real is None else h * real, near)  # type: ignore[no-any-return]

    def project(self, h: Tensor, angles: Angles, turned: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [B, heads, M, head_dim], positions rotated into the first two."""
        made = self.attn_qkv(h) if self.adapters is None else adapted(self.attn_qkv, self.adapters.qkv, h, turned)
        both, v = made.unflatten(-1, (3 * self.heads, -1)).split((2 * self.heads, self.heads), -2)
        q, k = rotate(both, angles).transpose(1, 2).chunk(2, 1)
        return q, k, v.transpose(1, 2)

    def mix(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        ends: Sequence[int] | None = None,
        turned: Tensor | None = None,
    ) -> Tensor:
        """The attention [B, M, width]. ends: the lengths of sequences to attend separately, instead of a mask."""
        if ends is not None:
            alone = [
                self.mix(q[i, None, :, :n], k[i, None, :, :n], v[i, None, :, :n], None) for i, n in enumerate(ends)
            ]
            return torch.cat([functional.pad(one, (0, 0, 0, q.shape[2] - one.shape[1])) for one in alone])
        causal = self.causal and mask is None and q.shape[2] == k.shape[2]  # fewer queries belong to the last entry
        mixed = attention(q, k, v, mask, causal)
        joined = mixed.transpose(1, 2).flatten(2)
        out: Tensor = self.attn_out(joined)
        return out if self.adapters is None else adapted(self.attn_out, self.adapters.out, joined, turned)

    def add(self, x: Tensor, gate: Tensor | None, out: Tensor) -> Tensor:
        return x + self.dropout(out) if gate is None else torch.addcmul(x, gate, self.dropout(out))


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Scaled dot-product attention; in mixed precision on a CPU in float32, where bfloat16's gradient is slow."""
    if q.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    with torch.autocast("cpu", enabled=False):
        q, k, v = (one.float() for one in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


class OutputLayer(nn.Module):
    """The modulated final norm, and the map to logits. The map starts at zero: the untrained network is uniform."""

    def __init__(self, config: DDiTConfig, cond_dim: int | None) -> None:
        super().__init__()
        self.norm_final = Norm(config)
        self.linear = zeros(nn.Linear(config.width, config.vocab_size))
        if config.tie_embeddings:
            self.linear.register_parameter("weight", None)
        self.adaLN_modulation = None if cond_dim is None else zeros(nn.Linear(cond_dim, 2 * config.width))


class Transformer(nn.Module):
    """Common to the network and its left-to-right twin: the parameters, and a pass through all blocks."""

    causal: ClassVar[bool]
    suppresses_mask: ClassVar[bool] = True

    def __init__(self, config: DDiTConfig) -> None:
        super().__init__()
        self.config = config
        cond_dim = config.cond_dim if config.adaln else None
        self.vocab_embed = Embedding(max(config.vocab_size, config.mask_id + 1), config.width)
        self.position_embed = Embedding(config.length, config.width) if config.learned_positions else None
        self.sigma_map = None if cond_dim is None else SigmaMap(cond_dim)
        self.rotary_emb = Rotary(config.width // config.heads)
        blocks = nn.ModuleList(Block(config, cond_dim, self.causal) for _ in range(config.layers))
        self.blocks = cast("Sequence[Block]", blocks)
        self.output_layer = OutputLayer(config, cond_dim)
        reads_two = config.adapters > 0 or config.reads_left
        self.own_token = nn.Linear(config.width, config.width, bias=False) if reads_two else None
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

    def check(self, tokens: Tensor) -> None:
        """Refuse what are not token ids [B, L], and sequences longer than the positions that were learned."""
        check_tokens(tokens)
        if self.position_embed is not None and tokens.shape[1] > self.length:
            raise ValueError(f"the network has learned {self.length} positions: a sequence may have no more tokens")

    def read(
        self, tokens: Tensor, positions: Tensor, left: Tensor | None = None, turned: Tensor | None = None
    ) -> Tensor:
        """What the first block gets of tokens [B, M]: their embeddings [B, M, width], and those of learned positions.

        With adapters those of the tokens to the left, [B, M], and out of turn a linear map of the visible tokens too.
        A network that reads left has both everywhere.
        """
        x = self._embedded(tokens, left, turned)
        if self.position_embed is None:
            return x
        learned: Tensor = self.position_embed(positions)
        return x + learned

    def _embedded(self, tokens: Tensor, left: Tensor | None, turned: Tensor | None) -> Tensor:
        if self.config.reads_left:
            left = functional.pad(tokens[:, :-1], (1, 0), value=self.mask_id)
        if self.own_token is None or left is None:
            embedded: Tensor = self.vocab_embed(tokens)
            return embedded
        x: Tensor = self.vocab_embed(left)
        if turned is None and not self.config.reads_left:
            return x
        own = self.own_token(self.vocab_embed(tokens)) * (tokens != self.mask_id).unsqueeze(-1)
        return x + own if turned is None else torch.addcmul(x, turned, own)

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
            x, vectors, final = x[at], of_sequences(vectors, at[0]), of_sequences(final, at[0])
        turned = entries.turned if at is None or entries.turned is None else entries.turned[at]
        states: Tensor = self.output_layer.norm_final(last.feed_forward(x, vectors, turned), *(final or ()))
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
    def built(cls, config: DDiTConfig, state: dict[str, Tensor]) -> Self:
        """A network made from these tensors, without initialising its own."""
        with torch.device("meta"):
            network = cls(config)
        network.load_state_dict(state, assign=True)
        return network


def modulation(linear: nn.Linear | None, c: Tensor | None, parts: int) -> Vectors | None:
    """The vectors that an adaLN computes from the conditioning c [B, cond_dim], or from one c for the whole batch."""
    return None if linear is None or c is None else tuple(linear(c).unsqueeze(1).chunk(parts, -1))


def of_sequences(vectors: Vectors | None, batch: Tensor) -> Vectors | None:
    """The vectors [B, 1, width] of the sequences batch [...]: [..., width], or [1, width] if one serves all."""
    return vectors and tuple(v[0] if len(v) == 1 else v.squeeze(1)[batch] for v in vectors)


def by_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [B, R] of each sequence, as for indexing."""
    return torch.arange(len(rows), device=rows.device).unsqueeze(1), rows


def take(x: Tensor, rows: Tensor) -> Tensor:
    """x [B, L, ...] at rows [B, R]: [B, R, ...]."""
    return x[by_rows(rows)]


def check_tokens(tokens: Tensor) -> None:
    if tokens.ndim != 2 or tokens.dtype != torch.int64:
        raise ValueError(f"tokens must be int64 [batch, length], got {tokens.dtype} {tuple(tokens.shape)}")


def zeros(linear: nn.Linear) -> nn.Linear:
    """The same layer with every parameter at zero."""
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    return linear
