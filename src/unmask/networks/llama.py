"""Llama's network and its kin: without the causal mask LLaDA, Dream and many others, and with it a judge of texts.

RMSNorm, rotary positions, SwiGLU, and perhaps fewer heads of keys than of queries. What else released models have is a
setting: norms of queries and keys, heads of any size, rotation of a part of a head, mixtures of experts, outputs that
are shifted (position i is predicted by output i - 1), and attention by blocks (``networks.llama_blocks``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.networks.attention import inside
from unmask.networks.experts import Experts, Mixture
from unmask.networks.layers import Angles, check_tokens, rotate, take
from unmask.networks.rope import Scaling, frequencies
from unmask.networks.stored import tied


@dataclass(frozen=True)
class LlamaConfig:
    """The settings that determine a network's parameters and its function."""

    vocab_size: int  # V, the number of logits
    mask_id: int
    length: int  # of the training sequences; rotary positions work beyond it
    width: int
    layers: int
    heads: int
    key_heads: int  # of keys and values
    hidden: int  # of the MLP
    theta: float  # base of the rotary positions
    eps: float  # of the norms
    bias: bool = False  # of queries, keys and values
    tied: bool = False  # the head is the embedding
    shifted: bool = False  # position i is predicted by output i - 1, and position 0 by output 0
    causal: bool = False  # an output sees only the inputs before it
    head: int = 0  # features of a head; 0 for width / heads
    rotary: int = 0  # features of a head that are rotated, the first ones; 0 for all
    scaling: Scaling | None = None  # of the rotary frequencies
    normed: bool = False  # the queries and keys of each head have norms
    out_bias: bool = False  # of the attention's output
    fused: bool = False  # one matrix for queries, keys and values
    block: int = 0  # a position sees its block of this size and those before it; 0 for everything
    experts: Experts | None = None  # instead of MLPs

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), str(field.type)
            wanted = {"int": (int,), "float": (int, float), "bool": (bool,)}.get(kind)
            least = 0 if kind == "bool" or field.default == 0 else 1
            if wanted and (type(value) not in wanted or (field.name not in ("mask_id", "eps") and value < least)):
                raise ValueError(f"{field.name} must be a positive number, got {value!r}")
        if (not self.head and self.width % self.heads) or self.heads % self.key_heads:
            raise ValueError(
                f"width={self.width} must be a multiple of heads={self.heads}, and heads one of "
                f"key_heads={self.key_heads}"
            )
        if self.head_size % 2 or self.rotated % 2 or self.rotated > self.head_size:
            raise ValueError(
                f"a head must have an even number of features and rotate an even number of them, got {self.head_size} "
                f"and {self.rotated}"
            )
        if not 0 <= self.mask_id <= self.vocab_size:
            raise ValueError(f"mask_id must be in 0..vocab_size={self.vocab_size}, got {self.mask_id}")
        if self.block and self.causal:
            raise ValueError(f"block={self.block} cannot be combined with causal=True")

    @property
    def head_size(self) -> int:
        return self.head or self.width // self.heads

    @property
    def rotated(self) -> int:
        """How many features of a head are rotated."""
        return self.rotary or self.head_size


