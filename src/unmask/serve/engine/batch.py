"""Live sequences that share network calls, each at its own step.

A masked network sees every position of its canvas, so only sequences of the same length can share a call without
changing each other. Sequences that ask for very different numbers of rows do not share one either: the fewer would be
padded to the more. So there is a batch for each model, length and bucket of widths.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unmask.protocol import Caches, bytes_of, inference
from unmask.sampler import Ask, PlanState, Step, apply
from unmask.sampling import answer
from unmask.serve.engine.job import Change, SequenceRun
from unmask.serve.engine.work import Served

Answer = tuple[int, Tensor | Exception]
"""The first row of the network call that a sequence was part of, and log mu of its rows or what went wrong."""


@dataclass(frozen=True)
class Outcome:
    """A sequence after a call: what was filled, if somebody watches; its tokens, if it is done; or what went wrong."""

    sequence: SequenceRun
    call: int  # the first row of the network call that it was part of
    change: Change | None = None
    tokens: list[int] | None = None
    error: Exception | None = None


@dataclass(eq=False)
class SharedState:
    """Sequences with one state: those of one request, or of all plans that are predicted and picked alike."""

    sampler: Any
    state: Any
    members: list[SequenceRun]
    ask: Any  # what the next call is for

    @classmethod
    def of(cls, sampler: Any, state: Any, members: list[SequenceRun]) -> SharedState:
        return cls(sampler, state, members, sampler.ask(state))

    @property
    def joins(self) -> bool:
        """Whether it may be joined with others and divided: a plan's sequences know nothing of each other."""
        return isinstance(self.state, PlanState)

    @property
    def going(self) -> list[bool]:
        """Which of its sequences need another call."""
        going: list[bool] = (self.ask.rows >= 0).any(1).tolist()
        return going

    def fill(self, log_mu: Sequence[Tensor | Exception]) -> Step:
        """One Step, from log mu of each sequence's rows."""
        for found in log_mu:
            if isinstance(found, Exception):
                raise found
        step: Step = self.sampler.fill(self.state, self.ask, torch.cat(log_mu))  # type: ignore[arg-type]
        apply(step, self.state.x, self.state.task.mask_id)
        self.ask = self.sampler.ask(self.state)
        return step

    def part(self, index: Sequence[int]) -> SharedState:
        """Some of its sequences."""
        at = torch.tensor(index, dtype=torch.int64)
        return SharedState(self.sampler, self.state.take(at), [self.members[i] for i in index], self.ask.take(at))


