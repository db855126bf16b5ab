"""Networks that read every token once: exact KV caches.

Slot i of a sequence's cache holds the keys and values of the i-th entry that was read for it. A call compares the
canvas with the previous one, keeps the slots before the first change, and feeds the rest. Requested masked entries and
guesses are put after the settled ones, where the next call overwrites them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from unmask.networks.cache.packing import Ready
from unmask.networks.cache.seats import Seated
from unmask.networks.layers import Angles, Block, Vectors, by_rows, take
from unmask.networks.transformer import Transformer


class Feed(NamedTuple):
    """The entries of a call, which see all keys in slots up to their level, and themselves."""

    positions: Tensor  # int64 [B, M], or [B, M, 2] if queries and keys have positions of their own
    slots: Tensor  # int64 [B, M]: where their keys and values go
    level: Tensor  # int64 [B, M]
    start: int | None  # the first slot, if all sequences have the same consecutive ones: they are then sliced
    stop: int  # S, one past the highest slot
    near: Tensor | None  # int64 [B, M, taps]: the slots of the convolution's inputs; 0 for none, s + 1 for slot s
    wanted: Tensor  # int64 [B, R]: the entries whose logits are requested
    seen: Tensor | None = None  # bool [B, M, S]: the slots that each entry sees, where this is not the rule of levels


class Cached(Seated):
    """A network as a denoiser with a cache (the protocol ``Caches``)."""

    suppresses_mask = True  # the network does

    def __init__(self, network: Transformer) -> None:
        super().__init__()
        self.network = network
        self.vocab_size, self.mask_id, self.length = network.vocab_size, network.mask_id, network.length
        self.eval()  # for sampling only, and its network is a copy

    def blank(self, seats: int, length: int) -> dict[str, Tensor]:
        config, like = self.network.config, self.network.vocab_embed.embedding  # whose type and device are everybody's
        size, slots = config.head_size, length + 1
        memory: dict[str, Tensor] = {"valid": torch.zeros(seats, dtype=torch.int64, device=like.device)}
        for i in range(config.layers):
            memory[f"keys and values {i}"] = like.new_zeros(seats, 2, config.heads, slots, size)
            if config.convolution:
                memory[f"inputs {i}"] = like.new_zeros(seats, slots + 1, config.width)  # the first is for none
        return memory

    def forget(self, seats: slice, length: int) -> None:
        self.kept["valid"][seats] = 0  # the number of slots that agree with the sequence's record

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, *, seats: slice | None = None
    ) -> Tensor:
        """tokens [B, L], rows [B, R] -> float32 logits [B, R, V], or [B, L, V] without rows; the time is not used."""
        self.network.check(tokens)
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        if not tokens.numel() or not rows.numel():
            return torch.empty(*rows.shape, self.vocab_size, device=rows.device)
        return self.at_rows(tokens, rows, self.here(tokens, seats))

    def at_rows(self, tokens: Tensor, rows: Tensor, here: slice) -> Tensor:
        """Logits [B, R, V] at the rows [B, R] of tokens [B, L], whose seats are ``here``."""
        raise NotImplementedError

    def run(self, ready: Ready, x: Tensor, feed: Feed, here: slice, c: Tensor | None = None) -> Tensor:
        """Logits [B, R, V]: the pass of ``Transformer.through`` with the keys and values of earlier calls.

        x [B, M, width] are the embedded entries. Of the last block only what the wanted ones need is computed. c: what
        the pass is conditioned on.
        """
        network = ready.network
        self.make_room(feed.stop)
        angles, mask = network.rotary_emb(feed.positions), self._mask(feed, x)  # [B, 1, M, S]
        for i, block in enumerate(network.blocks[:-1]):
            vectors = block.vectors(c)
            x = block.attended(x, self._mixed(i, block, x, angles, vectors, mask, feed, here), vectors)
            x = block.feed_forward(x, vectors)
        last = network.blocks[-1]
        vectors = last.vectors(c)
        mixed = self._mixed(len(network.blocks) - 1, last, x, angles, vectors, mask, feed, here, wanted=True)
        vectors = last.vectors_at(vectors, by_rows(feed.wanted))
        x = last.attended(take(x, feed.wanted), mixed, vectors)
        return ready.logits(network.output_layer.norm_final(last.feed_forward(x, vectors)))

    def _mask(self, feed: Feed, x: Tensor) -> Tensor | None:
        """What every layer adds to its scores, [B, 1, M, S]; None if nothing is hidden."""
        hidden = self.hidden(feed)
        # For one entry per sequence, after all others: torch's attention is twice as fast without a mask.
        if feed.slots.shape[1] == 1 and x.device.type == "cpu" and not bool(hidden.any()):
            return None
        return x.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf).unsqueeze(1)

    def hidden(self, feed: Feed) -> Tensor:
        """Which slots each entry does not see: bool [B, M, S]."""
        if feed.seen is not None:
            return ~feed.seen
        slots = torch.arange(feed.stop, device=feed.slots.device)
        return (slots > feed.level.unsqueeze(-1)) & (slots != feed.slots.unsqueeze(-1))

    def _mixed(
        self,
        i: int,
        block: Block,
        x: Tensor,
        angles: Angles,
        vectors: Vectors | None,
        mask: Tensor | None,
        feed: Feed,
        here: slice,
        wanted: bool = False,
    ) -> Tensor:
        """The attention of block i [B, M, width], or [B, R, width] of the wanted entries; keys and values are kept."""
        h = block.norm1(x)
        row = torch.arange(len(x), device=x.device).unsqueeze(1)
        if block.convolution is not None:
            assert feed.near is not None
            inputs = self.kept[f"inputs {i}"][here]
            inputs[row, feed.slots + 1] = h
            h = block.convolution.among(h, inputs, feed.near)
        q, k, v = block.project(h, angles, vectors)  # [B, heads, M, head_dim]
        keys, values = self.kept[f"keys and values {i}"][here].unbind(1)  # [B, heads, slots, head_dim]
        if feed.start is not None:
            keys[:, :, feed.start : feed.stop], values[:, :, feed.start : feed.stop] = k, v
        else:
            keys[row, :, feed.slots], values[row, :, feed.slots] = k.transpose(1, 2), v.transpose(1, 2)
        if wanted:
            q = take(q.transpose(1, 2), feed.wanted).transpose(1, 2)
            mask = None if mask is None else take(mask.squeeze(1), feed.wanted).unsqueeze(1)
        return block.mix(q, keys[:, :, : feed.stop], values[:, :, : feed.stop], mask)


def scattered(x: Tensor, index: Tensor, values: Tensor | int) -> Tensor:
    """x [B, L] with the values [B, N] at the index [B, N]; an index of L is ignored."""
    more = functional.pad(x, (0, 1))
    values = values.expand_as(index) if isinstance(values, Tensor) else torch.full_like(index, values)
    return more.scatter(1, index, values)[:, :-1]
