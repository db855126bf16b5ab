"""Llama's network: LLaDA and Dream without the causal mask, and with it a judge of texts.

RMSNorm, rotary positions, SwiGLU, and perhaps fewer heads of keys than of queries. Dream's outputs are shifted:
position i is predicted by output i - 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.networks.attention import inside
from unmask.networks.layers import Angles, check_tokens, rotate, take
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

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = {"int": (int,), "float": (int, float), "bool": (bool,)}[str(field.type)]
            if type(value) not in wanted or (field.name not in ("mask_id", "eps") and value < (field.type != "bool")):
                raise ValueError(f"{field.name} must be a positive number, got {value!r}")
        if self.width % (2 * self.heads) or self.heads % self.key_heads:
            raise ValueError(
                f"width={self.width} must be a multiple of 2 * heads, and heads={self.heads} one of "
                f"key_heads={self.key_heads}"
            )
        if not 0 <= self.mask_id <= self.vocab_size:
            raise ValueError(f"mask_id must be in 0..vocab_size={self.vocab_size}, got {self.mask_id}")


class RMSNorm(nn.Module):
    """x / rms(x) in float32, then the weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class LlamaBlock(nn.Module):
    """x + attention(norm x), then x + down(silu(gate(norm x)) * up(norm x)); at all rows, or only at some."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, size = config.width, config.width // config.heads
        self.heads, self.key_heads, self.causal = config.heads, config.key_heads, config.causal
        self.norm1 = RMSNorm(width, config.eps)
        self.q = nn.Linear(width, width, bias=config.bias)
        self.k = nn.Linear(width, config.key_heads * size, bias=config.bias)
        self.v = nn.Linear(width, config.key_heads * size, bias=config.bias)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = RMSNorm(width, config.eps)
        self.gate = nn.Linear(width, config.hidden, bias=False)
        self.up = nn.Linear(width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, width, bias=False)

    def forward(self, x: Tensor, table: Angles, rows: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        h = self.norm1(x)
        asked, at = (h, table) if rows is None else (take(h, rows), (table[0][rows], table[1][rows]))
        v = self.v(h).unflatten(-1, (self.key_heads, -1)).transpose(1, 2)
        q = rotate(self.q(asked).float().unflatten(-1, (self.heads, -1)), at).to(v.dtype).transpose(1, 2)
        k = rotate(self.k(h).float().unflatten(-1, (self.key_heads, -1)), table).to(v.dtype).transpose(1, 2)
        each = self.heads // self.key_heads
        k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        x = (x if rows is None else take(x, rows)) + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        fed: Tensor = self.down(functional.silu(self.gate(h)) * self.up(h))
        return x + fed


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
        self.blocks = cast("Sequence[LlamaBlock]", nn.ModuleList(LlamaBlock(config) for _ in range(config.layers)))
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
        states = self.states(tokens, rows, lengths)
        logits = tied(self.embed, states, self.vocab_size) if self.head is None else self.head(states)
        return logits.float().index_fill(-1, self.suppressed, -torch.inf)

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
        table = self.angles(tokens.shape[1], tokens.device)
        mask = None if lengths is None else inside(lengths, tokens.shape[1])[:, None, None]
        x = self.embed(tokens)
        for block in self.blocks[:-1]:
            x = block(x, table, mask=mask)
        states: Tensor = self.norm(self.blocks[-1](x, table, rows, mask))
        return states

    def angles(self, length: int, device: torch.device) -> Angles:
        """Of the rotary positions 0 .. length - 1."""
        size = self.config.width // self.config.heads
        k = torch.arange(0, size, 2, dtype=torch.float32, device=device)
        positions = torch.arange(length, dtype=torch.float32, device=device)
        angles = torch.outer(positions, self.config.theta ** -(k / size)).unsqueeze(1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