class Batch:
    """Sequences that join and leave between any two calls. Row i of a call has seat i of a network's cache."""

    def __init__(self, served: Served, length: int, max_logits: int) -> None:
        self.network, self.length, self.max_logits = served.network_of_a_batch(), length, max_logits
        self.cache: Caches | None = self.network if isinstance(self.network, Caches) else None
        self.seats: list[SequenceRun] = []
        self.states: list[SharedState] = []

    @property
    def bytes(self) -> int:
        """The size of the network's cache."""
        return bytes_of(self.cache)

    def join(self, newcomers: SharedState) -> None:
        if self.cache is not None:
            self.cache.add(len(newcomers.members), self.length)
        self.seats += newcomers.members
        self.states.append(newcomers)

    def drop_unwanted(self) -> None:
        """Take out sequences that nobody waits for; from a state that cannot be divided, all of them or none."""
        for shared in list(self.states):
            gone = [one for one in shared.members if not one.wanted]
            if shared.joins or len(gone) == len(shared.members):
                self._leave(shared, gone)

    def call(self) -> list[Outcome]:
        """One network call for every sequence, shared as far as it can be, and what came of it."""
        parts = list(self._parts())
        self._regroup(parts)
        x, ask = self._stacked()
        count = (ask.rows >= 0).sum(1).tolist()
        answers: dict[SequenceRun, Answer] = {}
        outcomes: list[Outcome] = []
        for part in parts:
            for rows, log_mu in self._answers(part, x, ask):
                each: Sequence[Tensor | Exception] = [log_mu]
                if isinstance(log_mu, Tensor):
                    each = log_mu.split_with_sizes(count[rows.start : rows.stop])
                answers |= {self.seats[i]: (rows.start, one) for i, one in zip(rows, each, strict=True)}
            for shared in [one for one in self.states if answers.keys() >= {*one.members}]:
                outcomes += self._filled(shared, [answers.pop(one) for one in shared.members])
        # Only now: who leaves gives the seat to another.
        done = {one.sequence for one in outcomes if one.tokens is not None or one.error is not None}
        for shared in list(self.states):
            self._leave(shared, [one for one in shared.members if one in done])
        return outcomes

    def _leave(self, shared: SharedState, gone: Sequence[SequenceRun]) -> None:
        """In the cache too the last sequence takes the seat of one that goes."""
        if not gone:
            return
        for one in gone:
            seat = self.seats.index(one)
            self.seats[seat] = self.seats[-1]
            self.seats.pop()
            if self.cache is not None:
                self.cache.leave(seat)
        stay = [i for i, one in enumerate(shared.members) if one not in gone]
        at = self.states.index(shared)
        self.states[at : at + 1] = [shared.part(stay)] if stay else []

    def _parts(self) -> Iterator[range]:
        """Neighbours that share a call: with prompts of one length to read, and logits that there is room for."""
        widest = max(one.job.widest for one in self.seats)
        most = max(self.max_logits // max(widest * self.network.vocab_size, 1), 1)
        end = 0
        for _, group in groupby(self.seats, lambda one: 0 if self.cache is None else one.unread):
            first, end = end, end + len(list(group))
            yield from (range(i, min(i + most, end)) for i in range(first, end, most))

    def _regroup(self, parts: Sequence[range]) -> None:
        """Join the plans of one part that are predicted and picked alike."""
        part_of = {self.seats[i]: number for number, part in enumerate(parts) for i in part}
        wanted: dict[Any, list[SharedState]] = defaultdict(list)
        for shared in self.states:
            if not shared.joins:
                wanted[shared].append(shared)
                continue
            split: dict[int, list[int]] = defaultdict(list)
            for i, one in enumerate(shared.members):
                split[part_of[one]].append(i)
            for number, index in split.items():
                alike = number, shared.sampler.predict, shared.state.task.pick
                wanted[alike].append(shared if len(split) == 1 else shared.part(index))
        self.states = [_joined(pieces) for pieces in wanted.values()]

    def _stacked(self) -> tuple[Tensor, Ask]:
        """What the network is shown and asked for every seat; rows are padded with -1."""
        asks = [shared.ask for shared in self.states]
        width, chains = max(ask.rows.shape[1] for ask in asks), asks[0].known is not None

        def padded(column: Tensor, value: float) -> Tensor:
            return functional.pad(column, (0, width - column.shape[1]), value=value)

        rows = torch.cat([padded(ask.rows, -1) for ask in asks])
        time = torch.cat([padded(ask.time, 0.0) if chains else ask.time for ask in asks])
        known = torch.cat([ask.known for ask in asks]) if chains else None
        x = torch.cat([one.state.x if one.ask.canvas is None else one.ask.canvas for one in self.states])
        seat = {one: i for i, one in enumerate(self.seats)}
        order = torch.tensor([seat[one] for shared in self.states for one in shared.members]).argsort()
        return x[order.to(x.device)], Ask(rows, time, known=known).take(order)

    def _answers(self, part: range, x: Tensor, ask: Ask) -> Iterator[tuple[range, Tensor | Exception]]:
        """log mu of the asked rows of a part.

        A call that fails is made again for each of its sequences by itself, so that one that cannot be served does not
        take the others with it. Nothing has been drawn by then.
        """
        here, index = slice(part.start, part.stop), torch.arange(part.start, part.stop)
        allowed = [one.job.work.allowed for one in self.seats[here]]
        try:
            with inference(self.network):
                seats = None if self.cache is None else here
                found: Tensor | Exception = answer(self.network, x[here], ask.take(index), allowed, seats)
        except Exception as error:
            found = error
        if isinstance(found, Exception) and len(part) > 1:
            for row in part:
                yield from self._answers(range(row, row + 1), x, ask)
        else:
            yield part, found

    def _filled(self, shared: SharedState, answers: Sequence[Answer]) -> list[Outcome]:
        """Pick the tokens. Where that fails, each plan is tried by itself; a request's own state fails as one."""
        members, before = shared.members, copy.copy(shared.state)  # fill may raise when it has changed a part of it
        try:
            step = shared.fill([log_mu for _, log_mu in answers])
        except Exception as error:
            shared.state = before
            if not shared.joins or len(members) == 1:
                return [Outcome(one, call, error=error) for one, (call, _) in zip(members, answers, strict=True)]
            alone = [shared.part([i]) for i in range(len(members))]
            self.states.remove(shared)
            self.states += alone
            return [self._filled(one, [found])[0] for one, found in zip(alone, answers, strict=True)]
        for one, draws in zip(members, step.draws.tolist(), strict=True):
            one.made, one.ncs = one.made + 1, one.ncs + draws
        seen = changes(step) if any(one.job.watched for one in members) else [None] * len(members)
        tokens = [None if going else x.tolist() for going, x in zip(shared.going, shared.state.x, strict=True)]
        return [Outcome(one, answers[i][0], seen[i], tokens[i]) for i, one in enumerate(members)]


def _joined(pieces: Sequence[SharedState]) -> SharedState:
    if len(pieces) == 1:
        return pieces[0]
    state = PlanState.join([piece.state for piece in pieces])
    return SharedState.of(pieces[0].sampler, state, [one for piece in pieces for one in piece.members])


def changes(step: Step) -> list[Change]:
    """A Step as what it did to each of its sequences, without the pads."""
    columns = (step.positions, step.tokens, step.probabilities, step.tau)
    found = []
    for i, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        cells = [cell for cell in zip(*row, strict=True) if cell[0] >= 0]
        # A list for each column, also where there is no cell.
        positions, tokens, probabilities, tau = map(list, zip(*cells, strict=True)) if cells else ([],) * 4
        hidden = None if step.hidden is None else [p for p in step.hidden[i].tolist() if p >= 0]
        guessed = None if step.guessed is None else [(p, token) for p, token in step.guessed[i].tolist() if p >= 0]
        corrected = None if step.corrected is None else int(step.corrected[i])
        found.append(Change(positions, tokens, probabilities, tau, hidden or None, guessed, corrected))
    return found
