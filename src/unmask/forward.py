"""The forward process: how a sequence is masked, and what its exact reversal looks like when the answer is known."""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.schedule import Schedule


def mask_by_time(
    x0: Tensor, t: Tensor, *, schedule: Schedule, mask_id: int, generator: torch.Generator, where: Tensor | None = None
) -> Tensor:
    """Equation 1: x_t ~ q_{t|0}, each token masked by itself with probability 1 - alpha_t.

    x0 is int64 [B, L] and t [B]; positions where ``where`` is False are never masked.
    """
    u = torch.rand(x0.shape, dtype=torch.float64, generator=generator, device=generator.device).to(x0.device)
    masked = u >= schedule.alpha(t).to(x0.device).unsqueeze(1)
    if where is not None:
        masked &= where
    return torch.where(masked, mask_id, x0)


def mask_by_count(
    x0: Tensor, n: Tensor, *, mask_id: int, generator: torch.Generator, where: Tensor | None = None
) -> Tensor:
    """Proposition 3.1: x_n ~ q~_{n|0}, exactly n tokens masked, every subset of that size equally likely.

    x0 is int64 [B, L] and n int64 [B]; positions where ``where`` is False are never masked.
    """
    allowed = where.sum(1) if where is not None else torch.full_like(n, x0.shape[1])
    if bool(((n < 0) | (n > allowed.to(n.device))).any()):
        raise ValueError(
            f"n must be between 0 and the number of positions that may be masked ({allowed.tolist()}), got {n.tolist()}"
        )
    keys = torch.rand(x0.shape, dtype=torch.float64, generator=generator, device=generator.device).to(x0.device)
    if where is not None:
        keys = keys.masked_fill(~where, 2.0)  # behind every key in [0, 1)
    rank = keys.argsort(1).argsort(1)
    return torch.where(rank < n.to(x0.device).unsqueeze(1), mask_id, x0)


def reversal(xt: Tensor, mu: Tensor, s: Tensor, t: Tensor, *, schedule: Schedule, mask_id: int) -> Tensor:
    """Equation 2: the probabilities of x_s given x_t, with mu in the place of e_{x_0}.

    xt is int64 [B, L], mu [B, L, V], s < t are [B]. Returns [B, L, max(V, mask_id + 1)] in float64: a visible token
    stays; a masked one stays with (1 - alpha_s)/(1 - alpha_t) and turns v with (alpha_s - alpha_t)/(1 - alpha_t) mu_v.
    """
    if bool((s > t).any()):
        raise ValueError(f"s must not be later than t, got s={s.tolist()} and t={t.tolist()}")
    alpha_s, alpha_t = schedule.alpha(s), schedule.alpha(t)
    leave = ((alpha_s - alpha_t) / (1 - alpha_t)).to(mu.device)[:, None, None]
    width = max(mu.shape[-1], mask_id + 1)
    probabilities = mu.new_zeros((*mu.shape[:-1], width), dtype=torch.float64)
    probabilities[..., : mu.shape[-1]] = leave * mu.double()
    probabilities[..., mask_id] = (1 - leave)[..., 0]
    visible = torch.nn.functional.one_hot(xt, width).double()
    return torch.where((xt == mask_id).unsqueeze(-1), probabilities, visible)
