"""Sequences of any length by insertion: a process that inserts masks and unmasks them, and its bound.

A sequence of n <= N tokens has N slots: its tokens, in order, and N - n phantoms. Each slot has two uniform times; at
the earlier one it is decided, at the later one it is unmasked. When a token's slot is decided, a mask appears at its
place among the others, and when it is unmasked, the token appears. A phantom is never seen, except that it has been
decided. So a state is a string of m masks and tokens, and the number j of decided slots. On a canvas of N positions
that is

    the string, then j - m times EMPTY, then N - j times OPEN

and the time is not needed: the next slot to be decided is uniform at any time. The reverse process asks a network at
each decision for a gap of the string, or for none, and at each unmasking for a token. Both are exact if

    G(gap i) = E[tokens missing in gap i | canvas] / (N - j)        G(none) = 1 - sum_i G(gap i)
    f_i(v) = p(v at mask i | canvas)

FlexMDM (Kim et al., 2509.01025) is the limit N -> infinity, in which decisions for none become waiting times. Given the
times, each of the D = N! / (N - n)! ways to put the tokens into slots is another sequence of decisions with the same
result, so that by Jensen's inequality

    -log p(x) <= E[ sum over the N decisions of -log G + sum over the n unmaskings of -log f ] - log D

with equality, for every draw of times and slots, at the optimum. In terms of a time t ~ U(0, 1) the first sum is that
of 2/(1 - t) [ sum_i missing_i (-log G(gap i)) + phantoms left (-log G(none)) ], and the second that of 1/(1 - t) sum
over masks of -log f.

The network is a denoiser with V + 2 ids: tokens, EMPTY = V and OPEN = V + 1; its mask is V + 2. At every position up to
the end of the string the difference of its logits of OPEN and EMPTY is log(G(gap) / G(none)) of the gap before it. In
rows of text EMPTY is eos, which pads, so that a finished canvas is a row. A network trained so says ``insertion``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.devices import widest
from unmask.network import logits_where


def canvases(strings: Tensor, size: Tensor, decided: Tensor, mask_id: int) -> Tensor:
    """Canvases int64 [B, N] of strings [B, N], of which the first ``size`` [B] count, with ``decided`` [B] slots."""
    position = torch.arange(strings.shape[1], device=strings.device)
    filler = torch.where(position < decided.unsqueeze(1), mask_id - 2, mask_id - 1)
    return torch.where(position < size.unsqueeze(1), strings, filler)


@dataclass(frozen=True)
class Inserted:
    """States of the process at some times, and what is missing in them."""

    canvas: Tensor  # int64 [B, N]
    size: Tensor  # int64 [B]: m
    missing: Tensor  # int64 [B, N]: tokens still to be inserted before each position, 0 after the end of the string
    phantoms: Tensor  # int64 [B]: phantom slots that have not been decided
    target: Tensor  # int64 [B, N]: the token of each mask, -1 elsewhere
    time: Tensor  # float64 [B]


def noised(x: Tensor, mask_id: int, time: Tensor, u: Tensor) -> Inserted:
    """The states of sequences x [B, N], padded with EMPTY, at times t [B]; u [B, N, 2] are their slots' times."""
    empty, (_, slots) = mask_id - 2, x.shape
    real, first, last = x != empty, u.amin(2), u.amax(2)
    if not bool((real[:, 1:] <= real[:, :-1]).all()):
        raise ValueError(f"sequences must be tokens followed by {empty} alone")
    t = time.unsqueeze(1)
    seen = real & (first <= t)
    # The tokens that are in the string, moved to the front; before each, some are missing.
    order = torch.argsort((~seen).to(torch.int8), dim=1, stable=True)
    shown = torch.where(last <= t, x, mask_id).gather(1, order)
    size, decided = seen.sum(1), (first <= t).sum(1)
    gap = seen.long().cumsum(1)  # of a missing token: the number of visible ones before it
    missing = torch.zeros(len(x), slots + 1, dtype=torch.int64, device=x.device)
    missing.scatter_add_(1, gap, (real & ~seen).long())
    canvas = canvases(shown, size, decided, mask_id)
    target = torch.where(canvas == mask_id, x.gather(1, order), -1)
    phantoms = (~real & (first > t)).sum(1)
    return Inserted(canvas, size, missing[:, :slots], phantoms, target, time)


def odds_of(logits: Tensor) -> Tensor:
    """log(G(gap) / G(none)) of the gap before each position, [...], from logits [..., V + 2]."""
    return logits[..., -1].to(widest(logits.device)) - logits[..., -2].to(widest(logits.device))


def log_gaps(odds: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """log G of the gap before each position [B, N], -inf behind the end of the string, and log G(none) [B]."""
    there = torch.arange(odds.shape[1], device=odds.device) <= size.unsqueeze(1)
    odds = torch.where(there, odds, -torch.inf)
    total = torch.cat((odds, torch.zeros_like(odds[:, :1])), 1).logsumexp(1)
    return odds - total.unsqueeze(1), -total


def loss(model: Any, state: Inserted) -> Tensor:
    """The bound's term of each state in nats, [B]; its mean over t ~ U(0, 1) and slots bounds -log p(x)."""
    canvas, masked = state.canvas, state.target >= 0
    there = torch.arange(canvas.shape[1], device=canvas.device) <= state.size.unsqueeze(1)
    logits = logits_where(model, canvas, None, there)
    odds = torch.full(canvas.shape, -torch.inf, dtype=widest(canvas.device), device=canvas.device)
    gaps, none = log_gaps(odds.masked_scatter(there, odds_of(logits)), state.size)
    decisions = -(state.missing * gaps.masked_fill(state.missing == 0, 0.0)).sum(1)
    decisions = decisions - state.phantoms * none.masked_fill(state.phantoms == 0, 0.0)
    f = logits[masked[there], :-2].log_softmax(-1)
    log_f = f.gather(1, state.target[masked].unsqueeze(1)).squeeze(1).to(none)
    tokens = torch.zeros_like(none).index_add(0, masked.nonzero()[:, 0], -log_f)
    return (2 * decisions + tokens) / (1 - state.time)


def log_ways(x: Tensor, mask_id: int) -> Tensor:
    """log D = log N! / (N - n)!, the ways to put the tokens of each sequence [B, N] into slots: [B]."""
    tokens = (x != mask_id - 2).sum(1).to(widest(x.device))
    slots = torch.full_like(tokens, x.shape[1])
    return torch.lgamma(slots + 1) - torch.lgamma(slots - tokens + 1)


def estimate(model: Any, x: Tensor, time: Tensor, u: Tensor) -> Tensor:
    """For each sequence x [B, N] what on average over uniforms t [B] and u [B, N, 2] is at least -log p(x), in nats."""
    time = time.to(x.device).clamp(max=1 - torch.finfo(time.dtype).eps / 2)  # the weight is infinite at 1
    return loss(model, noised(x, model.mask_id, time, u.to(x.device))) - log_ways(x, model.mask_id)


def bound(model: Any, x: Tensor, *, generator: torch.Generator) -> Tensor:
    """An ``estimate`` of each sequence x [B, N], with stratified times."""
    count = len(x)
    shift = torch.rand((), dtype=torch.float64, generator=generator)
    time = ((torch.arange(count) / max(count, 1) + shift) % 1)[torch.randperm(count, generator=generator)]
    return estimate(model, x, time, torch.rand(*x.shape, 2, dtype=torch.float64, generator=generator))
