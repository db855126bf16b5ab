"""Live sequences that share network calls, each at its own step.

A masked network sees every position of its canvas, so only sequences of the same length can share a call without
changing each other. Sequences that ask for very different numbers of rows do not share one either: the fewer would be
padded to the more. So there is a lane for each model, length and bucket of widths.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unmask.plan import Ask, Plan
from unmask.predict import Prediction, Predictor, first_order, log_mean
from unmask.protocol import Caches, device_of, for_sampling, inference, logits_at, suppress_mask
from unmask.sampling import Step, _step, apply
from unmask.serve.engine.work import Filling, Served


@dataclass(frozen=True)
class Entry:
    """What one call did to one sequence."""

    positions: list[int]
    tokens: list[int]
    probabilities: list[float]
    tau: list[float]
    drawn: list[bool]
    hidden: list[int] | None


@dataclass(frozen=True)
class Outcome:
    """A sequence after a call: what was filled, if somebody watches, or what went wrong."""

    filling: Filling
    call: int  # the first row of the network call that it was part of
    entry: Entry | None = None
    error: Exception | None = None


class Lane:
    """A batch that sequences join and leave between any two calls."""

    def __init__(self, served: Served, length: int, max_logits: int) -> None:
        self.served, self.max_logits = served, max_logits
        self.rows: list[Filling] = []
        self.x = torch.empty(0, length, dtype=torch.int64, device=device_of(served.model.denoiser))
        network = served.network
        self.seats: Caches | None = for_sampling(network) if isinstance(network, Caches) else None
        self._joined: list[tuple[Predictor, Tensor, Plan]] | None = None

    def join(self, filling: Filling) -> None:
        if self.seats is not None:
            self.seats.add(1, self.x.shape[1])
        self.rows.append(filling)
        self.x = torch.cat((self.x, filling.canvas.unsqueeze(0)))
        self._joined = None

    def leave(self, filling: Filling) -> list[int]:
        """The tokens of a sequence that goes; the last one takes its row."""
        row, last = self.rows.index(filling), len(self.rows) - 1
        tokens: list[int] = self.x[row].tolist()
        self.rows[row], self.x[row] = self.rows[last], self.x[last]
        self.rows.pop()
        self.x = self.x[:last]
        self._joined = None
        if self.seats is not None:
            self.seats.leave(row)
        return tokens

    def call(self) -> list[Outcome]:
        """One network call for every sequence, shared as far as it can be.

        A call that fails is made again for each of its sequences by itself, so that one that cannot be served does not
        take the others with it. Nothing has been drawn by then.
        """
        ask, ahead = self._ask()
        width = ask.positions.shape[1] + (0 if ahead is None else ahead.positions.shape[1])
        outcomes: list[Outcome] = []
        for part in self._parts(width):
            try:
                outcomes += self._call(part, ask, ahead)
            except Exception as error:
                alone = len(part) == 1
                outcomes += [Outcome(self.rows[row], row, error=error) if alone else self._by_itself(row, ask, ahead)
                             for row in range(part.start, part.stop)]  # fmt: skip
        return outcomes

    def _by_itself(self, row: int, ask: Ask, ahead: Ask | None) -> Outcome:
        try:
            return self._call(range(row, row + 1), ask, ahead)[0]
        except Exception as error:
            return Outcome(self.rows[row], row, error=error)

    def _parts(self, width: int) -> Iterator[range]:
        """Neighbours that share a call: with prompts of one length to read, and logits that there is room for."""
        most = max(self.max_logits // max(width * self.served.model.denoiser.vocab_size, 1), 1)
        end = 0
        for _, group in groupby(self.rows, lambda filling: filling.unread if self.seats is not None else 0):
            first, end = end, end + len(list(group))
            yield from (range(i, min(i + most, end)) for i in range(first, end, most))

    def _call(self, part: range, ask: Ask, ahead: Ask | None) -> list[Outcome]:
        """Plan, predict, draw: ``unmask.sample``'s loop body, with every sequence at its own step."""
        here = slice(part.start, part.stop)
        rows, x, ask = self.rows[here], self.x[here], _of(ask, here)
        ahead = None if ahead is None else _of(ahead, here)
        asked = ask.positions if ahead is None else torch.cat((ask.positions, ahead.positions), 1)
        time = torch.tensor([filling.call_time[filling.step] for filling in rows], dtype=torch.float64)
        logits = _allowed(rows, asked, self._logits(here, time.to(x.device), asked.clamp(min=0).to(x.device)))
        row, column = ask.drawn.nonzero(as_tuple=True)
        log_mu, count = log_mean(logits[row, column]), ask.drawn.sum(1).tolist()
        spans = _spans(count)
        weights = _combined(rows, spans, log_mu, time, ask.tau[row, column].to(x.device))
        before = [_before(filling, i, ahead, logits, ask.positions.shape[1], time) for i, filling in enumerate(rows)]
        ids, probabilities, errors = _picked(rows, spans, weights)
        step = _step(ask, x, row, column, ids, probabilities)
        apply(step, x, self.served.model.denoiser.mask_id)
        for filling, drawn, last in zip(rows, count, before, strict=True):
            filling.step, filling.ncs, filling.before = filling.step + 1, filling.ncs + drawn, last
        seen = entries(step) if any(filling.watched for filling in rows) else [None] * len(rows)
        return [Outcome(filling, part.start, seen[i], errors.get(i)) for i, filling in enumerate(rows)]

    def _logits(self, here: slice, time: Tensor, rows: Tensor) -> Tensor:
        network, x = self.served.network, self.x[here]
        with inference(network):
            if self.seats is None:
                return logits_at(network, x, time, rows)
            return suppress_mask(network, self.seats(x, time, rows, seats=here))

    def _ask(self) -> tuple[Ask, Ask | None]:
        """This call's part of the plans, and the next one's where a predictor looks ahead."""
        if self._joined is None:
            self._joined = _by_predictor(self.rows)
        now = torch.tensor([filling.step for filling in self.rows])
        asks = [(where, plan.ask(now[where])) for _, where, plan in self._joined]
        ahead = [(where, plan.ask(now[where] + 1)) for predict, where, plan in self._joined if predict.lookahead]
        return stacked(asks, len(now)), stacked(ahead, len(now)) if ahead else None


