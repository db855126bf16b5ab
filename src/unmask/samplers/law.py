"""The published low-precision samplers by their law: what N coupled steps give, without their N L V random numbers.

A coupled step (``published.coupled_ancestral``) draws token and mask together. Write p for a token's odds against the
mask in one step, M for the largest Gumbel, and c = e^-M / p. An exact draw takes the token with rate p; Gumbels
conditioned on g <= M (Prop. 5.2) take it with p e^-c, and the float32 grid, which rounds down to M, with
p c / (e^c - 1). Both are p times a number below 1. So a low-precision run is an exact run in which a token, once drawn,
is *refused* with probability 1 - e^-c or 1 - c / (e^c - 1), and its position stays masked. Rare tokens are refused
most, the lower temperature, and unsure positions refuse most often, the prioritised unmasking. Steps in
which nothing happens cost nothing: the fault at N = 100,000 can be watched on a laptop. For comparison only, never a
default.

The law is that of the sampler up to a part of 1/k in the k-th step from the end, where c is nearly 0 and nothing is
refused anyway.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from unmask.draw import inverse_cdf, uniforms
from unmask.predict import log_mean
from unmask.protocol import for_sampling, inference, logits_at
from unmask.sampling import Sample, Step, apply, check_canvas, generators
from unmask.schedule import Linear, Schedule
from unmask.theory import maximum_gumbel

Law = Literal["grid", "truncated"]
FLOAT32 = maximum_gumbel("float32")


def accepted(c: Tensor, law: Law) -> Tensor:
    """The part of the exact rate that is left: c / (e^c - 1) on a grid, e^-c for truncated Gumbels."""
    if law not in get_args(Law):
        raise ValueError(f"law must be one of {', '.join(get_args(Law))}, got {law!r}")
    if law == "truncated":
        return torch.exp(-c)
    return torch.where(c > 0, c / torch.expm1(c.clamp(min=1e-300, max=700.0)), 1.0)


def coupled_by_law(
    model: Any,
    *,
    steps: int,
    num: int = 1,
    length: int | None = None,
    canvas: Tensor | None = None,
    law: Law = "grid",
    maximum: float = FLOAT32,
    schedule: Schedule | None = None,
    seed: int | Sequence[int] = 0,
    batch: int | None = None,
    callback: Callable[[Step], object] | None = None,
) -> Sample:
    """Section 5: N-step ancestral sampling with token and mask in one low-precision draw, by its law.

    law: "grid" is float32, "truncated" Proposition 5.2; maximum: the largest Gumbel, infinity refuses nothing.
    Everything else, and what comes back, is as in ``published.coupled_ancestral``: a Step for each change; nfe counts
    the calls whose tokens were refused, too.
    """
    started = clock.perf_counter()
    canvas = check_canvas(model, canvas, num, length)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a whole number of at least 1, got {steps!r}")
    if batch is not None and batch < 1:
        raise ValueError(f"batch must be at least 1, or None for all sequences at once, got {batch}")
    alpha = (schedule or Linear()).alpha(torch.arange(steps + 1, dtype=torch.float64) / steps)
    random, tokens = generators(seed, len(canvas)), canvas.clone()
    nfe, ncs = torch.zeros(2, len(canvas), dtype=torch.int64)
    trace: list[Step] = []
    size = batch or max(len(canvas), 1)
    for part in [torch.arange(i, min(i + size, len(canvas))) for i in range(0, len(canvas), size)]:
        own = [random[i] for i in part.tolist()]
        for asked, step in _stream(for_sampling(model), canvas[part], alpha, law, maximum, own):
            nfe[part] += (asked > 0).long()
            ncs[part] += asked
            if step is None:
                continue
            step = replace(step, sequences=part[step.sequences], calls=len(trace) + 1, planned=canvas.numel())
            trace.append(step)
            apply(step, tokens, model.mask_id)
            if callback is not None:
                callback(step)
    return Sample(tokens, tuple(trace), nfe, ncs, len(trace), clock.perf_counter() - started)


def _stream(
    network: Any, x: Tensor, alpha: Tensor, law: Law, maximum: float, random: Sequence[torch.Generator]
) -> Iterator[tuple[Tensor, Step | None]]:
    """For each call the rows asked per sequence, and a Step if a token was taken."""
    x, rising = x.clone(), alpha.flip(0)

    def step_after(before: Tensor, u: Tensor) -> Tensor:
        """Step k, from t = k/N to (k-1)/N, of a position that is masked before step ``before``."""
        reached = alpha[before] + u * (1 - alpha[before])
        return (len(alpha) - torch.searchsorted(rising, reached, right=True)).clamp(min=1).minimum(before)

    due = step_after(torch.full(x.shape, len(alpha) - 1), uniforms(random, x.shape[1]))
    while bool((x == network.mask_id).any()):
        due = torch.where(x.cpu() == network.mask_id, due, 0)
        k = due.amax(1)
        row, position = ((due == k.unsqueeze(1)) & (due > 0)).nonzero(as_tuple=True)
        own, now = [random[int(i)] for i in row], k[row]
        with inference(network):
            log_mu = _asked(network, x, k.double() / (len(alpha) - 1), row, position)
            ids = inverse_cdf(log_mu, own)
        log_p = log_mu.gather(1, ids.unsqueeze(1)).squeeze(1).cpu()
        stay = (1 - alpha[now - 1]) / (alpha[now - 1] - alpha[now])
        c = stay * torch.exp(-maximum - log_p.clamp(min=-600))
        kept = uniforms(own) < accepted(c, law)
        later = step_after(now - 1, uniforms(own))
        due[row[~kept], position[~kept]] = later[~kept]
        asked = torch.bincount(row, minlength=len(x))
        x[row[kept], position[kept]] = ids[kept]
        taken = row[kept], position[kept], ids[kept].cpu(), log_p[kept].exp(), (now[kept] - 1) / (len(alpha) - 1)
        yield asked, _step(*taken) if bool(kept.any()) else None


def _asked(network: Any, x: Tensor, time: Tensor, row: Tensor, position: Tensor) -> Tensor:
    """log mu [M, V] at the positions that are due, from one call for the sequences that have any."""
    live, row = _counted(row)
    rows, column = _packed(row, position, 0)
    log_mu = log_mean(logits_at(network, x[live], time[live].to(x.device), rows.to(x.device)))
    return log_mu[row, column]


def _counted(row: Tensor) -> tuple[Tensor, Tensor]:
    """The sequences that occur in sorted rows, and for each row which of them it is."""
    there = torch.bincount(row) > 0
    return there.nonzero().flatten(), (there.long().cumsum(0) - 1)[row]


def _packed(row: Tensor, values: Tensor, pad: float) -> tuple[Tensor, Tensor]:
    """Values of sorted rows as a table [rows, most], and the column of each."""
    count = torch.bincount(row)
    column = torch.arange(len(row)) - (count.cumsum(0) - count)[row]
    table = torch.full((len(count), int(count.max())), pad, dtype=values.dtype)
    table[row, column] = values
    return table, column


def _step(row: Tensor, position: Tensor, ids: Tensor, probability: Tensor, tau: Tensor) -> Step:
    sequences, row = _counted(row)
    positions, tokens = _packed(row, position, -1)[0], _packed(row, ids, -1)[0]
    probabilities, times = _packed(row, probability, 0.0)[0], _packed(row, tau.double(), 0.0)[0]
    return Step(
        sequences, positions, tokens, probabilities, times, drawn=positions >= 0, hidden=None, calls=0, planned=0
    )
