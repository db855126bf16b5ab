"""The blocks of the DDiT and of its left-to-right twin.

Parameter names and shapes are those of the published SEDD and MDLM checkpoints. A block comes in two halves, ``attend``
and ``feed_forward``, so that the last one can be computed for the asked rows alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.models.kernels import FEW_OF_HEAD, Gelu, Table, attention_of_few, by_parts, linear, plain, rotate

Vectors = tuple[Tensor, ...]  # an adaLN's shifts, scales and gates, each [B, 1, width] or [1, 1, width]

Projected = tuple[Tensor, Tensor, Tensor]  # queries, keys and values, each [B, heads, *, head_dim]

FREQUENCIES = 256  # the width of the embedding of the noise level, in every published checkpoint


def take(x: Tensor, rows: Tensor) -> Tensor:
    """x [B, L, ...] at rows [B, R]: [B, R, ...]."""
    return x[torch.arange(len(x), device=x.device).unsqueeze(1), rows]


class Linear(nn.Linear):
    """nn.Linear by ``linear``."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


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
        conditioning: Tensor = self.mlp(torch.cat((angles.cos(), angles.sin()), -1))
        return functional.silu(conditioning)


class Rotary(nn.Module):
    """Rotary positions, base 10000, halves rotated (not interleaved); any length."""

    inv_freq: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        # Not by torch.arange: on the meta device, where models are built to be loaded, that imports for seconds.
        self.register_buffer("inv_freq", torch.tensor([10000.0 ** (-2 * k / head_dim) for k in range(head_dim // 2)]))

    def forward(self, start: int, stop: int) -> Table:
        """The table of positions start .. stop - 1."""
        positions = torch.arange(start, stop, dtype=torch.float32, device=self.inv_freq.device)
        angles = torch.outer(positions, self.inv_freq.float()).unsqueeze(1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def at_positions(table: Table, rows: Tensor) -> Table:
    """The table's rows [B, R], of one table for all sequences or of each one's own."""
    cos, sin = table
    return (cos[rows], sin[rows]) if cos.ndim == 3 else (take(cos, rows), take(sin, rows))


class LayerNorm(nn.Module):
    """LayerNorm in float32, its weight and perhaps a bias, then adaLN's x (1 + scale) + shift."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor, shift: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        weight, bias = self.weight, self.bias
        if shift is None or scale is None:
            return functional.layer_norm(x.float(), weight.shape, weight, bias)
        if scale.numel() == weight.numel():
            # One modulation for the whole batch is an affine map of the norm's own kind: one pass instead of two.
            once = 1 + scale.flatten()
            offset = shift.flatten() if bias is None else torch.addcmul(shift.flatten(), bias, once)
            return functional.layer_norm(x.float(), weight.shape, weight * once, offset)
        return torch.addcmul(shift, functional.layer_norm(x.float(), weight.shape, weight, bias), 1 + scale)


class Convolution(nn.Module):
    """A depthwise convolution along the sequence, added to its input; it starts as the identity."""

    def __init__(self, width: int, taps: int, causal: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, taps))
        self.left = taps - 1 if causal else taps // 2
        self.right = taps - 1 - self.left

    def forward(self, h: Tensor, before: Tensor | None = None) -> Tensor:
        """``before`` [B, left, width] is what stood left of h, where h continues a sequence; zeros without it."""
        padded = functional.pad(h, (0, 0, self.left, self.right)) if before is None else torch.cat((before, h), 1)
        for tap in range(self.weight.shape[1]):
            h = torch.addcmul(h, padded[:, tap : tap + h.shape[1]], self.weight[:, tap])
        return h

    def among(self, h: Tensor, source: Tensor, neighbours: Tensor) -> Tensor:
        """The same where each row's neighbours are rows of source, by number [B, M, taps]; the first of them is 0."""
        found = take(source, neighbours.flatten(1)).view(*neighbours.shape, h.shape[-1])
        return h + (found * self.weight.t()).sum(2)


class Sight(NamedTuple):
    """What each of the rows of a pass may see of the others; see ``unmask.models.anyorder``."""

    mask: Tensor  # bool [B, 1, M, M]
    neighbours: Tensor | None = None  # int64 [B, M, taps]: the convolution's; 0 for none, i + 1 for row i


class Memory(Protocol):
    """What a block was shown before, and may be shown now."""

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]: ...

    def convolved(self, convolution: Convolution, h: Tensor) -> Tensor: ...


class Block(nn.Module):
    """A transformer block: x + gate * attention(norm x), then x + gate * mlp(norm x), both norms modulated by adaLN.

    adaLN starts at zero, so a block starts as the identity. Without ``cond_dim`` there is none: plain norms, no gates.
    """

    def __init__(
        self, *, width: int, heads: int, mlp_ratio: int, dropout: float, cond_dim: int | None, norm_bias: bool,
        convolution: int, causal: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.norm1 = LayerNorm(width, norm_bias)
        self.attn_qkv = Linear(width, 3 * width, bias=False)
        self.attn_out = Linear(width, width, bias=False)
        self.norm2 = LayerNorm(width, norm_bias)
        self.mlp = nn.Sequential(
            Linear(width, mlp_ratio * width), Gelu(), Linear(mlp_ratio * width, width)
        )
        self.adaLN_modulation = None if cond_dim is None else zeros(nn.Linear(cond_dim, 6 * width))
        self.convolution = Convolution(width, convolution, causal) if convolution else None

    def vectors(self, c: Tensor | None) -> Vectors | None:
        """adaLN's six vectors: shift, scale, gate of the attention, then of the MLP."""
        return modulation(self.adaLN_modulation, c, 6)

    def attend(
        self,
        x: Tensor,
        table: Table,
        vectors: Vectors | None,
        rows: Tensor | None = None,
        mask: Tensor | None = None,
        past: Memory | None = None,
        neighbours: Tensor | None = None,
        projected: Projected | None = None,
    ) -> Tensor:
        """The attention half at all rows of x, or at ``rows`` alone: keys and values are everybody's in any case.

        ``projected`` are the queries, keys and values, where they are known already.
        """
        gate = None if vectors is None else vectors[2]
        if projected is None:
            h = self.prepared(x, vectors, past, neighbours)
            everybody = not self.causal and mask is None and past is None
            # Mixing inputs for R queries takes heads R / width of the work of projecting every value.
            if rows is not None and 2 * rows.shape[1] * self.heads <= x.shape[-1] and everybody and not plain(x):
                return self._add(take(x, rows), gate, self.attn_out(self._of_few(h, table, rows)))
            projected = self.project(h, table, rows)
        q, k, v = projected
        if past is not None:
            k, v = past.append(k, v)
        causal = self.causal and mask is None and past is None
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        out = self.attn_out(mixed.transpose(1, 2).flatten(2))
        return self._add(x if rows is None else take(x, rows), gate, out)

    def prepared(
        self, x: Tensor, vectors: Vectors | None, past: Memory | None = None, neighbours: Tensor | None = None
    ) -> Tensor:
        """What queries, keys and values are projected from: the norm, and the convolution if there is one."""
        h: Tensor = self.norm1(x, *((None, None) if vectors is None else vectors[:2]))
        if self.convolution is None:
            return h
        if past is not None:
            return past.convolved(self.convolution, h)
        if neighbours is not None:
            return self.convolution.among(h, functional.pad(h, (0, 0, 1, 0)), neighbours)
        return self.convolution(h)  # type: ignore[no-any-return]

    def feed_forward(self, x: Tensor, vectors: Vectors | None) -> Tensor:
        """The MLP half; x may be [B, R, width] or packed [M, width] with vectors to match."""
        shift, scale, gate = (None, None, None) if vectors is None else vectors[3:]
        return self._add(x, gate, by_parts(self.mlp, self.norm2(x, shift, scale)))

    def forward(self, x: Tensor, table: Table, vectors: Vectors | None, past: Memory | None = None,
                mask: Tensor | None = None, neighbours: Tensor | None = None,
                projected: Projected | None = None) -> Tensor:  # fmt: skip
        attended = self.attend(
            x, table, vectors, mask=mask, past=past, neighbours=neighbours, projected=projected
        )
        return self.feed_forward(attended, vectors)

    def project(self, h: Tensor, table: Table, rows: Tensor | None = None) -> Projected:
        """Queries of the rows, keys and values of all: each [B, heads, *, head_dim], positions rotated in."""
        width = h.shape[-1]
        size = (self.heads, width // self.heads)
        all_rows = (table[0].unsqueeze(-3), table[1].unsqueeze(-3))  # [..., 1, 1, D], over "three" and heads
        if rows is None or not isinstance(self.attn_qkv, Linear):  # a packed weight has no parts
            qkv = self.attn_qkv(h).view(*h.shape[:2], 3, *size)
            q, k = rotate(qkv[:, :, :2], all_rows).unbind(2)
            q, v = q if rows is None else take(q, rows), qkv[:, :, 2]
        else:
            q = self._queries(h, table, rows)
            kv = linear(h, self.attn_qkv.weight[width:]).view(*h.shape[:2], 2, *size)  # laid out (three, head, dim)
            k, v = rotate(kv[:, :, 0], table), kv[:, :, 1]
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _queries(self, h: Tensor, table: Table, rows: Tensor) -> Tensor:
        """Of the rows [B, R] alone: [B, R, heads, head_dim], positions rotated in."""
        q = linear(take(h, rows), self.attn_qkv.weight[: h.shape[-1]])
        return rotate(q.view(*rows.shape, self.heads, h.shape[-1] // self.heads), at_positions(table, rows))

    def _of_few(self, h: Tensor, table: Table, rows: Tensor) -> Tensor:
        """The attention's answer [B, R, width] at a few rows, with nobody's values projected."""
        width = h.shape[-1]
        q = self._queries(h, table, rows)
        k = linear(h, self.attn_qkv.weight[width : 2 * width]).view(*h.shape[:2], self.heads, width // self.heads)
        k = rotate(k, table)
        mixed = attention_of_few(q.transpose(1, 2), k.transpose(1, 2), h, self.attn_qkv.weight[2 * width :])
        return mixed.transpose(1, 2).flatten(2)

    def _add(self, x: Tensor, gate: Tensor | None, out: Tensor) -> Tensor:
        out = functional.dropout(out, self.dropout, self.training)
        return x + out if gate is None else torch.addcmul(x, gate, out)


class OutputLayer(nn.Module):
    """The modulated final norm and the map to logits. The map starts at zero: the untrained network is uniform."""

    def __init__(self, *, width: int, vocab_size: int, cond_dim: int | None, norm_bias: bool, tied: bool) -> None:
        super().__init__()
        self.norm_final = LayerNorm(width, norm_bias)
        self.linear = zeros(nn.Linear(width, vocab_size))
        self.tied = tied
        self.packed: nn.Module | None = None  # the map's weight in another layout (unmask.models.packed)
        if tied:
            self.linear.register_parameter("weight", None)
        self.adaLN_modulation = None if cond_dim is None else zeros(nn.Linear(cond_dim, 2 * width))

    def vectors(self, c: Tensor | None) -> Vectors | None:
        """adaLN's shift and scale."""
        return modulation(self.adaLN_modulation, c, 2)

    def states(self, x: Tensor, vectors: Vectors | None) -> Tensor:
        """The final norm: what the logits are a linear map of."""
        shift, scale = (None, None) if vectors is None else vectors
        states: Tensor = self.norm_final(x, shift, scale)
        return states

    def logits(self, states: Tensor, embedding: Tensor, mask_id: int) -> Tensor:
        """float32 logits, -inf for the mask where it has a column: it rides on the bias, so it costs nothing."""
        bias: Tensor = self.linear.bias
        if mask_id < len(bias):
            bias = bias.clone()
            bias[mask_id] = -torch.inf
        if self.packed is not None:
            return self.packed(states, bias)  # type: ignore[no-any-return]
        return linear(states, self.weight(embedding), bias, FEW_OF_HEAD).float()

    def weight(self, embedding: Tensor) -> Tensor:
        """The map's matrix [V, width]."""
        return embedding[: len(self.linear.bias)] if self.tied else self.linear.weight


def modulation(linear: nn.Linear | None, c: Tensor | None, parts: int) -> Vectors | None:
    """The vectors that an adaLN makes of the conditioning c [B, cond_dim], or of one c for the whole batch."""
    if linear is None or c is None:
        return None
    return tuple(linear(c).unsqueeze(1).chunk(parts, -1))


def zeros(linear: nn.Linear) -> nn.Linear:
    """The same layer with every parameter at zero."""
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
