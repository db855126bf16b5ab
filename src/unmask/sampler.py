"""The sampler interface: a sampler requests rows, gets the network's output for them, and fills positions.

``begin`` draws everything that needs no network, ``ask`` names the rows of the next call, and ``fill`` turns the result
into a Step. ``Planned`` is the sampler of every plan; ``unmask.samplers`` has the others. The loop around them is in
``unmask.sampling``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from unmask.devices import indices, upload
from unmask.draw import Pick
from unmask.noise import Noise, Streams
from unmask.plan import Group, Plan, Planner, resized
from unmask.predict import Prediction, Predictor, first_order
from unmask.protocol import Batched
from unmask.schedule import Schedule


@dataclass(frozen=True)
class Particles(Batched):
    """The particles of guided sequences after a call."""

    parents: Tensor  # int64 [b]: the particle of the call that each was copied from before it was filled
    log_weights: Tensor  # float64 [b]: after the call
    effective: Tensor  # float64 [b]: the effective size of its population, the smaller of two:
    # before it was resampled, and after the call


@dataclass(frozen=True)
class Step(Batched):
    """The result of one network call. R is the largest number of positions that a sequence filled; padding is -1.

    ``tokens`` and ``probabilities`` are on the device of the canvas, so that nobody has to wait for them; everything
    else was known before the call, or is read in any case, and is on the CPU.
    """

    sequences: Tensor  # int64 [b]: which sequences the call was for
    positions: Tensor  # int64 [b, R]: filled after the call
    tokens: Tensor  # int64 [b, R]: with these; on the canvas's device
    # float64 [b, R], on the canvas's device: under the distribution they were drawn from; 1 if carried over
    probabilities: Tensor
    tau: Tensor  # float64 [b, R]: their hitting times
    drawn: Tensor  # bool [b, R]: drawn in this call, not carried over
    draws: Tensor  # int64 [b]: rows drawn for each sequence, including those that were not kept
    hidden: Tensor | None = None  # int64 [b, H]: masked again before the positions are filled
    guessed: Tensor | None = None  # int64 [b, G, 2]: positions and tokens that are provisional guesses (samplers.ahead)
    corrected: Tensor | None = None  # int64 [b]: how many earlier guesses turned out wrong
    particles: Particles | None = None  # of a guided run
    calls: int = 0  # network calls so far, this one included
    planned: int = 0  # network calls of the whole run: exact for a plan, an upper bound otherwise

    def on(self, device: torch.device) -> Step:
        """The Step of a canvas on this device."""
        if self.tokens.device == device:
            return self
        return replace(self, tokens=upload(self.tokens, device), probabilities=upload(self.probabilities, device))


@dataclass(frozen=True)
class Task:
    """What a sampler gets when it begins."""

    mask_id: int
    streams: Streams  # one for each sequence
    pick: Pick
    schedule: Schedule
    steps: int | None
    stop: tuple[int, ...] = ()  # ids that end a run of masked positions: after one, ``skip`` may be called
    chains: bool = False  # whether a call computes a chain of guesses at the cost of its rows (protocol.LooksAhead)


@dataclass
class State(Batched):
    """The state of unfinished sequences."""

    task: Task
    x: Tensor  # int64 [B, L]: the canvas; the loop writes each Step into it
    calls: Tensor  # int64 [B]: the network calls that each sequence takes, or a bound on them
    # bool [B, L] on the CPU: where an x on an accelerator is masked, from the first time that somebody asks
    holes: Tensor | None = field(default=None, kw_only=True)

    @property
    def masked(self) -> Tensor:
        """Where x is masked: bool [B, L] on the CPU. It is not to be changed."""
        if self.x.device.type == "cpu":
            return self.x == self.task.mask_id
        if self.holes is None:
            self.holes = (self.x == self.task.mask_id).cpu()
        return self.holes

    def advance(self, step: Step) -> None:
        """Write a Step into the canvas. Which positions it fills is known on the CPU, so nothing is read again."""
        apply(step, self.x, self.task.mask_id)
        if self.holes is not None:
            apply(replace(step, tokens=torch.zeros_like(step.positions)), self.holes, 1)

    def snapshot(self) -> Self:
        """The same state with tensors and lists of its own: to go back to if a later fill fails."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        copies: dict[str, Any] = {name: value.clone() for name, value in values.items() if isinstance(value, Tensor)}
        copies |= {name: [*value] for name, value in values.items() if isinstance(value, list)}
        return replace(self, **copies)


