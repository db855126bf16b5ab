"""Attention patterns: over everything, over visible tokens, causal in the order of unmasking, or by blocks.

A masked model does not need its masked positions as keys: each holds only the mask. The DDiT has four patterns,
``config.attention``, with the same parameters:

    bidirectional   every position sees every position, as in the paper
    visible         a visible token sees all visible tokens; a masked position sees these and itself, and is not seen
    order           a visible token sees itself and those that became visible before it; a masked position as above
    block           a position sees its block of K, including masked positions, and the blocks before it (BD3-LM)

Under "visible" and "order" a pass computes only the visible and the requested rows. Under "order" a token's keys and
values never change once it is visible, and under "block" those of a block once it is complete, so they are computed
once (``unmask.networks.cache``). The convolution obeys the same pattern: unseen neighbours count as zero.
A block model is a masked model of each block given those before: with one block it is the plain one.

All of it is one rule about levels: an entry of a pass sees the keys whose level is not above its own, and its own
group, which is itself or, for the noised blocks of training, its block. Keys are the visible tokens, and under "block"
every position. The levels are all equal under "visible", the ranks in the order under "order", where a masked position
has the highest, and the block numbers under "block".

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

from unmask.networks.adapters import out_of_turn
from unmask.networks.config import DDiTConfig
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
    left: Tensor | None = None  # int64 [B, M]: the tokens to the left, for a network with adapters
    turned: Tensor | None = None  # float [B, M, 1]: 1 for entries out of turn (adapters.py), else 0


@lru_cache(maxsize=16)
def usual_order(length: int) -> Tensor:
    """The rank of each of ``length`` positions among tokens that became visible at the same time: int64 [L]."""
    with torch.inference_mode(False):
        return torch.randperm(length, generator=generator(length, "the usual order"))


def usual_orders(lengths: Tensor, width: int) -> Tensor:
    """``usual_order`` of each length, int64 [B, width]; positions after an end come last."""
    rows = [functional.pad(usual_order(one), (0, width - one), value=width) for one in lengths.tolist()]
    return torch.stack(rows).to(lengths.device)


def inside(lengths: Tensor, width: int) -> Tensor:
    """Which of the first ``width`` positions sequences of these lengths have: bool [B, width]."""
    return torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)


def everywhere(
    tokens: Tensor,
    mask_id: int,
    rule: str,
    taps: int,
    when: Tensor | None = None,
    lengths: Tensor | None = None,
    block: int = 0,
) -> Entries:
    """Every position is an entry: a pass of length L.

    lengths [B]: positions after a sequence's end are neither keys nor neighbours, whatever they hold.
    """
    every = torch.arange(tokens.shape[1], device=tokens.device)
    real = None if lengths is None else inside(lengths, tokens.shape[1])
    if rule == "bidirectional":
        assert real is not None, "of sequences of one length the layers know the entries"
        mask = real[:, None, None].expand(-1, -1, tokens.shape[1], -1)
        # A CPU gains nothing from attending all at once, and computes padding in vain.
        ends = lengths.tolist() if lengths is not None and tokens.device.type == "cpu" else None
        return Entries(tokens, every, mask, real=real.unsqueeze(-1), ends=ends)
    every = every.expand_as(tokens)
    visible = torch.ones_like(tokens, dtype=torch.bool) if rule == "block" else tokens != mask_id
    if real is not None:
        visible = visible & real
    if rule == "block":
        return _entries(tokens, every, visible, every // block, torch.where(visible, every, -1), taps)
    level = torch.where(visible, ranks(tokens, when, lengths) if rule == "order" else 0, tokens.shape[1])
    return _entries(tokens, every, visible, level, torch.where(visible, every, -1), taps)


def two_streams(tokens: Tensor, mask_id: int, taps: int, when: Tensor | None, rows: Tensor) -> Entries:
    """Complete tokens as one stream, and the rows [B, R] again, masked: each sees the tokens before it in the order.

    One pass of length L + R: with all rows, the L conditionals of the chain rule along one order.
    """
    (batch, length), more = tokens.shape, (0, rows.shape[1])
    every, rank = torch.arange(length, device=tokens.device).expand_as(tokens), ranks(tokens, when)
    entries = _entries(
        functional.pad(tokens, more, value=mask_id),
        torch.cat((every, rows), 1),
        functional.pad(torch.ones_like(tokens, dtype=torch.bool), more),
        torch.cat((rank, rank.gather(1, rows) - 1), 1),
        every,
        taps,
    )
    return entries._replace(rows=length + torch.arange(rows.shape[1], device=rows.device).expand(batch, -1))


def noised_blocks(tokens: Tensor, clean: Tensor, mask_id: int, taps: int, block: int) -> Entries:
    """Every block as in tokens [B, L], given the clean blocks before it: a pass of length 2 L under "block".

    The noised positions come first, so that entry l is position l; after them come the clean ones, which noised blocks
    see, and which see no noised one.
    """
    every = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    number, length = every // block, tokens.shape[1]
    entries = _entries(
        torch.cat((tokens, clean), 1),
        torch.cat((every, every), 1),
        torch.cat((torch.zeros_like(every), torch.ones_like(every)), 1).bool(),
        torch.cat((2 * number, 2 * number + 1), 1),
        length + every,
        taps,
        group=torch.cat((number, length + every), 1),
    )
    if entries.near is not None:  # neighbours of a noised position within its block are noised
        at = every.unsqueeze(-1) + torch.arange(taps, device=every.device) - taps // 2
        within = (at >= 0) & (at < length) & (at // block == number.unsqueeze(-1))
        entries.near[:, :length] = torch.where(within, at + 1, entries.near[:, :length])
    return entries


def in_turn(
    entries: Entries, tokens: Tensor, clean: Tensor | None, lengths: Tensor | None, config: DDiTConfig
) -> Entries:
    """The entries of ``everywhere`` or ``noised_blocks`` for a network with adapters (``unmask.networks.adapters``).

    Each entry also reads its left neighbour; the first reads the start token, or the mask if there is none. In turn an
    entry sees no later position, out of turn its whole block. The start token has no left neighbour, and no other entry
    sees its entry: a left-to-right network does not have it.
    """
    block, every = config.block, torch.arange(tokens.shape[1], device=tokens.device)
    start = config.mask_id if config.start < 0 else config.start
    real = None if lengths is None else inside(lengths, tokens.shape[1])
    turned = out_of_turn(tokens, config.mask_id, block, real)
    left = functional.pad(tokens[:, :-1], (1, 0), value=start)
    if clean is not None:
        before = functional.pad(clean[:, :-1], (1, 0), value=start)
        left = torch.cat((torch.where(every % block == 0, before, left), before), 1)
        turned = functional.pad(turned, (0, clean.shape[1]))
    place = entries.positions.expand_as(turned)
    seen = turned.unsqueeze(2) | (place.unsqueeze(1) <= place.unsqueeze(2))
    if config.start >= 0:
        seen &= (place.unsqueeze(1) > 0) | (place.unsqueeze(2) == 0)
    mask = seen.unsqueeze(1) if entries.mask is None else entries.mask & seen.unsqueeze(1)
    return entries._replace(mask=mask, ends=None, left=left, turned=turned.float().unsqueeze(-1))


def asked(tokens: Tensor, mask_id: int, taps: int, rows: Tensor) -> Entries:
    """Under "visible": the visible tokens and the requested rows [B, R], or every position if that is fewer."""
    visible, length = tokens != mask_id, tokens.shape[1]
    known = int(visible.sum(1).max()) if len(tokens) else 0
    if known + rows.shape[1] >= length:
        return everywhere(tokens, mask_id, "visible", taps)._replace(rows=rows)
    first = (~visible).to(torch.int8).argsort(dim=1, stable=True)
    place = torch.where(visible, first.argsort(1), -1)
    positions, more = torch.cat((first[:, :known], rows), 1), (0, rows.shape[1])
    # Rows with fewer visible tokens than the longest are filled up with masked positions, which are not keys.
    key = functional.pad(visible.gather(1, first[:, :known]), more)
    own = place.gather(1, rows)
    entries = _entries(tokens.gather(1, positions), positions, key, torch.where(key, 0, length), place, taps)
    behind = known + torch.arange(rows.shape[1], device=rows.device)
    return entries._replace(rows=torch.where(own < 0, behind, own))


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


def _entries(
    tokens: Tensor, positions: Tensor, key: Tensor, level: Tensor, place: Tensor, taps: int, group: Tensor | None = None
) -> Entries:
    """The rule of levels, as an attention mask and as the neighbours of a convolution with this many taps.

    key bool [B, M]: seen by others; entries that are not keys see themselves. level int64 [B, M]: an entry sees the
    keys of its own level and below. place int64 [B, L]: the entry that is the key of a position, -1 if there is none.
    group int64 [B, M]: entries that see each other at any level; by default each alone.
    """
    number = torch.arange(level.shape[1], device=level.device)
    group = number.expand_as(level) if group is None else group
    below = level.unsqueeze(1) <= level.unsqueeze(2)
    mask = (key.unsqueeze(1) & below | (group.unsqueeze(1) == group.unsqueeze(2))).unsqueeze(1)
    near = None
    if taps:
        there = level.gather(1, place.clamp(min=0)) if level.shape[1] else place
        near = neighbours(place, there, positions, level, number.expand_as(level), taps)
    return Entries(tokens, positions, mask, near)


def ranks(tokens: Tensor, when: Tensor | None, lengths: Tensor | None = None) -> Tensor:
    """0, 1, ... for the positions in the order of ``when``: int64 [B, L]."""
    if lengths is None:
        usual = usual_order(tokens.shape[1]).to(tokens.device).expand_as(tokens)
    else:
        usual = usual_orders(lengths, tokens.shape[1])
    if when is None:
        return usual
    if when.shape[-1:] != tokens.shape[1:] or when.ndim > 2:
        raise ValueError(f"when must be [batch, length] = {tuple(tokens.shape)}, got {tuple(when.shape)}")
    first = usual.argsort(1)
    return first.gather(1, when.expand_as(tokens).gather(1, first).argsort(dim=1, stable=True)).argsort(1)
