"""Attention over what is visible, and an exact KV cache for generation in any order.

A masked model does not need its masked positions as keys: each holds the mask and nothing else. The DDiT has three
rules, ``config.attention``, with the same parameters:

    bidirectional   everybody sees everybody, as in the paper
    visible         a visible token sees all visible tokens; a masked position sees these and itself, and nobody sees it
    order           a visible token sees itself and those that became visible before it; a masked position as above

Under the last two a pass costs the visible and the asked rows alone. Under the last a token's keys and values never
change once it is visible, whatever comes later, so they are computed once (``Cached``). The convolution obeys the same
rule: a neighbour that may not be seen counts as zero.

All of it is one rule about levels: an entry of a pass sees the visible tokens whose level is not above its own, and
itself. The levels are all equal under "visible" and the ranks in the order under "order"; a masked position has the
highest.

The order is that in which tokens became visible. Those that became visible at once, a prompt or a group of a step, come
in ``usual_order``, a fixed random permutation of the positions: training sees random orders, and of these a sorted one
would be the least typical.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.models.layers import Sight, at_positions, take
from unmask.noise import generator

if TYPE_CHECKING:
    from unmask.models.ddit import DDiT
    from unmask.models.kernels import Table
    from unmask.models.layers import Block, Convolution


@lru_cache(maxsize=16)
def usual_order(length: int) -> Tensor:
    """The rank of each of ``length`` positions among tokens that became visible at once: int64 [L]."""
    with torch.inference_mode(False):
        return torch.randperm(length, generator=generator(length, "the usual order"))


@dataclass(frozen=True)
class View:
    """The M entries that a pass is fed, in place of the L positions, and what they may see."""

    tokens: Tensor  # int64 [B, M]
    positions: Tensor  # int64 [B, M]: for the rotary angles
    key: Tensor  # bool [B, M]: seen by others; what is not sees itself all the same
    level: Tensor  # int64 [B, M]: an entry sees the keys of its own level and below
    place: Tensor  # int64 [B, L]: the entry that is the key of a position, -1 where there is none
    rows: Tensor | None = None  # int64 [B, R]: the entries whose answers are asked for; None for all

    def sight(self, taps: int) -> Sight:
        """The rule, as the attention's mask and as the neighbours of a convolution with so many taps."""
        below = self.level.unsqueeze(1) <= self.level.unsqueeze(2)
        own = torch.eye(self.level.shape[1], dtype=torch.bool, device=self.level.device)
        mask = (self.key.unsqueeze(1) & below | own).unsqueeze(1)
        if not taps:
            return Sight(mask)
        entries = torch.arange(self.level.shape[1], device=self.level.device).expand_as(self.level)
        there = self.level.gather(1, self.place.clamp(min=0)) if self.level.shape[1] else self.place
        return Sight(mask, neighbours(self.place, there, self.positions, self.level, entries, taps))


