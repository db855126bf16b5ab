"""The sampler of every plan: plan, predict, draw. Everything but the tokens is drawn before the first call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from unmask.devices import indices, upload
from unmask.noise import Noise
from unmask.plan import Group, Plan, Planner, resized
from unmask.predict import Prediction, Predictor, first_order
from unmask.sampler import Ask, State, Step, Task


@dataclass
class PlanState(State):
    """The state of sequences that follow a plan."""

    plan: Plan
    step: Tensor  # int64 [B]: the current step of each
    noise: Noise  # [B, L]: of the tokens
    visits: Tensor  # int64 [B, L]: how often each position has been drawn before
    before: list[Prediction | None]  # the last call's output at the rows of this one, for Algorithm 3

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        """Sequences of several runs as one batch, in this order; shorter ones are padded."""
        states = [state.resized(max(state.x.shape[1] for state in states)) for state in states]
        x, calls, step, visits = (
            torch.cat([getattr(state, name) for state in states]) for name in ("x", "calls", "step", "visits")
        )
        noise, before = torch.cat([state.noise.keys for state in states]), [one for s in states for one in s.before]
        return cls(states[0].task, x, calls, Plan.join([s.plan for s in states]), step, Noise(noise), visits, before)

    def resized(self, length: int) -> Self:
        """The same state with masks appended to the canvases, or some of these removed; no step fills them."""
        if length == self.x.shape[1]:
            return self
        x, visits = resized(self.x, length, self.task.mask_id), resized(self.visits, length, 0)
        noise = Noise(resized(self.noise.keys, length, 0))
        return replace(self, x=x, visits=visits, noise=noise, plan=self.plan.resized(length), holes=None)


@dataclass(frozen=True, kw_only=True)
class PlanAsk(Ask):
    """The rows of a plan's next call."""

    group: Group


@dataclass(frozen=True)
class Planned:
    """Plan, predict, draw: everything but the tokens is drawn before the first call."""

    plan: Planner
    predict: Predictor = first_order

    def begin(self, canvas: Tensor, task: Task) -> PlanState:
        whole = self.plan(canvas, mask_id=task.mask_id, streams=task.streams, schedule=task.schedule, steps=task.steps)
        whole = self.predict.prepare(whole, task.streams)
        step, visits = torch.zeros(len(canvas), dtype=torch.int64), torch.zeros(canvas.shape, dtype=torch.int64)
        noise = task.streams.at("token", canvas.shape[1])
        return PlanState(task, canvas.clone(), whole.calls, whole, step, noise, visits, [None] * len(canvas))

    def skip(self, state: PlanState, needless: Tensor) -> None:
        """Remove positions from the plan; a predictor that has looked ahead keeps its rows."""
        if self.predict.plain:
            state.plan = state.plan.without(needless, state.step)

    def ask(self, state: PlanState) -> PlanAsk:
        """The rows of this step, and those of the next where the predictor looks ahead."""
        group = state.plan.group(state.step)
        rows = torch.where(group.drawn, group.positions, -1)
        if self.predict.lookahead:
            later = state.plan.group(state.step + 1)
            rows = torch.cat((rows, torch.where(later.drawn, later.positions, -1)), 1)
        return PlanAsk(rows=rows, time=state.plan.time(state.step), group=group)

    def fill(self, state: PlanState, ask: PlanAsk, log_mu: Tensor) -> Step:
        """Predict and draw; positions that the group keeps are carried over from the canvas (Eq. 4)."""
        group, x = ask.group, state.x
        row, column = (ask.rows >= 0).nonzero(as_tuple=True)
        # A prediction's times are needed only where predictions are combined.
        time = ask.time[row]
        now = Prediction(log_mu, upload(time, x.device) if self.predict.combines else time)
        if self.predict.lookahead:
            due = column < group.positions.shape[1]
            ahead, sizes = now.take((~due).nonzero().squeeze(1)), torch.bincount(row[~due], minlength=len(x)).tolist()
            parts = zip(torch.split(ahead.log_mu, sizes), torch.split(ahead.time, sizes), strict=True)
            later: list[Prediction | None] = [Prediction(*part) for part in parts]
            now, row, column = now.take(due.nonzero().squeeze(1)), row[due], column[due]
            before, state.before = _together(state.before, now, row), later
        else:
            before = None
        tau = group.tau[row, column]
        weights = self.predict.combine(now, before, upload(tau, x.device) if self.predict.combines else tau)
        normalised = not (self.predict.combines or state.task.pick.penalises)
        if state.task.pick.penalises:
            penalty = state.task.pick.penalty(_drawn(state, weights.shape[-1]))
            weights = weights - penalty[upload(row, x.device)]
        at = group.positions[row, column]
        noise = state.noise[row, at].numbered(state.visits[row, at])
        ids, probabilities = state.task.pick(weights, noise, normalised=normalised)
        if group.hidden is not None:
            state.visits[row, at] += 1
        state.step = state.step + 1
        tokens, certain = _with_carried(group, x, row, column, ids, probabilities)
        return Step(
            torch.arange(len(x)),
            group.positions,
            tokens,
            certain,
            group.tau,
            group.drawn,
            group.drawn.sum(1),
            group.hidden,
        )


def _with_carried(
    group: Group, x: Tensor, row: Tensor, column: Tensor, ids: Tensor, probabilities: Tensor
) -> tuple[Tensor, Tensor]:
    """Tokens and probabilities [B, R] of a group: drawn at row and column, and otherwise as x [B, L] shows them."""
    if len(ids) == group.positions.numel():
        return ids.view(group.positions.shape), probabilities.view(group.positions.shape)
    positions = upload(group.positions, x.device)
    tokens = torch.where(positions >= 0, x.gather(1, positions.clamp(min=0)), -1)
    certain, at = (positions >= 0).double(), indices(x.device, row, column)
    tokens[at], certain[at] = ids, probabilities
    return tokens, certain


def _drawn(state: PlanState, vocab_size: int) -> Tensor:
    """How often each id has been drawn for each sequence: float64 [B, V]."""
    order, x = upload(state.plan.order, state.x.device), state.x
    shown = x.gather(1, order.clamp(min=0))
    real = (order >= 0) & (shown != state.task.mask_id)
    counts = torch.zeros(len(x), vocab_size, dtype=torch.float64, device=x.device)
    return counts.scatter_add(1, torch.where(real, shown, 0), real.double())


def _together(before: Sequence[Prediction | None], now: Prediction, row: Tensor) -> Prediction | None:
    """The last predictions of a batch; a sequence without one gets the current one, so nothing is extrapolated."""
    if not any(before):
        return None
    parts = [one if one is not None else now.take((row == i).nonzero().squeeze(1)) for i, one in enumerate(before)]
    return Prediction(torch.cat([one.log_mu for one in parts]), torch.cat([one.time for one in parts]))
