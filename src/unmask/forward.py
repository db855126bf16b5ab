"""The forward process: how a sequence is masked, and the exact reversal when x_0 is known."""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.errors import OptionError
from unmask.schedule import Schedule


def mask_by_time(
    x0: Tensor, t: Tensor, *, schedule: Schedule, mask_id: int, generator: torch.Generator, where: Tensor | None = None
) -> Tensor:
    """Equation 1: x_t ~ q_{t|0}, each token masked independently with probability 1 - alpha_t.

    x0 is int64 [B, L] and t [B]; positions where ``where`` is False are never masked.
    """
    return torch.where(masked_by_time(schedule.alpha(t), uniforms(x0, generator), where), mask_id, x0)


def mask_by_count(
    x0: Tensor, n: Tensor, *, mask_id: int, generator: torch.Generator, where: Tensor | None = None
) -> Tensor:
    """Proposition 3.1: x_n ~ q~_{n|0}, exactly n tokens masked, every subset of that size equally likely.

    x0 is int64 [B, L] and n int64 [B]; positions where ``where`` is False are never masked.
    """
    return torch.where(masked_by_count(n, uniforms(x0, generator), where), mask_id, x0)


def masked_by_time(alpha: Tensor, keys: Tensor, where: Tensor | None = None) -> Tensor:
    """Which positions Equation 1 masks, bool [B, L], as a function of uniforms [B, L]; alpha is [B]."""
    masked, where = keys >= alpha.to(keys.device).unsqueeze(1), beside(where, keys)
    return masked if where is None else masked & where


def masked_by_count(n: Tensor, keys: Tensor, where: Tensor | None = None) -> Tensor:
    """Which positions Proposition 3.1 masks, bool [B, L]: the n smallest of the uniforms [B, L]; n is [B]."""
    where = beside(where, keys)
    n, allowed = n.to(keys.device), holes(keys, where)
    if bool(((n < 0) | (n > allowed)).any()):
        raise ValueError(
            f"n must be between 0 and the number of positions that may be masked ({allowed.tolist()}), got {n.tolist()}"
        )
    if where is not None:
        keys = keys.masked_fill(~where, 2.0)  # sorts after every key in [0, 1)
    return keys.argsort(1).argsort(1) < n.unsqueeze(1)


def holes(keys: Tensor, where: Tensor | None) -> Tensor:
    """The number of positions of each sequence that may be masked: int64 [B]."""
    return torch.full((len(keys),), keys.shape[1], device=keys.device) if where is None else where.sum(1)


def beside(where: Tensor | None, keys: Tensor) -> Tensor | None:
    """``where`` on the device of the keys."""
    return None if where is None else where.to(keys.device)


def uniforms(x0: Tensor, generator: torch.Generator) -> Tensor:
    """float64 [B, L], one for each token."""
    return torch.rand(x0.shape, dtype=torch.float64, generator=generator, device=generator.device).to(x0.device)


def reversal(xt: Tensor, mu: Tensor, s: Tensor, t: Tensor, *, schedule: Schedule, mask_id: int) -> Tensor:
    """Equation 2: the probabilities of x_s given x_t, with mu in place of e_{x_0}.

    xt is int64 [B, L], mu [B, L, V], s < t are [B]. Returns [B, L, max(V, mask_id + 1)] in float64: a visible token
    stays; a masked one stays masked with probability (1 - alpha_s)/(1 - alpha_t) and becomes v with probability
    (alpha_s - alpha_t)/(1 - alpha_t) mu_v.
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


def check_begins(tokens: Tensor, mask_id: int, first: int) -> None:
    """Refuse tokens [B, L] whose first one is neither masked nor the id that begins every sequence."""
    wrong = (tokens[:, :1] != first) & (tokens[:, :1] != mask_id)
    if bool(wrong.any()):
        got = int(tokens[:, :1][wrong][0])
        raise OptionError(
            "canvas", f"every sequence of this network begins with the id {first}, got {got}: put it first"
        )
