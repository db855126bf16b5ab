"""A causal Llama for generation: every row is read once, and its keys and values are cached."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from unmask.networks.cache.packing import Packed, available
from unmask.networks.layers import rotate
from unmask.networks.llama import Llama, LlamaBlock

Linear = Callable[[Tensor], Tensor]


class CachedLlama:
    """logits = network(tokens [B]): what follows the next token of each row, in up to ``length`` calls.

    If a row reads the token ``start`` it begins anew: earlier tokens are not seen, and positions count from 0. ids: the
    only ids whose logits are given, in this order; the others are impossible.
    """

    def __init__(self, network: Llama, rows: int, length: int, *, start: int, ids: Tensor | None = None) -> None:
        config = network.config
        more = (config.shifted, config.bias, config.out_bias, config.normed, config.fused, config.rotary)
        if not config.causal or any(more) or config.experts is not None:
            raise ValueError("the network must be a causal Llama without biases, norms of queries, or experts")
        if length > config.length:
            raise ValueError(f"length={length}: the network reads at most {config.length} tokens")
        self.network, self.start = network, start
        head = network.embed.weight[: config.vocab_size] if network.head is None else network.head.weight
        self.head = _linear(head if ids is None else head[ids], rows)
        self.blocks = [_CachedBlock(block, rows, length) for block in network.blocks]
        self.table = network.angles(length, head.device)
        self.begin = torch.zeros(rows, dtype=torch.int64)
        self.read = 0

    @torch.inference_mode()
    def __call__(self, tokens: Tensor) -> Tensor:
        at = self.read
        self.begin = torch.where(tokens == self.start, at, self.begin)
        angles = (self.table[0][at - self.begin], self.table[1][at - self.begin])
        unseen = torch.arange(at + 1) < self.begin.unsqueeze(1)
        mask = torch.zeros(unseen.shape).masked_fill_(unseen, -torch.inf)[:, None, None]
        x = self.network.embed(tokens)
        for block in self.blocks:
            x = block(x, angles, mask, at)
        self.read += 1
        return self.head(self.network.norm(x))

    def again(self) -> None:
        """Clear the cache: the next call reads the first token of each row."""
        self.read = 0
        self.begin.zero_()


class _CachedBlock:
    def __init__(self, block: LlamaBlock, rows: int, length: int) -> None:
        self.block = block
        size = block.q.weight.shape[0] // block.heads
        self.widths = [block.heads * size, block.key_heads * size, block.key_heads * size]
        self.attend_in = _linear(torch.cat((block.q.weight, block.k.weight, block.v.weight)), rows)
        self.feed_in = _linear(torch.cat((block.gate.weight, block.up.weight)), rows)
        self.attend_out, self.feed_out = _linear(block.out.weight, rows), _linear(block.down.weight, rows)
        self.keys, self.values = torch.zeros(2, rows, block.key_heads, length, size).unbind()

    def __call__(self, x: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor, at: int) -> Tensor:
        block = self.block
        q, k, v = torch.split(self.attend_in(block.norm1(x)), self.widths, -1)
        q = rotate(q.reshape(len(x), block.heads, -1), angles)
        self.keys[:, :, at] = rotate(k.reshape(len(x), block.key_heads, -1), angles)
        self.values[:, :, at] = v.reshape(len(x), block.key_heads, -1)
        mixed = functional.scaled_dot_product_attention(
            q.unsqueeze(2), self.keys[:, :, : at + 1], self.values[:, :, : at + 1], mask,
            enable_gqa=block.heads != block.key_heads,
        )  # fmt: skip
        x = x + self.attend_out(mixed.flatten(1))
        gate, up = self.feed_in(block.norm2(x)).chunk(2, -1)
        return x + self.feed_out(functional.silu(gate) * up)


def _linear(weight: Tensor, rows: int) -> Linear:
    weight = weight.detach()
    if available(weight):
        return Packed(weight, rows=rows)
    return lambda x: functional.linear(x, weight)
