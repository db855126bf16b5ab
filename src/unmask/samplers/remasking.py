"""ReMDM: a token that was unmasked may be masked again, at a rate that leaves the share of masked tokens as it was.

In the step from t to s a token is hidden again with probability sigma <= min(1, (1 - a_s) / a_t), and a masked position
unmasked with probability (a_s - (1 - sigma) a_t) / (1 - a_t); a is the expected share of the holes that are filled,
which for an empty canvas is alpha. With sigma = 0 it is N-step ancestral sampling. What was visible on the canvas is
never hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.draw import uniforms
from unmask.samplers.run import Order, Task, filled
from unmask.sampling import Step

Sigma = Callable[[float, Tensor, Tensor], Tensor]
"""(eta, the largest sigma [b, 1], psi [b, L]) -> sigma [b, L]; psi: the probability a token was drawn with, or inf."""


def capped(eta: float, largest: Tensor, psi: Tensor) -> Tensor:
    """min(eta, largest)."""
    return largest.clamp(max=eta).expand_as(psi)


def rescaled(eta: float, largest: Tensor, psi: Tensor) -> Tensor:
    """eta * largest."""
    return (eta * largest).expand_as(psi)


def by_confidence(eta: float, largest: Tensor, psi: Tensor) -> Tensor:
    """eta * largest, shared out by softmax(-psi): what was unlikely when it was drawn is hidden first; 0 if masked."""
    share = torch.exp(-psi)
    return eta * largest * share / share.sum(1, keepdim=True).clamp(min=2.0**-1000)


@dataclass(frozen=True)
class Remasking(Order):
    """The loop behind ReMDM's cap, rescale and confidence. Each sequence goes through the N steps at its own pace.

    Whether a position is unmasked does not need the network: a step that unmasks nothing costs no call, and what it
    hides again is told with the next Step.
    """

    sigma: Sigma
    eta: float

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta must be in [0, 1], got {self.eta}")

    def most_calls(self, holes: Tensor, task: Task) -> Tensor:
        if task.steps is None:
            raise ValueError("remasking needs steps, the number of steps N")
        # What a schedule with alpha_0 < 1 leaves masked takes one more call.
        bound = torch.full_like(holes, task.steps + int(bool(task.schedule.alpha(0.0) < 1)))
        return torch.where(holes > 0, bound if self.eta else torch.minimum(holes, bound), 0)

    def run(self, task: Task) -> Iterator[tuple[Tensor, Step]]:
        x = task.canvas.clone()
        state = _State.begun(self, task)
        while bool((live := state.advance(x, task.mask_id)).any()):
            b = int(live.nonzero()[-1]) + 1  # those behind are finished, and so may be some before
            time, due = state.time[:b], state.due[:b]
            answer = task.ask(x[:b], due.to(x.device), time)
            row, column = answer.real.nonzero(as_tuple=True)
            ids = torch.full_like(answer.positions, -1)
            certain = torch.zeros(ids.shape, dtype=torch.float64)
            ids[row, column], certain[row, column] = task.pick(answer.log_mu, row.tolist())
            which = live.nonzero().squeeze(1)
            step = filled(which, answer.positions, answer.real, ids, certain, time, state.hidden(which))
            state.psi[row, answer.positions[row, column]] = certain[row, column]
            x[state.again.to(x.device)] = task.mask_id
            x[row, answer.positions[row, column]] = ids[row, column].to(x.device)
            yield due.sum(1)[which], step


@dataclass
class _State:
    """Where each sequence of a batch stands on the grid t_k = t_start k/N; on the CPU."""

    order: Remasking
    task: Task
    start: Tensor  # float64 [B]: t_start
    k: Tensor  # int64 [B]: steps that are left
    psi: Tensor  # float64 [B, L]: the probability each token was drawn with, inf where none was
    time: Tensor  # float64 [B]: of the next network call
    due: Tensor  # bool [B, L]: to be unmasked after it
    again: Tensor  # bool [B, L]: hidden again since the last one, or with it

    @classmethod
    def begun(cls, order: Remasking, task: Task) -> _State:
        holes = (task.canvas == task.mask_id).cpu()
        assert task.steps is not None
        k = torch.where(holes.any(1), task.steps, 0)
        start, psi = task.time_of(holes.sum(1)), torch.full(holes.shape, torch.inf, dtype=torch.float64)
        return cls(order, task, start, k, psi, start.clone(), torch.zeros_like(holes), torch.zeros_like(holes))

    def advance(self, x: Tensor, mask_id: int) -> Tensor:
        """Take each sequence to its next step that unmasks something, hiding on the way; which have one, bool [B]."""
        self.due, self.again = torch.zeros_like(self.due), torch.zeros_like(self.again)
        while bool((idle := (self.k > 0) & ~self.due.any(1)).any()):
            i = idle.nonzero().squeeze(1)
            masked = (x[i.to(x.device)] == mask_id).cpu()
            leave, sigma = self._probabilities(i, masked)
            u = uniforms([self.task.random[row] for row in i.tolist()], x.shape[1]).cpu()
            self.due[i] = masked & (u < leave)
            again = self.psi[i].isfinite() & (u < sigma)
            self.time[i], self.k[i] = self._at(i, self.k[i]).squeeze(1), self.k[i] - 1
            self.again[i] |= again
            self.psi[i] = torch.where(again, torch.inf, self.psi[i])
            # The network still sees what is hidden with its own step, and no longer what was hidden before that.
            gone = (again & ~self.due[i].any(1, keepdim=True)).to(x.device)
            x[i.to(x.device)] = torch.where(gone, mask_id, x[i.to(x.device)])
        left = (x == mask_id).cpu() & ~self.due.any(1, keepdim=True)
        self.time = torch.where(left.any(1), 0.0, self.time)
        self.due |= left
        return self.due.any(1)

    def _probabilities(self, i: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Of the step from t to s, for the sequences i: unmasking a masked position and hiding a token, each [b, L]."""
        a_t, a_s = self._share(i, self.k[i]), self._share(i, self.k[i] - 1)
        largest = torch.where(a_t > 0, (1 - a_s) / a_t, 1.0).clamp(max=1.0)
        sigma = self.order.sigma(self.order.eta, largest, self.psi[i])
        return (a_s - (1 - sigma) * a_t) / (1 - a_t), sigma

    def _share(self, i: Tensor, k: Tensor) -> Tensor:
        """The expected share of filled holes at t_k, 1 - (1 - alpha)/(1 - alpha_start): [b, 1]."""
        alpha, first = self.task.schedule.alpha(self._at(i, k)), self.task.schedule.alpha(self.start[i].unsqueeze(1))
        return 1 - (1 - alpha) / (1 - first)

    def _at(self, i: Tensor, k: Tensor) -> Tensor:
        return (self.start[i] * k / (self.task.steps or 1)).unsqueeze(1)

    def hidden(self, which: Tensor) -> Tensor | None:
        """What was hidden again, packed to the left: int64 [b, H] with pads of -1, or None."""
        again = self.again[which]
        width = int(again.sum(1).max()) if len(which) else 0
        positions = torch.argsort((~again).to(torch.int8), dim=1, stable=True)[:, :width]
        return torch.where(again.gather(1, positions), positions, -1) if width else None


def remdm_cap(eta: float = 0.02) -> Remasking:
    """ReMDM-cap: sigma = min(eta, its largest)."""
    return Remasking(capped, _finite(eta))


def remdm_rescale(eta: float = 0.05) -> Remasking:
    """ReMDM-rescale: sigma = eta times its largest."""
    return Remasking(rescaled, _finite(eta))


def remdm_confidence(eta: float = 1.0) -> Remasking:
    """ReMDM-conf: eta times its largest, shared out among the tokens by softmax(-psi)."""
    return Remasking(by_confidence, _finite(eta))


def _finite(eta: float) -> float:
    if not math.isfinite(eta):
        raise ValueError(f"eta must be in [0, 1], got {eta}")
    return float(eta)
