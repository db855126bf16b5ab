"""The distribution of the published low-precision samplers, without their N L V random numbers.

A coupled step (``published.Coupled``) draws token and mask together. Let p be a token's odds against the mask in one
step, M the largest Gumbel, and c = e^-M / p. An exact draw takes the token with rate p; Gumbels conditioned on g <= M
(Prop. 5.2) take it with rate p e^-c. float32 rounds E = -log u up to multiples of eps = e^-M; with E_m the mask's
exponential, the rate is then eps E[floor(E_m / c)] = eps / (e^c - 1) = p c / (e^c - 1). Both rates are p times a number
below 1. So a low-precision run is an exact run in which a drawn token is *rejected* with probability 1 - e^-c or 1 - c
/ (e^c - 1), and its position stays masked. Rare tokens are rejected most, which lowers the temperature, and uncertain
positions reject most often, so confident ones are unmasked first. Steps in which nothing happens cost nothing, so N =
100,000 runs on a laptop. For comparison only, never a default.

The distribution is that of the sampler up to a relative error of 1/k in the k-th step from the end, where c is nearly 0
and hardly anything is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from unmask.devices import download
from unmask.draw import exponential_race
from unmask.noise import Noise
from unmask.sampler import Ask, State, Step, Task, filled, packed
from unmask.samplers.published import steps_as_published
from unmask.schedule import Schedule
from unmask.theory import maximum_gumbel

Law = Literal["grid", "truncated"]
FLOAT32 = maximum_gumbel("float32")


def accepted(c: Tensor, law: Law) -> Tensor:
    """The fraction of the exact rate that remains: c / (e^c - 1) on a grid, e^-c for truncated Gumbels."""
    if law not in get_args(Law):
        raise ValueError(f"law must be one of {', '.join(get_args(Law))}, got {law!r}")
    if law == "truncated":
        return torch.exp(-c)
    return torch.where(c > 0, c / torch.expm1(c.clamp(min=1e-300, max=700.0)), 1.0)


@dataclass(frozen=True)
class Grid:
    """The N steps that every sequence goes through; step k is from t = k/N to (k-1)/N."""

    schedule: Schedule
    steps: int

    def alpha(self, k: Tensor) -> Tensor:
        return self.schedule.alpha(k.double() / self.steps)

    def step_after(self, before: Tensor, u: Tensor) -> Tensor:
        """The step in which a position is unmasked, if it is masked before step ``before``."""
        alpha = self.alpha(before)
        k = (self.schedule.inverse(alpha + u * (1 - alpha)) * self.steps).ceil().long()
        return k.clamp(min=1).minimum(before)

    def stay(self, k: Tensor) -> Tensor:
        """The odds of the mask in step k: (1 - alpha_s) / (alpha_s - alpha_t)."""
        alpha_s = self.alpha(k - 1)
        return (1 - alpha_s) / (alpha_s - self.alpha(k))


@dataclass
class LawState(State):
    """The state of sequences in which each position has a step at which it would be unmasked."""

    grid: Grid
    due: Tensor  # int64 [B, L]: the step k, from t = k/N to (k-1)/N
    steps: Noise  # [B, L]: of due
    tokens: Noise  # [B, L]
    acceptance: Noise  # [B, L]
    visits: Tensor  # int64 [B, L]: how often each position has been drawn before


@dataclass(frozen=True)
class CoupledByLaw:
    """Section 5: N-step ancestral sampling with token and mask in one low-precision draw, simulated by rejection.

    law: "grid" is float32, "truncated" is Proposition 5.2; maximum: the largest Gumbel, infinity rejects nothing. A
    call whose tokens were all rejected has a Step that fills nothing.
    """

    law: Law = "grid"
    maximum: float = FLOAT32

    def begin(self, canvas: Tensor, task: Task) -> LawState:
        steps = steps_as_published(task)
        accepted(torch.zeros(1), self.law)
        noise, length = task.streams.at("step", canvas.shape[1]), canvas.shape[1]
        grid = Grid(task.schedule, steps)
        due = grid.step_after(torch.full(canvas.shape, steps), noise.uniform())
        # Twice the number of masked positions is more than rejections need in practice, but not a strict bound.
        calls = (2 * (canvas == task.mask_id).sum(1).cpu()).clamp(max=steps)
        tokens, acceptance = task.streams.at("token", length), task.streams.at("acceptance", length)
        return LawState(task, canvas.clone(), calls, grid, due, noise, tokens, acceptance, torch.zeros_like(due))

    def ask(self, state: LawState) -> Ask:
        state.due = torch.where(state.masked, state.due, 0)
        k = state.due.amax(1, keepdim=True) if state.due.shape[1] else state.due.sum(1, keepdim=True)
        return Ask(packed((state.due == k) & (state.due > 0)), k.squeeze(1).double() / (state.task.steps or 1))

    def fill(self, state: LawState, ask: Ask, log_mu: Tensor) -> Step:
        """Draw exactly, then reject what would not have won in low precision; the position is due again later."""
        row, column = (ask.rows >= 0).nonzero(as_tuple=True)
        at = ask.rows[row, column]
        now, visits = state.due[row, at], state.visits[row, at]
        ids = exponential_race(log_mu, state.tokens[row, at].numbered(visits))
        ids, log_p = download(ids, log_mu.gather(1, ids.unsqueeze(1)).squeeze(1))
        c = state.grid.stay(now) * torch.exp(-self.maximum - log_p.clamp(min=-600))
        kept = state.acceptance[row, at].numbered(visits).uniform() < accepted(c, self.law)
        later = state.grid.step_after(now - 1, state.steps[row, at].numbered(visits + 1).uniform())
        state.due[row, at] = torch.where(kept, now, later)
        state.visits[row, at] += 1
        tokens, certain = torch.zeros_like(state.due), torch.zeros(state.due.shape, dtype=torch.float64)
        chosen = torch.zeros(state.due.shape, dtype=torch.bool)
        chosen[row, at], tokens[row, at], certain[row, at] = kept, ids, log_p.exp()
        tau = ask.time - 1 / (state.task.steps or 1)
        return filled(chosen, tokens, certain, tau, torch.bincount(row, minlength=len(chosen)))
