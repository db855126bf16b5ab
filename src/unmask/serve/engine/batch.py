"""Active sequences that share network calls, each at its own step.

There is one batch per model and range of widths: sequences that request very different numbers of rows do not share a
call, since the smaller would be padded to the larger. Whether lengths may differ depends on the network. With a cache
every token is read once, so lengths do not matter; a network that sees the whole canvas is padded, to less than twice
the length; and a network that takes no lengths is called for equal ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import dropwhile, groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unmask.devices import upload
from unmask.draw import Faults
from unmask.network import answer, device_of, inference, waits
from unmask.plan import resized
from unmask.protocol import Caches, LooksAhead, bytes_of, for_sampling
from unmask.sampler import Ask
from unmask.samplers.ahead import Ahead
from unmask.serve.engine.change import Change, changes, likeliest
from unmask.serve.engine.job import SequenceRun
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.shared_state import SharedState, joined
from unmask.serve.engine.work import Served

Answer = tuple[int, Tensor | Exception]
"""The first row of the network call that a sequence was part of, and log mu of its rows or what went wrong."""


@dataclass(frozen=True)
class Outcome:
    """A sequence after a call: what was filled, if it is watched; its tokens, if it is done; or the error."""

    sequence: SequenceRun
    call: int  # the first row of the network call that it was part of
    change: Change | None = None
    tokens: list[int] | None = None
    error: Exception | None = None


class Batch:
    """Sequences that join and leave between passes. Row i of a pass has seat i of a network's cache."""

    def __init__(self, served: Served, limits: Limits) -> None:
        self.network, self.limits = for_sampling(served.network), limits
        self.device = device_of(served.network)
        self.cache: Caches | None = self.network if isinstance(self.network, Caches) else None
        self.seats: list[SequenceRun] = []
        self.states: list[SharedState] = []
        self.arriving: list[SharedState] = []  # they get their seats before the next pass
        self.turn = 0  # the turn of its last call
        self.seconds = 0.0  # total time of its calls since the last that filled something
        # The state of the current pass:
        self._todo: list[range] = []  # parts not yet called
        self._shown: tuple[Tensor, Ask]
        self._answered: dict[SequenceRun, Answer] = {}
        self._unfinished: list[tuple[SharedState, list[Answer]]] = []  # steps with parts still to be made
        self._done: set[SequenceRun] = set()

    @property
    def bytes(self) -> int:
        """The size of the network's cache."""
        return bytes_of(self.cache)

    @property
    def sequences(self) -> list[SequenceRun]:
        return [*self.seats, *(one for shared in self.arriving for one in shared.members)]

    @property
    def standing(self) -> tuple[set[str], int]:
        """Its clients, and the turn of its last call: what decides which batch is called next."""
        return {one.job.client for one in self.sequences}, self.turn

    def call(self) -> list[Outcome]:
        """Make the next network call and return its outcomes. A pass calls every sequence once; batches change between.

        A step that is made in parts takes one such call per part.
        """
        outcomes = [] if self._todo or self._unfinished else self._begin()
        if self._unfinished:
            shared, answers = self._unfinished.pop()
            if any(one.wanted for one in shared.members):
                outcomes += self._filled(shared, answers)
        else:
            self._todo = list(dropwhile(lambda part: not any(self.seats[i].wanted for i in part), self._todo))
            outcomes += self._made(self._todo.pop(0)) if self._todo else []
        self._done |= {one.sequence for one in outcomes if one.tokens is not None or one.error is not None}
        if not self._todo and not self._unfinished:
            # Only now, because a sequence that leaves gives its seat to another.
            for shared in list(self.states):
                self._leave(shared, [one for one in shared.members if one in self._done])
            self._done, self._answered = set(), {}
        return outcomes

    def drop_unwanted(self) -> None:
        """Remove cancelled sequences, but not during a pass; their parts of it are skipped.

        From a state that cannot be divided, all sequences are removed or none.
        """
        self.arriving = [one for one in self.arriving if any(member.wanted for member in one.members)]
        if self._todo or self._unfinished:
            return
        for shared in list(self.states):
            gone = [one for one in shared.members if not one.wanted]
            if shared.joins or len(gone) == len(shared.members):
                self._leave(shared, gone)

    def _begin(self) -> list[Outcome]:
        """Seat new sequences and form groups that share a call; sequences without memory for a seat fail."""
        failed = []
        for newcomers in self.arriving:
            try:
                if self.cache is not None:
                    self.cache.add(len(newcomers.members), newcomers.members[0].length)
            except Exception as error:
                failed += [Outcome(one, 0, error=error) for one in newcomers.members]
                continue
            self.seats += newcomers.members
            self.states.append(newcomers)
        self.arriving = []
        self._todo = list(self._parts())
        if self._todo:
            self._regroup(self._todo)
            for shared in self.states:
                if isinstance(shared.sampler, Ahead):
                    shared.sampler.shares(shared.state, max(map(len, self._todo)))
            self._shown = self._stacked()
        return failed

    def _made(self, part: range) -> list[Outcome]:
        """Call one part, and make the steps of states whose sequences are all answered."""
        x, ask = self._shown
        count = (ask.rows[part.start : part.stop] >= 0).sum(1).tolist()
        for rows, log_mu in self._answers(part, x, ask):
            each: Sequence[Tensor | Exception] = [log_mu]
            if isinstance(log_mu, Tensor):
                each = log_mu.split_with_sizes(count[rows.start - part.start : rows.stop - part.start])
            self._answered |= {self.seats[i]: (rows.start, one) for i, one in zip(rows, each, strict=True)}
        outcomes: list[Outcome] = []
        for shared in [one for one in self.states if self._answered.keys() >= {*one.members}]:
            outcomes += self._filled(shared, [self._answered.pop(one) for one in shared.members])
        return outcomes

    def _leave(self, shared: SharedState, gone: Sequence[SequenceRun]) -> None:
        """In the cache, too, the last sequence takes the seat of one that leaves."""
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
        """Neighbours that share a call: with prompts of similar lengths to read, and room for their outputs."""
        widest = max((one.job.widest for one in self.seats), default=1)
        entries = max((one.job.entries for one in self.seats), default=1)
        logits = max(self.limits.max_logits // max(widest * self.network.vocab_size, 1), 1)
        # With look-ahead, a network that has no way of its own gets one canvas for each guess, and one more.
        known: dict[SequenceRun, int] = {
            one: guesses
            for shared in self.states
            if shared.ask.known is not None
            for one, guesses in zip(shared.members, shared.ask.known.tolist(), strict=True)
        }
        looks_ahead = isinstance(self.network, LooksAhead)

        def read(one: SequenceRun) -> int:
            """The positions that a call reads for a sequence."""
            if self.cache is None or (one in known and not looks_ahead):
                return one.length * (1 + known.get(one, 0))
            return one.unread + entries

        end = 0
        for _, group in groupby(self.seats, lambda one: 0 if self.cache is None else one.unread.bit_length()):
            members = list(group)
            first, end = end, end + len(members)
            most = min(logits, max(self.limits.max_positions // max(map(read, members)), 1))
            yield from (range(i, min(i + most, end)) for i in range(first, end, most))

    def _regroup(self, parts: Sequence[range]) -> None:
        """Join the plans of one part that have the same predictor and draw."""
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
        self.states = [joined(pieces) for pieces in wanted.values()]

    def _stacked(self) -> tuple[Tensor, Ask]:
        """The network's input and the requested rows of every seat; rows are padded with -1, canvases with masks."""
        asks = [shared.ask for shared in self.states]
        width, chains = max(ask.rows.shape[1] for ask in asks), any(ask.known is not None for ask in asks)
        length = max(one.length for one in self.seats)

        def padded(column: Tensor, value: float) -> Tensor:
            column = column if column.ndim > 1 else column.unsqueeze(1)  # a chain of one
            return functional.pad(column, (0, width - column.shape[1]), value=value)

        rows = torch.cat([padded(ask.rows, -1) for ask in asks])
        time = torch.cat([padded(ask.time, 0.0) if chains else ask.time for ask in asks])
        known = [torch.zeros_like(ask.rows[:, 0]) if ask.known is None else ask.known for ask in asks if chains]
        shown = [one.state.x if one.ask.canvas is None else one.ask.canvas for one in self.states]
        x = torch.cat([resized(canvas, length, self.network.mask_id) for canvas in shown])
        seat = {one: i for i, one in enumerate(self.seats)}
        order = torch.tensor([seat[one] for shared in self.states for one in shared.members]).argsort()
        return x[upload(order, x.device)], Ask(rows, time, known=torch.cat(known) if chains else None).take(order)

    def _answers(self, part: range, x: Tensor, ask: Ask) -> Iterator[tuple[range, Tensor | Exception]]:
        """log mu of the requested rows of a part.

        A call that fails is repeated for each of its sequences separately, so that one bad sequence does not make the
        others fail. Nothing has been drawn by then.
        """
        here, index = slice(part.start, part.stop), torch.arange(part.start, part.stop)
        allowed = [one.job.work.allowed for one in self.seats[here]]
        lengths = [one.length for one in self.seats[here]]
        seats = None if self.cache is None else here
        padded = torch.tensor(lengths) if min(lengths) < max(lengths) else None
        try:
            # On an accelerator nothing is read here: errors are found when the rows are drawn.
            with inference(self.network), Faults().collected() if waits(x.device) else nullcontext():
                outcome: Tensor | Exception = answer(
                    self.network, x[here, : max(lengths)], ask.take(index), allowed, seats, padded, self.device
                )
        except Exception as error:
            outcome = error
        if isinstance(outcome, Exception) and len(part) > 1:
            for row in part:
                yield from self._answers(range(row, row + 1), x, ask)
        else:
            yield part, outcome

    def _filled(self, shared: SharedState, answers: Sequence[Answer]) -> list[Outcome]:
        """Draw the tokens. If that fails, each plan is tried separately; a request with one state fails as a whole."""
        members, before, ask = shared.members, shared.state.snapshot(), shared.ask
        try:
            step = shared.fill([log_mu for _, log_mu in answers])
        except Exception as error:
            shared.state, shared.ask, shared.filling = before, ask, None  # what raises may have changed part of it
            if not shared.joins or len(members) == 1:
                return [Outcome(one, call, error=error) for one, (call, _) in zip(members, answers, strict=True)]
            alone = [shared.part([i]) for i in range(len(members))]
            self.states.remove(shared)
            self.states += alone
            return [self._filled(one, [outcome])[0] for one, outcome in zip(alone, answers, strict=True)]
        if step is None:
            self._unfinished.append((shared, list(answers)))
            return []
        for one, draws in zip(members, step.draws.tolist(), strict=True):
            one.made, one.ncs = one.made + 1, one.ncs + draws
        if (particles := step.particles) is not None:
            pairs = zip(particles.log_weights.tolist(), particles.effective.tolist(), strict=True)
            for one, (log_weight, effective) in zip(members, pairs, strict=True):
                one.log_weight, one.effective = log_weight, min(one.effective, effective)
        seen = changes(step) if any(one.job.watched for one in members) else [None] * len(members)
        if particles is not None:
            histories = [members[parent].history for parent in particles.parents.tolist()]
            for one, change, before_it in zip(members, seen, histories, strict=True):
                one.history = () if change is None or not one.job.work.weighed else (*before_it, change)
        outcomes = []
        for i, (one, going) in enumerate(zip(members, shared.going, strict=True)):
            change, (call, log_mu) = seen[i], answers[i]
            if change is not None and one.job.top and isinstance(log_mu, Tensor):
                change = likeliest(change, one.job.top, ask.rows[i], shared.state.task.pick.shaped(log_mu))
            tokens = None if going else shared.state.x[i, : one.length].tolist()
            outcomes.append(Outcome(one, call, change, tokens))
        return outcomes