def neighbours(place: Tensor, there: Tensor, positions: Tensor, level: Tensor, own: Tensor, taps: int) -> Tensor:
    """Where a convolution finds the taps of each entry: int64 [B, M, taps], 0 for nothing and s + 1 for place s.

    place and there, [B, L], are the place of each position's token (-1 where it is masked) and its level; positions,
    level and own, [B, M], are each entry's position, level and place.
    """
    at = positions.unsqueeze(-1) + torch.arange(taps, device=positions.device) - taps // 2
    inside = (at >= 0) & (at < place.shape[1])
    flat = at.clamp(0, max(place.shape[1] - 1, 0)).flatten(1)
    found, height = place.gather(1, flat).view_as(at), there.gather(1, flat).view_as(at)
    index = torch.where(inside & (found >= 0) & (height <= level.unsqueeze(-1)), found + 1, 0)
    index[..., taps // 2] = own + 1
    return index


def take_rows(mask: Tensor, rows: Tensor | None) -> Tensor:
    """A mask [B, 1, M, M] for the queries of rows [B, R] alone."""
    return mask if rows is None else take(mask.squeeze(1), rows).unsqueeze(1)


def everywhere(tokens: Tensor, mask_id: int, rule: str, order: Tensor | None = None) -> View:
    """Every position is an entry: a pass of length L.

    order, [B, L] or [L], says when each visible token became visible, smaller numbers first; what it says of masked
    positions does not count. Without it they are in ``usual_order``.
    """
    visible = tokens != mask_id
    every = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    level = torch.where(visible, _ranks(visible, order) if rule == "order" else 0, tokens.shape[1])
    return View(tokens, every, visible, level, torch.where(visible, every, -1))


def asked(tokens: Tensor, mask_id: int, rule: str, rows: Tensor, order: Tensor | None = None) -> View:
    """The visible tokens and the asked rows [B, R] are the entries, or every position where that is fewer."""
    whole = everywhere(tokens, mask_id, rule, order)
    known, length = int(whole.key.sum(1).max()) if len(tokens) else 0, tokens.shape[1]
    if known + rows.shape[1] >= length:
        return replace(whole, rows=rows)
    first = torch.where(whole.key, whole.level, length).argsort(dim=1, stable=True)
    place = torch.where(whole.key, first.argsort(1), -1)
    positions = torch.cat((first[:, :known], rows), 1)
    # Where fewer tokens are visible than in the fullest row, masked positions fill up: they are nobody's keys.
    key = functional.pad(whole.key.gather(1, first[:, :known]), (0, rows.shape[1]))
    level = functional.pad(whole.level.gather(1, first[:, :known]), (0, rows.shape[1]), value=length)
    own = place.gather(1, rows)
    wanted = torch.where(own < 0, known + torch.arange(rows.shape[1], device=rows.device), own)
    return View(tokens.gather(1, positions), positions, key, level, place, wanted)


def two_streams(tokens: Tensor, mask_id: int, order: Tensor | None, rows: Tensor) -> View:
    """Complete tokens as one stream, and the rows [B, R] once more, masked: each sees the tokens before it in order.

    One pass of length L + R: with all rows, the L conditionals of the chain rule along one order.
    """
    visible = everywhere(tokens, mask_id, "order", order)
    length, places = tokens.shape[1], torch.arange(rows.shape[1], device=rows.device)
    return View(
        functional.pad(tokens, (0, rows.shape[1]), value=mask_id),
        torch.cat((visible.positions, rows), 1),
        functional.pad(visible.key, (0, rows.shape[1])),
        torch.cat((visible.level, visible.level.gather(1, rows) - 1), 1),
        visible.place,
        (length + places).expand_as(rows),
    )


def _ranks(visible: Tensor, order: Tensor | None) -> Tensor:
    """0, 1, ... for the visible tokens in their order, then the others: int64 [B, L]."""
    usual = usual_order(visible.shape[1]).to(visible.device)
    if order is None:
        order = usual
    if order.shape[-1:] != visible.shape[1:] or order.ndim > 2:
        raise ValueError(f"order must be [batch, length] = {tuple(visible.shape)}, got {tuple(order.shape)}")
    # What became visible at once comes in the usual order: a stable sort of the positions in that order.
    positions = usual.argsort()
    behind = positions[order.expand_as(visible)[:, positions].argsort(dim=1, stable=True)].argsort(1)
    return torch.where(visible, behind, behind + visible.shape[1]).argsort(1).argsort(1)


@dataclass
class Where:
    """The slots of a call's entries, shared by the layers' memories."""

    slots: Tensor  # int64 [B, M]
    start: int | None  # the first slot, where all sequences have the same ones in a row: they are then sliced
    stop: int  # one past the highest slot
    neighbours: Tensor | None  # int64 [B, M, taps]


class Slots:
    """One layer's keys, values and convolution inputs: slot i holds a sequence's i-th visible token.

    The entries of a call that are only asked for are put behind the visible ones, where the next call overwrites them.
    """

    def __init__(self, batch: int, capacity: int, block: Block) -> None:
        weight = block.norm1.weight  # its type and device are everybody's
        width = len(weight)
        shape = (batch, block.heads, capacity, width // block.heads)
        self.keys, self.values = weight.new_zeros(shape), weight.new_zeros(shape)
        self.inputs = None if block.convolution is None else weight.new_zeros(batch, capacity + 1, width)  # 0: nothing
        self.where: Where

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store a call's keys and values [B, heads, M, head_dim] in their slots; give back all up to the last."""
        where = self.where
        if where.start is not None:
            self.keys[:, :, where.start : where.stop] = k
            self.values[:, :, where.start : where.stop] = v
        else:
            row = torch.arange(len(k), device=k.device).unsqueeze(1)
            self.keys[row, :, where.slots] = k.transpose(1, 2)
            self.values[row, :, where.slots] = v.transpose(1, 2)
        return self.keys[:, :, : where.stop], self.values[:, :, : where.stop]

    def convolved(self, convolution: Convolution, h: Tensor) -> Tensor:
        assert self.inputs is not None and self.where.neighbours is not None
        self.inputs[torch.arange(len(h), device=h.device).unsqueeze(1), self.where.slots + 1] = h
        return convolution.among(h, self.inputs, self.where.neighbours)

    def resized(self, batch: int, capacity: int) -> None:
        """Lose the last sequences, or get room for more tokens."""
        if len(self.keys) == batch and capacity <= self.keys.shape[2]:
            return
        more = max(0, capacity - self.keys.shape[2])
        self.keys, self.values = self.keys[:batch], self.values[:batch]
        self.inputs = None if self.inputs is None else self.inputs[:batch]
        if more:
            self.keys, self.values = (functional.pad(kept, (0, 0, 0, more)) for kept in (self.keys, self.values))
            self.inputs = None if self.inputs is None else functional.pad(self.inputs, (0, 0, 0, more))


class Cached(nn.Module):
    """An any-order network as a plain denoiser that computes every token once, for one run of sampling.

    A call compares the canvas with what it knows: tokens that have become visible are fed together with the asked rows,
    2k rows for groups of k, and their keys and values are kept. If some were masked again or changed, what came after
    the first of them is fed again. The answers at masked rows are those of the network, given the order in which tokens
    became visible; those at visible rows mean nothing. The batch may lose rows at its end, as ``sample`` does, but not
    gain or reorder them: make a new one for each run.
    """

    suppresses_mask = True  # the network does

    def __init__(self, network: DDiT) -> None:
        super().__init__()
        if not network.any_order:
            raise ValueError(f"a cache needs attention='order', got {network.config.attention!r}")
        self.network = network
        self.vocab_size, self.mask_id, self.length = network.vocab_size, network.mask_id, network.length
        self.layers: list[Slots] = []
        self.seen: Tensor | None = None  # int64 [B, L]: the canvas of the last call
        self.slot: Tensor  # int64 [B, L]: where each of its visible tokens is kept, L for masked ones
        self.table: Table
        self.train(network.training)

    def for_sampling(self) -> Cached:
        """The same with nothing remembered."""
        return Cached(self.network)

    @property
    def order(self) -> Tensor:
        """When each token of the last canvas became visible: int64 [B, L], L where it is masked."""
        return self.slot

    @property
    def bytes(self) -> int:
        """The size of the cache: 2 x layers x width numbers a token, and half as many more with a convolution."""
        kept = [tensor for layer in self.layers for tensor in (layer.keys, layer.values, layer.inputs)]
        return sum(tensor.numel() * tensor.element_size() for tensor in kept if tensor is not None)

    @torch.inference_mode()
    def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """tokens [B, L], rows [B, R] -> float32 logits [B, R, V], or [B, L, V] without rows; the time is not used."""
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        if not tokens.numel() or not rows.numel():
            return self.network(tokens, rows=rows)  # type: ignore[no-any-return]
        self._begin(tokens)
        kept, count, fed = self._changes(tokens)
        new, total = torch.arange(fed.shape[1], device=fed.device), kept + count
        real = new < count
        # Behind a sequence's visible tokens come its asked rows, and behind these what pads it to the longest feed.
        slots = torch.cat((
            torch.where(real, kept + new, total + rows.shape[1] + new - count),
            total + torch.arange(rows.shape[1], device=fed.device),
        ), 1)  # fmt: skip
        self._remember(tokens, fed, real, slots)
        level = torch.minimum(slots, total - 1)
        positions = torch.cat((fed, rows), 1)
        first, stop = int(kept.min()), int(kept.max()) + slots.shape[1]
        start = first if bool(real.all()) and first == int(kept.max()) else None
        seen = torch.arange(stop, device=fed.device)
        hidden = (seen > level.unsqueeze(-1)) & (seen != slots.unsqueeze(-1))
        mask = self.layers[0].keys.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)  # added to every layer's
        near, taps = None, self.network.config.convolution
        if taps:
            place = torch.where(tokens == self.mask_id, -1, self.slot)
            near = neighbours(place, self.slot, positions, level, slots, taps)
        return self._logits(tokens, positions, rows.shape[1], mask.unsqueeze(1), Where(slots, start, stop, near))

    def _logits(self, tokens: Tensor, positions: Tensor, wanted: int, mask: Tensor, where: Where) -> Tensor:
        """The blocks over the fed and the asked entries; of the last one only what the asked ones need."""
        network, batch = self.network, len(tokens)
        c, table = network.constant_conditioning(), at_positions(self.table, positions)
        x = network.vocab_embed(tokens.gather(1, positions))
        for layer in self.layers:
            layer.resized(batch, where.stop)
            layer.where = where
        for block, layer in zip(network.blocks[:-1], self.layers, strict=False):
            x = block(x, table, block.vectors(c), layer, mask)
        last = torch.arange(positions.shape[1] - wanted, positions.shape[1], device=x.device).expand(batch, -1)
        return network.logits(network.last_states(x, c, table, last, mask[:, :, -wanted:], past=self.layers[-1]))

    def _begin(self, tokens: Tensor) -> None:
        """Nothing is known before the first call; later ones may be for fewer sequences."""
        batch, length = tokens.shape
        if self.seen is None:
            self.seen = torch.full_like(tokens, self.mask_id)
            self.slot = torch.full_like(tokens, length)
            self.table = self.network.rotary_emb(0, length)
            self.layers = [Slots(batch, length + 1, block) for block in self.network.blocks]
        elif len(self.seen) < batch or self.seen.shape[1] != length:
            raise ValueError(
                f"the last call was for {tuple(self.seen.shape)} tokens and this one is for {tuple(tokens.shape)}: "
                "a cached run may only lose rows; make a new Cached for each run"
            )
        self.seen, self.slot = self.seen[:batch], self.slot[:batch]

    def _changes(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How many tokens stay in their slots [B, 1], how many are to be fed [B, 1], and their positions [B, N]."""
        assert self.seen is not None
        length, known = tokens.shape[1], self.seen != self.mask_id
        same = known & (self.seen == tokens)
        # Up to the first slot whose token is gone, all stay.
        kept = torch.where(known & ~same, self.slot, known.sum(1, keepdim=True)).amin(1, keepdim=True)
        feed = (tokens != self.mask_id) & ~(same & (self.slot < kept))
        count = feed.sum(1, keepdim=True)
        # What was known comes first, in its old order; what has just become visible comes in the usual one.
        key = torch.where(same, self.slot, length + usual_order(length).to(tokens.device))
        fed = torch.where(feed, key, 2 * length).topk(int(count.max()), largest=False).indices
        return kept, count, fed

    def _remember(self, tokens: Tensor, fed: Tensor, real: Tensor, slots: Tensor) -> None:
        slot = torch.where(tokens == self.mask_id, tokens.shape[1], self.slot)
        self.slot = slot.scatter(1, fed, torch.where(real, slots[:, : fed.shape[1]], slot.gather(1, fed)))
        self.seen = tokens.clone()
