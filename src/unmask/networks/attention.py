"""Attention patterns: what each entry of a pass sees.

A masked model does not need its masked positions as keys: each holds only the mask. With the same parameters there are

    bidirectional   every position sees every position, as in the paper (masked.py)
    visible         a visible token sees all visible tokens; a masked position sees these and itself (visible.py)
    blocks          a position sees its block, including masked positions, and the blocks before it (blocks.py)

Under "visible" a pass computes only the visible and the requested rows. In blocks the keys and values of a complete
block never change, so they are computed once (``unmask.networks.cache``). The convolution obeys the same pattern:
unseen neighbours count as zero. A network in the order of unmasking is causal over a line of entries (any_order.py).

The patterns are one rule about levels: an entry of a pass sees the keys whose level is not above its own, and its own
group, which is itself or, for the noised blocks of training, its block. Keys are the visible tokens, and in blocks
every position. The levels are all equal under "visible", and the block numbers in blocks.

``when`` [B, L] or [L] says when each visible token became visible, smaller numbers first; its values at masked
positions are ignored. Equal numbers, for tokens of a prompt or of one step, are ordered by ``usual_order``, a fixed
random permutation of the positions: training sees random orders, and a sorted one would be the least typical.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from unmask.devices import upload
from unmask.noise import generator


class Entries(NamedTuple):
    """The input of a pass: M entries instead of the L positions, and which of them see each other."""

    tokens: Tensor  # int64 [B, M]
    positions: Tensor  # int64 [B, M], or [M] for all sequences
    mask: Tensor | None = None  # bool [B, 1, M, M]: the attention mask; without it all see all
    near: Tensor | None = None  # int64 [B, M, taps]: the convolution's inputs; 0 for none, i + 1 for entry i
    rows: Tensor | None = None  # int64 [B, R]: the entries whose outputs are requested; None for all
    real: Tensor | None = None  # bool [B, M, 1]: false after a sequence's end; without it all have the same length
    ends: list[int] | None = None  # the lengths, if the mask is only these and attending one by one is cheaper


def by_levels(
    tokens: Tensor, positions: Tensor, key: Tensor, level: Tensor, place: Tensor, taps: int, group: Tensor | None = None
) -> Entries:
    """The rule of levels, as an attention mask and as the neighbours of a convolution with this many taps.

    key bool [B, M]: seen by others; entries that are not keys see themselves. level int64 [B, M]: an entry sees the
    keys of its own level and below. place int64 [B, L]: the entry that is the key of a position, -1 if there is none.
    group int64 [B, M]: entries that see each other at any level; by default each alone.
    """
    number = torch.arange(level.shape[1], device=level.device)  # [M]
    group = number.expand_as(level) if group is None else group
    below = level.unsqueeze(1) <= level.unsqueeze(2)  # [B, M, M]: queries, keys
    together = group.unsqueeze(1) == group.unsqueeze(2)  # [B, M, M]
    mask = (key.unsqueeze(1) & below | together).unsqueeze(1)  # [B, 1, M, M]
    near = None
    if taps:
        there = level.gather(1, place.clamp(min=0)) if level.shape[1] else place  # [B, L]
        near = neighbours(place, there, positions, level, number.expand_as(level), taps)
    return Entries(tokens, positions, mask, near)


def neighbours(place: Tensor, there: Tensor, positions: Tensor, level: Tensor, own: Tensor, taps: int) -> Tensor:
    """Where a convolution finds the taps of each entry: int64 [B, M, taps], 0 for nothing and s + 1 for place s.

    place and there, [B, L], are the place of each position's token (-1 where it is masked) and its level; positions,
    level and own, [B, M], are each entry's position, level and place.
    """
    length = place.shape[1]
    at = positions.unsqueeze(-1) + torch.arange(taps, device=positions.device) - taps // 2  # [B, M, taps]: positions
    flat = at.clamp(0, max(length - 1, 0)).flatten(1)  # [B, M taps]
    source = place.gather(1, flat).view_as(at)  # [B, M, taps]
    height = there.gather(1, flat).view_as(at)  # [B, M, taps]
    seen = (at >= 0) & (at < length) & (source >= 0) & (height <= level.unsqueeze(-1))
    index = torch.where(seen, source + 1, 0)
    index[..., taps // 2] = own + 1  # an entry is always its own middle
    return index


def inside(lengths: Tensor, width: int) -> Tensor:
    """Which of the first ``width`` positions sequences of these lengths have: bool [B, width]."""
    return torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)


@lru_cache(maxsize=16)
def usual_order(length: int) -> Tensor:
    """The rank of each of ``length`` positions among tokens that became visible at the same time: int64 [L]."""
    with torch.inference_mode(False):
        return torch.randperm(length, generator=generator(length, "the usual order"))


def usual_orders(lengths: Tensor, width: int) -> Tensor:
    """``usual_order`` of each length, int64 [B, width]; positions after an end come last."""
    rows = [functional.pad(usual_order(one), (0, width - one), value=width) for one in lengths.tolist()]
    return upload(torch.stack(rows), lengths.device)


def ranks(tokens: Tensor, when: Tensor | None, lengths: Tensor | None = None) -> Tensor:
    """0, 1, ... for the positions in the order of ``when``: int64 [B, L]."""
    if lengths is None:
        usual = upload(usual_order(tokens.shape[1]), tokens.device).expand_as(tokens)
    else:
        usual = usual_orders(lengths, tokens.shape[1])
    if when is None:
        return usual
    if when.shape[-1:] != tokens.shape[1:] or when.ndim > 2:
        raise ValueError(f"when must be [batch, length] = {tuple(tokens.shape)}, got {tuple(when.shape)}")
    first = usual.argsort(1)  # [B, L]: positions in the usual order, which a stable sort keeps among equals
    in_order = first.gather(1, when.expand_as(tokens).gather(1, first).argsort(dim=1, stable=True))
    return in_order.argsort(1)