def together(plans: Sequence[Plan]) -> Plan:
    """The plans of single sequences as one plan: shorter ones get steps in which nothing happens."""
    most = max(plan.call_time.shape[1] for plan in plans)
    call_time = [functional.pad(plan.call_time, (0, most - plan.call_time.shape[1])) for plan in plans]
    tentative = [plan.tentative for plan in plans if plan.tentative is not None]
    assert len(tentative) in (0, len(plans)), "one predictor, one kind of plan"
    order, times, step = (torch.cat([getattr(plan, name) for plan in plans]) for name in ("order", "times", "step"))
    return Plan(order, times, step, torch.cat(call_time), torch.cat(tentative) if tentative else None)


def stacked(asks: Sequence[tuple[Tensor, Ask]], count: int) -> Ask:
    """Asks of some of ``count`` rows each, as one: pads are -1."""
    if len(asks) == 1 and len(asks[0][0]) == count:
        return asks[0][1]
    width = max(ask.positions.shape[1] for _, ask in asks)
    hides = max((ask.hidden.shape[1] for _, ask in asks if ask.hidden is not None), default=0)
    positions, tau = torch.full((count, width), -1), torch.zeros(count, width, dtype=torch.float64)
    drawn, hidden = torch.zeros(count, width, dtype=torch.bool), torch.full((count, hides), -1)
    for where, ask in asks:
        here = ask.positions.shape[1]
        positions[where, :here], tau[where, :here], drawn[where, :here] = ask.positions, ask.tau, ask.drawn
        if ask.hidden is not None:
            hidden[where, : ask.hidden.shape[1]] = ask.hidden
    return Ask(positions, tau, drawn, hidden if hides else None)


def _of(ask: Ask, rows: slice) -> Ask:
    """What some of the sequences ask."""
    hidden = None if ask.hidden is None else ask.hidden[rows]
    return Ask(ask.positions[rows], ask.tau[rows], ask.drawn[rows], hidden)


