"""The sampler interface: a sampler requests rows, gets the network's output for them, and fills positions.

``begin`` draws everything that needs no network, ``ask`` names the rows of the next call, and ``fill`` turns the result
into a Step. ``unmask.samplers`` has the samplers: ``samplers.planned`` is that of every plan. The loop around them is
in ``unmask.sampling``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from unmask.devices import indices, upload
from unmask.draw import Pick
from unmask.noise import Streams
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