@dataclass(frozen=True)
class Ask(Batched):
    """The rows that a sampler needs from the next call. A sequence that asks for none has finished.

    If the rows form a chain, each one is computed as if it and all later ones were masked, at its own time [B, R].
    """

    rows: Tensor  # int64 [B, R]: positions, on the CPU; padding is -1
    time: Tensor  # float64 [B]: the time at which the network is called
    canvas: Tensor | None = None  # int64 [B, L]: the network's input, where it is not the state's x
    known: Tensor | None = None  # int64 [B]: the rows form a chain, whose first ``known`` tokens are on the canvas


class Sampler(Protocol):
    """A way to fill a canvas. The loop calls ``ask`` once before every ``fill``."""

    def begin(self, canvas: Tensor, task: Task) -> State:
        """The initial State of a canvas int64 [B, L]."""
        ...

    def ask(self, state: Any) -> Ask:
        """The rows of the next call, as an Ask."""
        ...

    def fill(self, state: Any, ask: Any, log_mu: Tensor) -> Step:
        """Take log mu [M, V] of the requested rows, without padding, row by row. The loop applies the Step.

        The state is changed in place; ``State.snapshot`` keeps one that is not.
        """
        ...


@runtime_checkable
class InBlocks(Protocol):
    """A sampler that can be made to fill blocks of positions from left to right."""

    def in_blocks(self, size: int) -> Sampler: ...


@runtime_checkable
class Skips(Protocol):
    """A sampler that accepts a set of masked positions which need not be filled."""

    def skip(self, state: Any, needless: Tensor) -> None:
        """needless: bool [B, L]."""
        ...


@runtime_checkable
class InParts(Protocol):
    """A sampler whose ``fill`` may take long, so that other requests should run in between."""

    def parts(self, state: Any, ask: Any, log_mu: Tensor) -> Iterator[Step | None]:
        """``fill`` in parts: yields None after each part but the last, which yields the Step."""
        ...


def apply(step: Step, tokens: Tensor, mask_id: int) -> Tensor:
    """Write a Step into its canvas in place: first copies, then remasked positions, then filled ones."""
    device = tokens.device
    if step.particles is not None:
        copy, source = indices(device, step.sequences, step.sequences[step.particles.parents])
        tokens[copy] = tokens[source]
    if step.hidden is not None:
        row, column = (step.hidden >= 0).nonzero(as_tuple=True)
        tokens[indices(device, step.sequences[row], step.hidden[row, column])] = mask_id
    row, column = (step.positions >= 0).nonzero(as_tuple=True)
    new = step.tokens.flatten()
    if len(row) < len(new):
        new = new[upload(row * step.positions.shape[1] + column, new.device)]
    at = indices(device, step.sequences[row], step.positions[row, column])
    tokens[at] = upload(new, device).to(tokens.dtype)
    return tokens


def packed(where: Tensor) -> Tensor:
    """The positions where the boolean [B, L] is true, int64 [B, R] on the CPU, in order; padding is -1."""
    where = where.cpu()
    width = int(where.sum(1).max()) if where.numel() else 0
    # A stable sort of "not here" brings the wanted positions to the front, in order.
    positions = torch.argsort((~where).to(torch.int8), dim=1, stable=True)[:, :width]
    return torch.where(where.gather(1, positions), positions, -1)


def filled(
    chosen: Tensor, tokens: Tensor, probabilities: Tensor, tau: Tensor, draws: Tensor, hidden: Tensor | None = None
) -> Step:
    """The Step that fills the positions where ``chosen`` is true; all are [B, L] and on the CPU, but tau is [B]."""
    positions = packed(chosen)
    real, at = positions >= 0, positions.clamp(min=0)
    return Step(
        torch.arange(len(chosen)),
        positions,
        torch.where(real, tokens.gather(1, at), -1),
        torch.where(real, probabilities.gather(1, at), 0.0),
        torch.where(real, tau.unsqueeze(1), 0.0),
        real,
        draws,
        hidden,
    )


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
