"""The layers that all kinds of networks are made of, in plain torch.

Parameter names and shapes are those of the published SEDD and MDLM checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.networks.attention import Entries
from unmask.networks.config import TransformerConfig

Angles = tuple[Tensor, Tensor]  # cosines and signed sines of the rotary angles, each [..., M, 1, head_dim]
Vectors = tuple[Tensor, ...]  # an adaLN's shifts, scales and gates, each [B, 1, width], or [1, 1, width] for all

FREQUENCIES = 256  # the width of the embedding of the noise level, in every published checkpoint


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

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.weight, self.kind, self.eps = nn.Parameter(torch.ones(config.width)), config.norm, config.eps
        self.bias = nn.Parameter(torch.zeros(config.width)) if config.norm_bias else None

    def forward(self, x: Tensor, shift: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        if self.kind == "layer":
            x = functional.layer_norm(x.float(), self.weight.shape, self.weight, self.bias, self.eps)
        else:
            x = functional.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)
            x = x if self.bias is None else x + self.bias
        return x if shift is None or scale is None else torch.addcmul(shift, x, 1 + scale)


class SwiGLU(nn.Module):
    """silu(gate) * up, for the two halves of its input."""

    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return functional.silu(gate) * up


def mlp(config: TransformerConfig) -> nn.Sequential:
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
        inputs = take(source, near.flatten(1)).view(*near.shape, h.shape[-1])  # [B, M, taps, width]
        return h + (inputs * self.weight.t()).sum(2)


class Block(nn.Module):
    """x + gate * attention(norm(x)), then x + gate * mlp(norm(x)), both norms modulated by adaLN.

    adaLN starts at zero, so a block starts as the identity. Without ``cond_dim`` there is none: plain norms, no gates.
    """

    def __init__(self, config: TransformerConfig, cond_dim: int | None, causal: bool) -> None:
        super().__init__()
        width, inner = config.width, config.heads * config.head_size
        self.heads, self.causal, self.eps = config.heads, causal, config.eps
        self.norm1 = Norm(config)
        self.attn_qkv = nn.Linear(width, 3 * inner, bias=config.qkv_bias)
        self.head_norm = nn.Parameter(torch.ones(2, config.head_size)) if config.head_norm else None
        self.attn_out = nn.Linear(inner, width, bias=False)
        self.norm2 = Norm(config)
        self.mlp = mlp(config)
        self.adaLN_modulation = None if cond_dim is None else zeros(nn.Linear(cond_dim, 6 * width))
        self.convolution = Convolution(width, config.convolution, causal) if config.convolution else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, angles: Angles, c: Tensor | None, entries: Entries) -> Tensor:
        """x [B, M, width], of M entries; c is what the network's pass is conditioned on."""
        vectors = self.vectors(c)
        return self.feed_forward(self.attend(x, angles, vectors, entries), vectors)

    def vectors(self, c: Tensor | None) -> Vectors | None:
        """adaLN's shift, scale and gate of the attention, and then of the MLP."""
        return modulation(self.adaLN_modulation, c, 6)

    def vectors_at(self, vectors: Vectors | None, at: tuple[Tensor, ...]) -> Vectors | None:
        """Those of the entries x[at], for sequences and entries as for indexing."""
        return of_sequences(vectors, at[0])

    def attend(self, x: Tensor, angles: Angles, vectors: Vectors | None, entries: Entries) -> Tensor:
        """x + gate * attention(norm(x))."""
        q, k, v = self.project(self.prepared(x, vectors, entries.near, entries.real), angles, vectors)
        return self.attended(x, self.mix(q, k, v, entries.mask, entries.ends), vectors)

    def prepared(
        self, x: Tensor, vectors: Vectors | None, near: Tensor | None = None, real: Tensor | None = None
    ) -> Tensor:
        """The input of the projections to queries, keys and values: the norm, and the convolution if there is one."""
        h: Tensor = self.norm1(x, *(vectors[:2] if vectors else ()))
        if self.convolution is None:
            return h
        return self.convolution(h if real is None else h * real, near)  # type: ignore[no-any-return]

    def project(self, h: Tensor, angles: Angles, vectors: Vectors | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [B, heads, M, head_dim], positions rotated into the first two.

        vectors: for blocks whose maps depend on them, as these do not.
        """
        return self.rotated(self.attn_qkv(h), angles)

    def rotated(self, qkv: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, heads, M, head_dim] from their projections [B, M, 3 heads head_dim]."""
        each = qkv.view(*qkv.shape[:-1], 3 * self.heads, qkv.shape[-1] // (3 * self.heads))  # [B, M, 3 heads, head_dim]
        both, v = torch.split(each, [2 * self.heads, self.heads], -2)
        if self.head_norm is not None:
            both = torch.cat([self.normed(one, which) for which, one in enumerate(both.chunk(2, -2))], -2)
        q, k = rotate(both, angles).transpose(1, 2).chunk(2, 1)
        return q, k, v.transpose(1, 2)

    def normed(self, x: Tensor, which: int) -> Tensor:
        """Queries (0) or keys (1) [..., heads, head_dim] with the norm of each head, if there is one."""
        if self.head_norm is None:
            return x
        return functional.rms_norm(x.float(), x.shape[-1:], self.head_norm[which], self.eps).to(x.dtype)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, ends: Sequence[int] | None = None) -> Tensor:
        """The attention [B, M, width] of queries [B, heads, M, head_dim] over keys and values [B, heads, S, head_dim].

        mask: bool or float [B, 1, M, S]. ends: the lengths of sequences to attend separately, instead of a mask.
        """
        if ends is None:
            causal = self.causal and mask is None and q.shape[2] == k.shape[2]  # fewer queries belong to the last entry
            return attention(q, k, v, mask, causal).transpose(1, 2).flatten(2)
        each = [self.mix(q[i, None, :, :n], k[i, None, :, :n], v[i, None, :, :n], None) for i, n in enumerate(ends)]
        return torch.cat([functional.pad(one, (0, 0, 0, q.shape[2] - one.shape[1])) for one in each])

    def attended(self, x: Tensor, mixed: Tensor, vectors: Vectors | None) -> Tensor:
        """x + gate * the map of the attention [B, M, width]."""
        return self.add(x, vectors[2] if vectors else None, self.attn_out(mixed))

    def feed_forward(self, x: Tensor, vectors: Vectors | None) -> Tensor:
        """x + gate * mlp(norm(x)), for x [B, M, width] or [M, width] with vectors to match."""
        shift, scale, gate = vectors[3:] if vectors else (None, None, None)
        return self.add(x, gate, self.mlp(self.norm2(x, shift, scale)))

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

    def __init__(self, config: TransformerConfig, cond_dim: int | None) -> None:
        super().__init__()
        self.norm_final = Norm(config)
        self.linear = zeros(nn.Linear(config.width, config.vocab_size))
        if config.tie_embeddings:
            self.linear.register_parameter("weight", None)
        self.adaLN_modulation = None if cond_dim is None else zeros(nn.Linear(cond_dim, 2 * config.width))


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
