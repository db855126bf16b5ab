"""The state of sequences that are filled together, in a network call that they may share with others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.draw import Faults
from unmask.network import waits
from unmask.predict import check_normalised
from unmask.sampler import InParts, Step
from unmask.samplers.planned import PlanState
from unmask.serve.engine.job import SequenceRun


@dataclass(eq=False)
class SharedState:
    """Sequences with a common state: those of one request, or of all plans with the same predictor and draw."""

    sampler: Any
    state: Any
    members: list[SequenceRun]
    ask: Any  # the rows of the next call
    filling: Iterator[Step | None] | None = None  # a step made in parts that is not finished

    @classmethod
    def of(cls, sampler: Any, state: Any, members: list[SequenceRun]) -> SharedState:
        return cls(sampler, state, members, sampler.ask(state))

    @property
    def joins(self) -> bool:
        """Whether it may be joined with others and divided: the sequences of a plan are independent."""
        return isinstance(self.state, PlanState)

    @property
    def going(self) -> list[bool]:
        """Which of its sequences need another call."""
        going: list[bool] = (self.ask.rows >= 0).any(1).tolist()
        return going

    def fill(self, log_mu: Sequence[Tensor | Exception]) -> Step | None:
        """One Step, from log mu of each sequence's rows; None after a part of it that is not the last."""
        for rows in log_mu:
            if isinstance(rows, Exception):
                raise rows
        faults = Faults() if waits(self.state.x.device) else None
        with nullcontext() if faults is None else faults.collected():
            step = self._step(torch.cat(log_mu))  # type: ignore[arg-type]
        if faults is not None:
            faults.check()
        if step is None:
            return None
        self.filling = None
        self.state.advance(step)
        self.ask = self.sampler.ask(self.state)
        return step

    def _step(self, log_mu: Tensor) -> Step | None:
        """The next part of a step, which is all of it for most samplers."""
        if self.filling is None:
            if waits(log_mu.device):  # elsewhere the network's answer has been checked
                check_normalised(log_mu)
            if isinstance(self.sampler, InParts):
                self.filling = self.sampler.parts(self.state, self.ask, log_mu)
            else:
                self.filling = iter([self.sampler.fill(self.state, self.ask, log_mu)])
        return next(self.filling)

    def part(self, index: Sequence[int]) -> SharedState:
        """Some of its sequences, without padding that only longer ones needed."""
        at, members = torch.tensor(index, dtype=torch.int64), [self.members[i] for i in index]
        state = self.state.take(at)
        if self.joins:
            state = state.resized(max(one.length for one in members))
        return SharedState(self.sampler, state, members, self.ask.take(at))


def joined(pieces: Sequence[SharedState]) -> SharedState:
    """The states of several plans as one."""
    if len(pieces) == 1:
        return pieces[0]
    state = PlanState.join([piece.state for piece in pieces])
    return SharedState.of(pieces[0].sampler, state, [one for piece in pieces for one in piece.members])
