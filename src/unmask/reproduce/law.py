"""Coupled low-precision steps by their law, at any N, for the price of a few network calls per token.

A published step draws token and mask together. Write p for a token's odds against the mask in one step, and
c = e^-M / p. An exact draw takes the token with rate p; Gumbels conditioned on g <= M (Prop. 5.2) take it with p e^-c,
and a float32 grid, which rounds down to M, with p c / (e^c - 1). Both are p times a number below 1. So a low-precision
run is an exact run in which a drawn token is *refused* with probability 1 - e^-c or 1 - c / (e^c - 1), and its position
stays masked: tokens of small probability are refused most, which is the lower temperature, and unsure positions refuse
most often, which is the prioritised unmasking. Nothing has to be drawn for steps in which nothing happens.

The law is that of the sampler up to a part of 1/k in the k-th step from the end, where c is nearly 0 and nothing is
refused anyway.
"""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unmask.draw import inverse_cdf, uniforms
from unmask.models.protocol import for_sampling, inference, logits_at
from unmask.predict import log_mean
from unmask.sample import Sample, generators
from unmask.theory import maximum_gumbel

LAWS = ("grid", "truncated")
FLOAT32 = maximum_gumbel("float32")


def accepted(c: Tensor, law: str) -> Tensor:
    """The part of the exact rate that is left: c / (e^c - 1) on a grid, e^-c for truncated Gumbels."""
    if law not in LAWS:
        raise ValueError(f"law must be one of {LAWS}, got {law!r}")
    if law == "truncated":
        return torch.exp(-c)
    return torch.where(c > 0, c / torch.expm1(c.clamp(min=1e-300, max=700.0)), 1.0)


def coupled_by_law(
    model: Any,
    *,
    steps: int,
    num: int,
    length: int,
    law: str = "grid",
    maximum: float = FLOAT32,
    seed: int = 0,
    batch: int = 8,
) -> Sample:
    """N coupled steps of a linear schedule whose largest Gumbel is ``maximum``; infinity gives ``plan.ancestral``."""
    started = clock.perf_counter()
    network, random = for_sampling(model), generators(seed, num)
    made = [_run(network, steps, length, law, maximum, random[i : i + batch]) for i in range(0, num, batch)]
    tokens, nfe, ncs = (torch.cat(parts) for parts in zip(*made, strict=True))
    return Sample(tokens, (), nfe, ncs, int(nfe.sum()), clock.perf_counter() - started)


def _run(
    network: Any, steps: int, length: int, law: str, maximum: float, random: Sequence[torch.Generator]
) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.full((len(random), length), network.mask_id)
    nfe, ncs = torch.zeros(2, len(random), dtype=torch.int64)
    # Step k is the k-th from the end. A masked position leaves in it with 1/k, so in each of the k left equally likely.
    due = 1 + (uniforms(random, length) * steps).long()
    while bool((x == network.mask_id).any()):
        due = torch.where(x == network.mask_id, due, 0)
        live = due.amax(1).nonzero().flatten()
        k = due[live].amax(1)
        row, position = (due[live] == k.unsqueeze(1)).nonzero(as_tuple=True)
        own = [random[int(i)] for i in live[row]]
        with inference(network):
            log_mu = _asked(network, x[live], k.double() / steps, row, position)
            ids = inverse_cdf(log_mu, own)
        left = (k[row] - 1).double()
        # p = mu / (k - 1), the odds against the mask.
        c = left * torch.exp(-maximum - log_mu.gather(1, ids.unsqueeze(1)).squeeze(1).clamp(min=-600))
        kept = uniforms(own) < accepted(c, law)
        x[live[row[kept]], position[kept]] = ids[kept]
        due[live[row[~kept]], position[~kept]] = 1 + (uniforms(own) * left).long()[~kept]
        nfe[live] += 1
        ncs.index_add_(0, live[row], torch.ones_like(row))
    return x, nfe, ncs


def _asked(network: Any, x: Tensor, time: Tensor, row: Tensor, position: Tensor) -> Tensor:
    """log mu [M, V] at the positions that are due, from one call."""
    count = torch.bincount(row, minlength=len(x))
    column = torch.arange(len(row)) - (count.cumsum(0) - count)[row]
    rows = torch.zeros(len(x), int(count.max()), dtype=torch.int64)
    rows[row, column] = position
    return log_mean(logits_at(network, x, time, rows)[row, column])
