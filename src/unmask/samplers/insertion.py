"""Sampling by insertion: sequences whose lengths are drawn with them. The process is that of ``unmask.insertion``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unmask.insertion import canvases, log_gaps, odds_of
from unmask.noise import Noise
from unmask.sampler import Ask, State, Step, Task, packed


@dataclass
class InsertionState(State):
    """Growing strings. Each slot has two events: first it is decided, later it is unmasked."""

    events: Tensor  # int64 [B, 2 N]: slots in the order of their events, each twice
    times: Tensor  # float64 [B, 2 N]: 1 minus the events' times, so that it decreases as in every plan
    at: Tensor  # int64 [B]: the next event
    slots: Tensor  # int64 [B, N]: the slot of each token of the string
    size: Tensor  # int64 [B]: tokens of the string
    decided: Tensor  # int64 [B]
    places: Noise  # [B, N]: of the decisions, by slot
    tokens: Noise  # [B, N]: of the tokens, by slot
    shown: Tensor  # int64 [B, N]: x on the CPU

    @property
    def slot(self) -> Tensor:
        """The slot of the next event: int64 [B], -1 after the last."""
        there = self.at < self.events.shape[1]
        events = self.events.gather(1, torch.where(there, self.at, 0).unsqueeze(1)).squeeze(1)
        return torch.where(there, events, -1)

    @property
    def place(self) -> Tensor:
        """The position of that slot's token in the string, int64 [B]; -1 if it has none."""
        position = torch.arange(self.slots.shape[1])
        here = (self.slots == self.slot.unsqueeze(1)) & (position < self.size.unsqueeze(1))
        return torch.where(here.any(1), here.long().argmax(1), -1)

    @property
    def first(self) -> Tensor:
        """Whether the next event is a decision, not an unmasking: bool [B]."""
        before = torch.arange(self.events.shape[1]) < self.at.unsqueeze(1)
        return ~((self.events == self.slot.unsqueeze(1)) & before).any(1) & (self.slot >= 0)


@dataclass(frozen=True)
class InsertionSampler:
    """Sequences with at most as many tokens as the canvas has positions, followed by EMPTY, mask_id - 2.

    It takes one network call for each position of the canvas and one for each token.
    """

    process: ClassVar[str] = "insertion"

    def begin(self, canvas: Tensor, task: Task) -> InsertionState:
        size, slots = canvas.shape
        if not slots or bool((canvas != task.mask_id).any()):
            raise ValueError("insertion begins with an empty string: its canvas must be masked, and have positions")
        if task.steps is not None:
            raise ValueError(f"steps={task.steps}: insertion has one decision or token per call, leave steps out")
        if task.pick.penalises or task.pick.logit_bias:
            raise ValueError("insertion takes no bias and no penalties")
        u = torch.stack([task.streams.at(f"slot {k}", slots).uniform() for k in ("decided", "unmasked")], 2)
        times, order = u.flatten(1).sort(1)
        zeros = torch.zeros(size, dtype=torch.int64)
        return InsertionState(
            task,
            torch.full_like(canvas, task.mask_id - 1),
            torch.full((size,), 2 * slots),
            order // 2,
            1 - times,
            zeros,
            torch.full((size, slots), -1),
            zeros.clone(),
            zeros.clone(),
            task.streams.at("place", slots),
            task.streams.at("token", slots),
            torch.full(canvas.shape, task.mask_id - 1),
        )

    def ask(self, state: InsertionState) -> Ask:
        """All gaps of the string for a decision, the mask for an unmasking; a phantom is not unmasked."""
        while bool((idle := (state.slot >= 0) & ~state.first & (state.place < 0)).any()):
            state.at = state.at + idle.long()
        position, going = torch.arange(state.slots.shape[1]), (state.slot >= 0).unsqueeze(1)
        gaps = state.first.unsqueeze(1) & (position <= state.size.unsqueeze(1))
        time = state.times.gather(1, state.at.clamp(max=state.times.shape[1] - 1).unsqueeze(1)).squeeze(1)
        return Ask(packed(going & (gaps | (position == state.place.unsqueeze(1)))), time)

    def fill(self, state: InsertionState, ask: Ask, log_mu: Tensor) -> Step:
        """A mask in a gap or none, for those that decide; a token for the others."""
        real, mask_id, rows = ask.rows >= 0, state.task.mask_id, torch.arange(len(ask.rows))
        logits = torch.full((*real.shape, log_mu.shape[1]), -torch.inf, dtype=torch.float64)
        logits[real] = log_mu.cpu()
        first, slot, place = state.first, state.slot, state.place
        x, drawn = state.shown.clone(), torch.zeros(state.x.shape, dtype=torch.bool)
        certain = torch.ones(state.x.shape, dtype=torch.float64)
        if bool(first.any()):
            gaps, none = log_gaps(odds_of(logits[first]), state.size[first])
            weights, noise = torch.cat((gaps, none.unsqueeze(1)), 1), state.places[rows[first], slot[first]]
            gap = state.task.pick.draw(weights, noise)
            self._insert(state, x, rows[first], slot[first], gap, gaps.shape[1])
        if bool((~first).any()):
            row, at = rows[~first], place[~first]
            ids, probabilities = state.task.pick(logits[~first, 0, :-2], state.tokens[row, slot[~first]])
            x[row, at], drawn[row, at], certain[row, at] = ids, True, probabilities
        state.at, state.decided = state.at + 1, state.decided + first.long()
        x = state.shown = canvases(x, state.size, state.decided, mask_id)
        positions = torch.arange(x.shape[1]).expand_as(x)
        shown = x != mask_id
        return Step(
            rows,
            torch.where(shown, positions, -1),
            torch.where(shown, x, -1),
            torch.where(shown, certain, 0.0),
            torch.where(shown, ask.time.unsqueeze(1), 0.0),
            drawn,
            torch.ones(len(rows), dtype=torch.int64),
            hidden=torch.where(shown, -1, positions),
        )

    def _insert(self, state: InsertionState, x: Tensor, row: Tensor, slot: Tensor, gap: Tensor, none: int) -> None:
        """Insert a mask before position ``gap``, and shift the rest; ``none`` means no gap."""
        row, slot, gap = row[gap < none], slot[gap < none], gap[gap < none]
        position = torch.arange(x.shape[1])
        source = position - (position > gap.unsqueeze(1)).long()
        here = position == gap.unsqueeze(1)
        x[row] = torch.where(here, state.task.mask_id, x[row].gather(1, source))
        state.slots[row] = torch.where(here, slot.unsqueeze(1), state.slots[row].gather(1, source))
        state.size[row] += 1
