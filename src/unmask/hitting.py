"""Proposition 4.1: when each masked position is hit, drawn analytically and before the network is called.

Each masked position draws one u ~ U(0, 1) and is hit at tau = alpha^-1(1 - u (1 - alpha_start)). Sorting these gives
the order statistics that Algorithm 1 draws one after another, and the uniform choice of a position at each of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.noise import Streams
from unmask.schedule import Linear, Schedule


def hitting_times(
    tokens: Tensor, *, mask_id: int, streams: Streams, schedule: Schedule | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Proposition 4.1: positions in hitting order, their hitting times, and the number of masked positions per row.

    tau = alpha^-1(1 - u (1 - alpha_start)) for every masked position; sorted, these are the order statistics that
    tau_{n-1} = alpha^-1(1 - u_n^(1/n) (1 - alpha_{tau_n})) draws one by one.
    """
    if tokens.ndim != 2 or tokens.dtype != torch.int64:
        raise ValueError(f"tokens must be int64 [batch, length], got {tokens.dtype} {tuple(tokens.shape)}")
    if len(streams) != len(tokens):
        raise ValueError(f"one stream per row is needed: {len(tokens)} rows, {len(streams)} streams")
    schedule = schedule or Linear()
    length = tokens.shape[1]
    masked = (tokens == mask_id).cpu()
    holes = masked.sum(1)
    u = streams.at("hitting time", length).uniform()
    u, order = torch.where(masked, u, -1.0).sort(1, descending=True)
    alpha_start = schedule.alpha(start_time(holes, length, schedule))
    times = schedule.inverse(1 - u.clamp(min=0) * (1 - alpha_start).unsqueeze(1))
    real = torch.arange(length) < holes.unsqueeze(1)
    return torch.where(real, order, -1), torch.where(real, times, 0.0), holes


def start_time(holes: Tensor, length: int, schedule: Schedule) -> Tensor:
    """alpha^-1(1 - holes/L): the time of a canvas with this many masked positions; 1 for an empty one."""
    return schedule.inverse(1 - holes.double() / max(length, 1))
