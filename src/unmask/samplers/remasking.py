"""ReMDM: an unmasked token may be masked again (Wang et al. 2025, arXiv 2503.00307).

In the step from t to s a token is remasked with probability sigma <= min(1, (1 - a_s) / a_t), and a masked position is
unmasked with probability (a_s - (1 - sigma) a_t) / (1 - a_t). a is the expected share of filled positions, among those
that were masked at the start; for an empty canvas it is alpha. With sigma = 0 this is N-step ancestral sampling. Tokens
that were visible on the canvas are never remasked.

Where all positions have one sigma, as with cap and rescale, the expected share of filled positions at each time is the
same as without remasking. With confidence each position has its own, as its authors wrote it: 0 for a masked position,
so that nothing makes up for the tokens that are remasked, and fewer positions are filled on the way: with eta = 1 and
64 steps on 64 positions 0.18 of them where a = 0.5. The last step fills the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unmask.devices import download, upload
from unmask.hitting import start_time
from unmask.noise import Noise
from unmask.sampler import Ask, State, Step, Task, filled, packed

Sigma = Callable[[float, Tensor, Tensor], Tensor]
"""(eta, the largest sigma [b, 1], psi [b, L]) -> sigma [b, L]; psi: the probability a token was drawn with, or inf."""


def capped(eta: float, largest: Tensor, psi: Tensor) -> Tensor:
    """min(eta, largest)."""
    return largest.clamp(max=eta).expand_as(psi)


def rescaled(eta: float, largest: Tensor, psi: Tensor) -> Tensor:
    """eta * largest."""
    return (eta * largest).expand_as(psi)


def by_confidence(eta: float, largest: Tensor, psi: Tensor) -> Tensor:
    """eta * largest, distributed by softmax(-psi): tokens drawn with low probability are remasked first.

    0 for masked positions, so the expected share of filled positions falls below a.
    """
    share = torch.exp(-psi)
    return eta * largest * share / share.sum(1, keepdim=True).clamp(min=2.0**-1000)


@dataclass
class RemaskState(State):
    """Where each sequence is on the grid t_k = t_start k/N; all but x on the CPU."""

    start: Tensor  # float64 [B]: t_start
    k: Tensor  # int64 [B]: remaining steps
    psi: Tensor  # float64 [B, L]: the probability each token was drawn with, inf if none was
    choice: Noise  # [B, L]: for unmasking and remasking
    tokens: Noise  # [B, L]
    visits: Tensor  # int64 [B, L]: how often each position has been drawn before

    def time(self, i: Tensor, k: Tensor) -> Tensor:
        """t_k of the sequences i: [b, 1]."""
        return (self.start[i] * k / (self.task.steps or 1)).unsqueeze(1)

    def share(self, i: Tensor, k: Tensor) -> Tensor:
        """The expected share of filled positions at t_k, 1 - (1 - alpha)/(1 - alpha_start): [b, 1]."""
        alpha, first = self.task.schedule.alpha(self.time(i, k)), self.task.schedule.alpha(self.start[i].unsqueeze(1))
        return 1 - (1 - alpha) / (1 - first)


@dataclass(frozen=True, kw_only=True)
class RemaskAsk(Ask):
    again: Tensor  # bool [B, L]: remasked since the last call, or in this one


@dataclass(frozen=True)
class Remasking:
    """ReMDM's cap, rescale and confidence. Each sequence goes through the N steps on its own.

    Whether a position is unmasked does not depend on the network: a step that unmasks nothing costs no call, and what
    it remasks is reported with the next Step.
    """

    settles: ClassVar[bool] = False

    sigma: Sigma
    eta: float

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta must be in [0, 1], got {self.eta}")

    def begin(self, canvas: Tensor, task: Task) -> RemaskState:
        if task.steps is None:
            raise ValueError("remasking needs steps, the number of steps N")
        holes, length = (canvas == task.mask_id).sum(1).cpu(), canvas.shape[1]
        # Positions that a schedule with alpha_0 < 1 leaves masked take one more call.
        bound = torch.full_like(holes, task.steps + int(bool(task.schedule.alpha(0.0) < 1)))
        calls = torch.where(holes > 0, bound if self.eta else torch.minimum(holes, bound), 0)
        return RemaskState(
            task,
            canvas.clone(),
            calls,
            start_time(holes, length, task.schedule),
            torch.where(holes > 0, task.steps, 0),
            torch.full(canvas.shape, torch.inf, dtype=torch.float64),
            task.streams.at("remasking", length),
            task.streams.at("token", length),
            torch.zeros(canvas.shape, dtype=torch.int64),
        )

    def ask(self, state: RemaskState) -> RemaskAsk:
        """Advance each sequence to its next step that unmasks something, remasking others on the way."""
        masked = state.masked.clone()
        due, again, time = torch.zeros_like(masked), torch.zeros_like(masked), torch.zeros(len(masked)).double()
        while bool((idle := (state.k > 0) & ~due.any(1)).any()):
            i = idle.nonzero().squeeze(1)
            leave, sigma = self._probabilities(state, i)
            steps_made = ((state.task.steps or 0) - state.k[i]).unsqueeze(1)
            u = state.choice.take(i).numbered(steps_made).uniform()
            due[i] = masked[i] & (u < leave)
            hide = state.psi[i].isfinite() & (u < sigma)
            time[i], state.k[i] = state.time(i, state.k[i]).squeeze(1), state.k[i] - 1
            again[i] |= hide
            state.psi[i] = torch.where(hide, torch.inf, state.psi[i])
            # The network still sees tokens that are remasked in its own step, but not those remasked earlier.
            masked[i] |= hide & ~due[i].any(1, keepdim=True)
        left = masked & ~due.any(1, keepdim=True)
        shown = torch.where(upload(masked, state.x.device), state.task.mask_id, state.x)
        return RemaskAsk(rows=packed(due | left), time=torch.where(left.any(1), 0.0, time), canvas=shown, again=again)

    def fill(self, state: RemaskState, ask: RemaskAsk, log_mu: Tensor) -> Step:
        row, column = (ask.rows >= 0).nonzero(as_tuple=True)
        at, due = ask.rows[row, column], torch.zeros_like(ask.again)
        ids, certain = torch.zeros_like(state.visits), torch.zeros_like(state.psi)
        picked, probabilities = state.task.pick(log_mu, state.tokens[row, at].again(state.visits[row, at]))
        due[row, at], ids[row, at], certain[row, at] = True, *download(picked, probabilities)
        state.visits[row, at] += 1
        state.psi[row, at] = certain[row, at]
        hidden = packed(ask.again) if bool(ask.again.any()) else None
        return filled(due, ids, certain, ask.time, due.sum(1), hidden)

    def _probabilities(self, state: RemaskState, i: Tensor) -> tuple[Tensor, Tensor]:
        """For the sequences i, from t to s: the probabilities of unmasking and of remasking, each [b, L]."""
        a_t, a_s = state.share(i, state.k[i]), state.share(i, state.k[i] - 1)
        largest = torch.where(a_t > 0, (1 - a_s) / a_t, 1.0).clamp(max=1.0)
        sigma = self.sigma(self.eta, largest, state.psi[i])
        return (a_s - (1 - sigma) * a_t) / (1 - a_t), sigma


def remdm_cap(eta: float = 0.02) -> Remasking:
    """ReMDM-cap: sigma = min(eta, its maximum)."""
    return Remasking(capped, _finite(eta))


def remdm_rescale(eta: float = 0.05) -> Remasking:
    """ReMDM-rescale: sigma = eta times its maximum."""
    return Remasking(rescaled, _finite(eta))


def remdm_confidence(eta: float = 1.0) -> Remasking:
    """ReMDM-conf: eta times its maximum, distributed among the tokens by softmax(-psi). Fewer are filled on the way."""
    return Remasking(by_confidence, _finite(eta))


def _finite(eta: float) -> float:
    if not math.isfinite(eta):
        raise ValueError(f"eta must be in [0, 1], got {eta}")
    return float(eta)