def entries(step: Step) -> list[Entry]:
    """A Step as what it did to each of its sequences, without the pads."""
    columns = (step.positions, step.tokens, step.probabilities, step.tau, step.drawn)
    found = []
    for i, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        cells = [cell for cell in zip(*row, strict=True) if cell[0] >= 0]
        # A list for each column, also where there is no cell.
        positions, tokens, probabilities, tau, drawn = map(list, zip(*cells, strict=True)) if cells else ([],) * 5
        hidden = None if step.hidden is None else [p for p in step.hidden[i].tolist() if p >= 0]
        found.append(Entry(positions, tokens, probabilities, tau, drawn, hidden or None))
    return found


def _by_predictor(rows: Sequence[Filling]) -> list[tuple[Predictor, Tensor, Plan]]:
    groups: dict[Predictor, list[int]] = defaultdict(list)
    for i, filling in enumerate(rows):
        groups[filling.predict].append(i)
    return [(predict, torch.tensor(i), together([rows[k].plan for k in i])) for predict, i in groups.items()]


def _spans(count: Sequence[int]) -> list[slice]:
    """Where each sequence's draws are among all."""
    ends = torch.tensor([0, *count]).cumsum(0).tolist()
    return [slice(first, end) for first, end in pairwise(ends)]


def _allowed(rows: Sequence[Filling], asked: Tensor, logits: Tensor) -> Tensor:
    """-inf for what may not fill a position whose token has to begin with a space."""
    for i, filling in enumerate(rows):
        if not filling.spaced or filling.allowed is None:
            continue
        for j, position in enumerate(asked[i].tolist()):
            if position in filling.spaced:
                logits = logits.clone()
                logits[i, j].masked_fill_(~filling.allowed, -torch.inf)
    return logits


def _combined(rows: Sequence[Filling], spans: Sequence[slice], log_mu: Tensor, time: Tensor, tau: Tensor) -> Tensor:
    """Each sequence's predictor over what the network said."""
    if all(filling.predict.combine is first_order.combine for filling in rows):
        return log_mu
    weights = log_mu.clone()
    for filling, here, t in zip(rows, spans, time, strict=True):
        now = Prediction(log_mu[here], t.to(log_mu.device).expand(len(log_mu[here])))
        weights[here] = filling.predict.combine(now, filling.before, tau[here])
    return weights


def _before(
    filling: Filling, row: int, ahead: Ask | None, logits: Tensor, width: int, time: Tensor
) -> Prediction | None:
    """What the network says now of the rows of the next call."""
    if ahead is None or not filling.predict.lookahead:
        return None
    column = ahead.drawn[row].nonzero().squeeze(1)
    log_mu = log_mean(logits[row, width + column])
    return Prediction(log_mu, time[row].to(log_mu.device).expand(len(log_mu)))


def _picked(
    rows: Sequence[Filling], spans: Sequence[slice], weights: Tensor
) -> tuple[Tensor, Tensor, dict[int, Exception]]:
    """Ids and probabilities [M], each sequence's in its own style from its own generator; and who cannot be drawn for.

    A draw refuses weights before it uses a generator, so those that were drawn for together can be drawn for again.
    """
    ids = torch.zeros(len(weights), dtype=torch.int64, device=weights.device)
    probabilities = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
    errors: dict[int, Exception] = {}
    styles: dict[Any, list[int]] = defaultdict(list)
    for i, filling in enumerate(rows):
        styles[filling.style].append(i)

    def pick(members: list[int]) -> None:
        style = rows[members[0]].style
        where = torch.cat([torch.arange(spans[i].start, spans[i].stop) for i in members])
        random = [rows[i].random for i in members for _ in range(spans[i].stop - spans[i].start)]
        ids[where], probabilities[where] = style.pick(weights[where.to(weights.device)], random)

    for members in styles.values():
        try:
            pick(members)
        except Exception:
            for i in members:
                try:
                    pick([i])
                except Exception as error:
                    errors[i] = error
    return ids, probabilities, errors