class RMSNorm(nn.Module):
    """x / rms(x) in float32, then the weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class LlamaBlock(nn.Module):
    """x + attention(norm x), then x + feed(norm x); at all rows, or only at some."""

    def __init__(self, config: LlamaConfig, number: int = 0) -> None:
        super().__init__()
        width, size = config.width, config.head_size
        self.heads, self.key_heads, self.causal, self.fused = (
            config.heads,
            config.key_heads,
            config.causal,
            config.fused,
        )
        self.norm1 = RMSNorm(width, config.eps)
        if config.fused:
            self.qkv = nn.Linear(width, (config.heads + 2 * config.key_heads) * size, bias=config.bias)
        else:
            self.q = nn.Linear(width, config.heads * size, bias=config.bias)
            self.k = nn.Linear(width, config.key_heads * size, bias=config.bias)
            self.v = nn.Linear(width, config.key_heads * size, bias=config.bias)
        self.q_norm = RMSNorm(size, config.eps) if config.normed else None
        self.k_norm = RMSNorm(size, config.eps) if config.normed else None
        self.out = nn.Linear(config.heads * size, width, bias=config.out_bias)
        self.norm2 = RMSNorm(width, config.eps)
        if config.experts is not None and number not in config.experts.dense:
            self.mixture: Mixture | None = Mixture(width, config.experts)
        else:
            self.mixture = None
            self.gate = nn.Linear(width, config.hidden, bias=False)
            self.up = nn.Linear(width, config.hidden, bias=False)
            self.down = nn.Linear(config.hidden, width, bias=False)

    def forward(self, x: Tensor, table: Angles, rows: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.project(self.norm1(x), table, rows)
        if rows is not None:
            x = take(x, rows)
            if mask is not None and mask.shape[-2] > 1:
                mask = take(mask.expand(len(x), -1, -1, -1).transpose(1, 2), rows).transpose(1, 2)
        return self.fed(x + self.mix(q, k, v, mask))

    def project(self, h: Tensor, table: Angles, rows: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, heads, R, size] of the rows, and keys and values [B, key heads, L, size] of h [B, L, width].

        table: the angles of all L entries, [L, 1, rotated] or [B, L, 1, rotated].
        """
        if self.fused:
            whole = self.qkv(h).unflatten(-1, (self.heads + 2 * self.key_heads, -1))
            q, k, v = whole.split((self.heads, self.key_heads, self.key_heads), -2)
            q = q if rows is None else take(q, rows)
        else:
            q = self.q(h if rows is None else take(h, rows)).unflatten(-1, (self.heads, -1))
            k, v = (linear(h).unflatten(-1, (self.key_heads, -1)) for linear in (self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        at = table if rows is None else _at(table, rows)
        q, k = turned(q, at), turned(k, table)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The attention's output: what each query [B, heads, R, size] sees."""
        each = self.heads // self.key_heads
        k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def fed(self, x: Tensor) -> Tensor:
        """The second half of the block."""
        h = self.norm2(x)
        fed: Tensor = self.mlp(h) if self.mixture is None else self.mixture(h)
        return x + fed

    def mlp(self, h: Tensor) -> Tensor:
        down: Tensor = self.down(functional.silu(self.gate(h)) * self.up(h))
        return down


def turned(x: Tensor, table: Angles) -> Tensor:
    """x [..., M, heads, size] with its first features rotated, as many as the table has, in float32."""
    size = table[0].shape[-1]
    rotated = rotate(x[..., :size].float(), table).to(x.dtype)
    return rotated if size == x.shape[-1] else torch.cat((rotated, x[..., size:]), -1)


def _at(table: Angles, rows: Tensor) -> Angles:
    if table[0].ndim == 3:
        return table[0][rows], table[1][rows]
    return take(table[0], rows), take(table[1], rows)


class Llama(nn.Module):
    """logits = model(tokens, time, rows): a Denoiser that does not read the time."""

    suppressed: Tensor

    @property
    def takes_lengths(self) -> bool:
        return not self.config.causal

    def __init__(self, config: LlamaConfig, *, never: Iterable[int] = ()) -> None:
        """never: ids that are not drawn, besides the mask."""
        super().__init__()
        self.config = config
        # Not a plain Embedding: on the meta device, where networks are built to be loaded, that imports for seconds.
        table = torch.empty(max(config.vocab_size, config.mask_id + 1), config.width)
        self.embed = nn.Embedding(len(table), config.width, _weight=table)
        self.blocks = cast("Sequence[LlamaBlock]", nn.ModuleList(LlamaBlock(config, i) for i in range(config.layers)))
        self.norm = RMSNorm(config.width, config.eps)
        self.head = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False)
        suppressed = [i for i in sorted({*never, config.mask_id}) if i < config.vocab_size]
        self.register_buffer("suppressed", torch.tensor(suppressed, device="cpu", dtype=torch.int64), persistent=False)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def mask_id(self) -> int:
        return self.config.mask_id

    @property
    def length(self) -> int:
        return self.config.length

    def forward(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        """tokens [B, L], rows [B, R] -> float32 logits [B, R, V], or [B, L, V] without rows; the time is not read.

        lengths [B]: sequences of several lengths, padded behind their ends; not for a causal network.
        """
        return self.outputs(self.states(tokens, rows, lengths))

    def states(self, tokens: Tensor, rows: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        """The final states [B, R, width], of which the logits are a linear map."""
        check_tokens(tokens)
        config = self.config
        if config.causal and rows is not None:
            raise ValueError("a causal network is asked for all rows")
        if rows is None and config.shifted:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
        if rows is not None and config.shifted:
            rows = (rows - 1).clamp(min=0)
        mask = None if lengths is None else inside(lengths, tokens.shape[1])[:, None, None]
        return self.through(tokens, self.angles(tokens.shape[1], tokens.device), rows, self.seen(tokens, mask))

    def seen(self, tokens: Tensor, mask: Tensor | None) -> Tensor | None:
        """The attention mask, from that of the sequences' ends."""
        return mask

    def through(self, tokens: Tensor, table: Angles, rows: Tensor | None, mask: Tensor | None) -> Tensor:
        """The final states of entries [B, M] with these angles, or of some of them."""
        x = self.embed(tokens)
        for block in self.blocks[:-1]:
            x = block(x, table, mask=mask)
        states: Tensor = self.norm(self.blocks[-1](x, table, rows, mask))
        return states

    def outputs(self, states: Tensor) -> Tensor:
        """Final states [..., width] -> float32 logits [..., V]."""
        logits = tied(self.embed, states, self.vocab_size) if self.head is None else self.head(states)
        return logits.float().index_fill(-1, self.suppressed, -torch.inf)

    def angles(self, length: int, device: torch.device) -> Angles:
        """Of the rotary positions 0 .. length - 1."""
        config = self.config
        turns = frequencies(config.theta, config.rotated, config.scaling, device)
        positions = torch.arange(length, dtype=torch.float32, device=device)
        angles = torch.outer(positions, turns).unsqueeze(1)
        cos, sin = angles.cos(), angles.sin()
        if config.scaling is not None and config.scaling.attention != 1:
            cos, sin = cos * config.scaling.attention, sin * config.scaling.attention
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
