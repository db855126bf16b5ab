"""The state of sequences that are filled together, in a network call that they may share with others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.sampler import InParts, PlanState, Step
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
        for found in log_mu:
            if isinstance(found, Exception):
                raise found
        if self.filling is None:
            told = self.state, self.ask, torch.cat(log_mu)  # type: ignore[arg-type]
            in_parts = isinstance(self.sampler, InParts)
            self.filling = self.sampler.parts(*told) if in_parts else iter([self.sampler.fill(*told)])
        step = next(self.filling)
        if step is None:
            return None
        self.filling = None
        self.state.advance(step)
        self.ask = self.sampler.ask(self.state)
        return step

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
