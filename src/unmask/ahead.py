"""Exact sampling with several tokens per network pass: the very tokens that one call per token gives.

With the order sigma and every position's noise drawn before the network runs, a sequence is the fixed point of

    x_sigma(j) = draw(noise_sigma(j), mu(. | x_sigma(<j)))        j = 1 .. L

Guess the next W tokens of the order and ask for all their conditionals at once, each given the settled tokens and the
guesses before it. The first token that comes out is right, because nothing before it is a guess; where the guess was
the same, so is the second; and so on up to and including the first that differs. These settle, and what came out behind
them are the next guesses. Every pass settles at least one token, so there are never more passes than tokens.

In a random order few passes are enough: tokens that come early are far apart and hardly depend on each other. From left
to right each token depends on the one before, and guesses are rarely right. The fixed point of a fixed noise is that of
predictive sampling (Wiggers and Hoogeboom, ICML 2020).

A network with a cache along the order (``protocol.LooksAhead``) computes W rows in one pass. Any other is shown a
canvas for each guess: that saves rounds, which is latency on an accelerator, not operations.
"""

from __future__ import annotations

import time as clock
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from unmask.noise import KeptNoise
from unmask.plan import Plan, Planner, first_hitting
from unmask.sampler import Ask, State, Step, Task

WIDEST = 64
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, WIDEST)
BETWEEN, TRIES = 12, 3  # passes between two tries of another width, and passes of a try
FADING = 0.8  # what an older pass counts less than the next


@dataclass
class Speed:
    """Settled tokens and seconds of the passes so far at one width, the older ones fading."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float, keep: float) -> None:
        self.tokens, self.seconds = keep * self.tokens + tokens, keep * self.seconds + seconds

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else float("inf")


@dataclass
class Width:
    """How far to look ahead: a number, or the width that has settled the most tokens a second.

    It climbs: every few passes a neighbouring width is tried, and taken if it was faster. The choice changes the time
    of a run and never its tokens.
    """

    fixed: int | None
    speeds: dict[int, Speed] = field(default_factory=dict)
    best: int = 4
    trying: int | None = None
    since: int = 0  # passes since the last try
    up: bool = True

    @property
    def now(self) -> int:
        return self.fixed or self.trying or self.best

    def passed(self, width: int, tokens: int, seconds: float) -> None:
        """A pass of this width settled so many tokens in so many seconds."""
        if self.fixed is not None or width != self.now:  # the end of a sequence has no room for the whole width
            return
        self.speeds.setdefault(width, Speed()).add(tokens, seconds, FADING)
        self.since += 1
        if self.trying is not None:
            if self.since >= TRIES:
                if self.speeds[self.trying].rate > self.speeds[self.best].rate:
                    self.best = self.trying
                else:
                    self.up = not self.up
                self.trying, self.since = None, 0
        elif self.since >= BETWEEN or len(self.speeds) == 1:
            at = WIDTHS.index(self.best) + (1 if self.up else -1)
            if not 0 <= at < len(WIDTHS):
                self.up, at = not self.up, WIDTHS.index(self.best) + (-1 if self.up else 1)
            self.trying, self.since = WIDTHS[at], 0
            self.speeds.pop(self.trying, None)  # what it did earlier in the run is not what it does now


@dataclass
class AheadState(State):
    """Sequences of which some tokens are settled and some are guessed."""

    plan: Plan
    settled: Tensor  # int64 [B]: tokens that are final, the first ones of the order
    guesses: Tensor  # int64 [B, L]: by slot of the order, -1 where there is none
    noise: KeptNoise  # [B, L]
    width: Width
    asked_at: float = 0.0


@dataclass(frozen=True)
class Ahead:
    """A plan that fills one token per step, several steps per network pass. window: how many, or "auto"."""

    plan: Planner = first_hitting
    window: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        window = self.window
        if window != "auto" and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise ValueError(f"the window must be a whole number of at least 1, or 'auto', got {self.window!r}")

    def begin(self, canvas: Tensor, task: Task) -> AheadState:
        whole = self.plan(canvas, mask_id=task.mask_id, streams=task.streams, schedule=task.schedule, steps=task.steps)
        if whole.tentative is not None or bool((whole.calls != whole.holes).any()):
            raise ValueError(
                "looking ahead is for plans that fill one token per step, such as plan.first_hitting, "
                "without predict.correct"
            )
        noise = KeptNoise(task.streams.at("token", canvas.shape[1]).keys)
        guesses = torch.full(canvas.shape, -1, dtype=torch.int64)
        width = Width(None if self.window == "auto" else self.window)
        settled = torch.zeros(len(canvas), dtype=torch.int64)
        return AheadState(task, canvas.clone(), whole.calls, whole, settled, guesses, noise, width)

    def ask(self, state: AheadState) -> Ask:
        """The next W positions of the order, on a canvas that shows the guesses."""
        left = state.plan.holes - state.settled
        width = min(state.width.now, int(left.max())) if len(left) else 0
        slots = state.settled.unsqueeze(1) + torch.arange(width)
        real = slots < state.plan.holes.unsqueeze(1)
        inside = torch.where(real, slots, 0)
        rows = torch.where(real, state.plan.order.gather(1, inside), -1)
        guesses = torch.where(real, state.guesses.gather(1, inside), -1)
        known = (guesses >= 0).sum(1)
        canvas = state.x.clone()
        row, column = (guesses >= 0).nonzero(as_tuple=True)
        canvas[row, rows[row, column]] = guesses[row, column].to(canvas.device)
        time = torch.where(real, state.plan.times.gather(1, inside), 0.0)
        state.asked_at = clock.perf_counter()
        return Ask(rows, time, canvas, known)

    def fill(self, state: AheadState, ask: Ask, log_mu: Tensor) -> Step:
        """Settle the tokens up to and including the first that differs from its guess; the rest are new guesses."""
        rows, real = ask.rows, ask.rows >= 0
        row, column = real.nonzero(as_tuple=True)
        ids, certain = torch.full_like(rows, -1), torch.zeros(rows.shape, dtype=torch.float64)
        picked, probabilities = state.task.pick(log_mu, state.noise[row, rows[row, column]], normalised=True)
        ids[row, column], certain[row, column] = picked.cpu(), probabilities.cpu()
        slots = state.settled.unsqueeze(1) + torch.arange(rows.shape[1])
        inside = slots.clamp(max=state.guesses.shape[1] - 1)
        guesses = torch.where(real, state.guesses.gather(1, inside), -1)
        same = (ids == guesses) & real
        count = torch.minimum(same.long().cumprod(1).sum(1) + 1, real.sum(1))
        settles = torch.arange(rows.shape[1]) < count.unsqueeze(1)
        state.guesses[row, slots[row, column]] = ids[row, column]
        state.noise.forget(torch.where(settles, rows, -1))
        state.settled = state.settled + count
        state.width.passed(rows.shape[1], int(count.sum()), clock.perf_counter() - state.asked_at)
        width = int(count.max())
        kept, later = settles[:, :width], real & ~settles
        return Step(
            torch.arange(len(rows)), torch.where(kept, rows[:, :width], -1), torch.where(kept, ids[:, :width], -1),
            torch.where(kept, certain[:, :width], 0.0), torch.where(kept, ask.time[:, :width], 0.0), kept, real.sum(1),
            guessed=torch.stack((torch.where(later, rows, -1), torch.where(later, ids, -1)), -1),
            corrected=((guesses >= 0) & ~same).sum(1),
        )  # fmt: skip
