"""Algorithm 3 at any order: the Lagrange polynomial through the last predictions, evaluated at each hitting time.

``predict.extrapolate`` is its order 2 and needs fewer rows. This one keeps the predictions of all masked positions, to
show the paper's claim about higher orders: they degrade.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.noise import Noise
from unmask.plan import Plan, parallel
from unmask.sampler import Ask, State, Step, Task, filled, packed


@dataclass
class ExtrapolationState(State):
    """Sequences with their last predictions, the newest first."""

    plan: Plan
    step: Tensor  # int64 [B]: the current step of each
    noise: Noise  # [B, L]
    mu: Tensor | None  # float64 [B, order, L, V]
    times: Tensor  # float64 [B, order]: nan where there is none yet


@dataclass(frozen=True)
class Extrapolation:
    """Parallel decoding that extrapolates the last ``order`` predictions: 1 is Algorithm 2, and 2 Algorithm 3."""

    order: int = 3

    def __post_init__(self) -> None:
        if self.order < 1:
            raise ValueError(f"order must be at least 1, got {self.order}")

    def begin(self, canvas: Tensor, task: Task) -> ExtrapolationState:
        plan = parallel(canvas, mask_id=task.mask_id, streams=task.streams, schedule=task.schedule, steps=task.steps)
        noise, step = task.streams.at("token", canvas.shape[1]), torch.zeros(len(canvas), dtype=torch.int64)
        times = torch.full((len(canvas), self.order), torch.nan, dtype=torch.float64)
        return ExtrapolationState(task, canvas.clone(), plan.calls, plan, step, noise, None, times)

    def ask(self, state: ExtrapolationState) -> Ask:
        return Ask(packed((state.x == state.task.mask_id).cpu()), state.plan.time(state.step))

    def fill(self, state: ExtrapolationState, ask: Ask, log_mu: Tensor) -> Step:
        B, L = state.x.shape
        row, column = (ask.rows >= 0).nonzero(as_tuple=True)
        now = torch.zeros(B, 1, L, log_mu.shape[1], dtype=torch.float64)
        now[row, 0, ask.rows[row, column]] = log_mu.cpu().exp()
        older = now.expand(-1, self.order, -1, -1) if state.mu is None else state.mu
        state.mu = torch.cat((now, older[:, : self.order - 1]), 1)
        state.times = torch.cat((ask.time.unsqueeze(1), state.times[:, : self.order - 1]), 1)
        group = state.plan.group(state.step)
        row, column = (group.positions >= 0).nonzero(as_tuple=True)
        at, tau = group.positions[row, column], group.tau[row, column]
        weight = lagrange_weights(state.times[row], tau)
        mu = (weight.unsqueeze(-1) * state.mu[row, :, at]).sum(1).clamp(min=0)
        ids, probability = state.task.pick(mu.log(), state.noise[row, at], normalised=False)
        state.step = state.step + 1
        chosen, tokens = torch.zeros(B, L, dtype=torch.bool), torch.zeros(B, L, dtype=torch.int64)
        certain = torch.zeros(B, L, dtype=torch.float64)
        chosen[row, at], tokens[row, at], certain[row, at] = True, ids, probability
        return filled(chosen, tokens, certain, group.tau.amax(1), group.drawn.sum(1))


def lagrange_weights(times: Tensor, tau: Tensor) -> Tensor:
    """prod_{j != i} (tau - t_j) / (t_i - t_j) for times [M, order] and tau [M]; nan times are ignored."""
    known = ~times.isnan()
    # A repeated time adds nothing: the newer prediction is used, as in predict.lagrange.
    known[:, 1:] &= times[:, 1:] > times[:, :-1].nan_to_num(torch.inf)
    t = torch.where(known, times, torch.inf)
    top = tau[:, None, None] - t[:, None, :]
    bottom = t[:, :, None] - t[:, None, :]
    use = known[:, None, :] & known[:, :, None] & ~torch.eye(times.shape[1], dtype=torch.bool)
    factors = torch.where(use, top / torch.where(use, bottom, 1.0), 1.0)
    return torch.where(known, factors.prod(-1), 0.0)
