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
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from unmask.noise import KeptNoise
from unmask.plan import Plan, Planner, first_hitting
from unmask.sampler import Ask, State, Step, Task

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
FIRST = 2
MEMORY = 0.98  # what a guess counts less than the next one
SLOWER, FASTER = 0.25, 0.75  # how much a new pass counts in what is known of its width's seconds
TRIES = 0.01  # the part of the time that may be lost by trying other widths


@dataclass
class Width:
    """How far to look ahead: a number, or the width that promises the most tokens a second.

    What a pass settles follows from the part q of the guesses that come out right. What a pass costs is measured at the
    widths that were used, and taken to be linear between and beyond them; so most widths are judged without being
    tried. None is chosen that is more than twice as wide as any before. Now and then a neighbour of the best is tried,
    so that costs are known where they matter. The first pass of a width does not count: its guesses are as few, or as
    many, as the width before has left. The choice changes the time of a run and never its tokens.
    """

    fixed: int | None = None
    now: int = FIRST
    right: float = 4.0
    wrong: float = 1.0  # q = 4/5 to begin with
    seconds: dict[int, float] = field(default_factory=dict)  # of a pass, by width
    last: int = 0  # the width of the last pass
    budget: float = 0.0  # seconds
    wider: bool = True  # which neighbour is tried next
    most: int = WIDTHS[-1]  # that it may choose

    def __post_init__(self) -> None:
        self.now = self.fixed or self.now

    @property
    def next(self) -> int:
        """How many tokens the next pass looks at."""
        return self.fixed or min(self.now, self.most)

    def passed(self, width: int, right: int, wrong: int, seconds: float) -> None:
        """A pass of this width took so many seconds; so many guesses came out right, before the first wrong ones."""
        if self.fixed is not None:
            return
        faded = MEMORY ** (right + wrong)
        self.right, self.wrong = faded * self.right + right, faded * self.wrong + wrong
        again, self.last = width == self.last, width
        if not again or width != self.next:  # the end of a sequence has no room for the whole width
            return
        expected = self.cost(width) if self.seconds else seconds
        seconds = min(seconds, 2 * expected)  # whatever else the machine did
        news = 1.0 if width not in self.seconds else FASTER if seconds < expected else SLOWER
        self.seconds[width] = expected + news * (seconds - expected)
        self.budget = min(self.budget + TRIES * seconds, 2 * seconds)
        self.now = self._chosen()

    def _chosen(self) -> int:
        widest = max(self.seconds)
        if len(self.seconds) == 1:
            return 2 * widest
        q = self.right / (self.right + self.wrong)
        known = [w for w in WIDTHS if w <= 2 * widest]
        best = max(known, key=lambda w: settled(w, q) / self.cost(w))
        at = WIDTHS.index(best) + (1 if self.wider else -1)
        if not 0 <= at < len(known):
            self.wider = not self.wider
            return best
        other = WIDTHS[at]
        loss = 2 * (self.cost(other) - self.cost(best) * settled(other, q) / settled(best, q))
        if loss > self.budget:
            return best
        self.budget, self.wider = self.budget - loss, not self.wider
        return other

    def cost(self, width: int) -> float:
        """Seconds of a pass: linear between the widths that were used and beyond them, and never less for more."""
        used = sorted(self.seconds)
        # What a wider pass took, a narrower one takes at most: whatever made it slow is over.
        seconds = {low: min(self.seconds[high] for high in used[i:]) for i, low in enumerate(used)}
        if len(used) == 1:
            return seconds[used[0]]
        at = min(max(bisect_left(used, width), 1), len(used) - 1)
        low, high = used[at - 1], used[at]
        slope = (seconds[high] - seconds[low]) / (high - low)
        line = seconds[low] + slope * (width - low)
        if width < low:
            return max(line, seconds[low] * width / low)
        return max(line, seconds[high]) if width > high else line


def seconds_now(x: Tensor) -> float:
    """A clock for passes: on a CPU the time that this thread was running, whatever else the machine did meanwhile."""
    return clock.thread_time() if x.device.type == "cpu" else clock.perf_counter()


def shared_width(sequences: int) -> int:
    """The most tokens to look ahead for each of so many sequences of a pass: the widest window, divided among them.

    One sequence's pass waits for the weights, and rows are cheap. Those of many sequences cost what they compute.
    """
    return max(1, WIDTHS[-1] // max(sequences, 1))


def settled(width: int, q: float) -> float:
    """The mean number of tokens that a pass settles, if each guess is right with probability q.

    With k guesses these are s = 1 + q + .. + q^k, and the other rows are the guesses of the next pass: k = width - s.
    """
    q = min(q, 1 - 1e-9)
    s = min((1 - q**width) / (1 - q), (width + 1) / 2)
    for _ in range(6):  # half a step at a time: as it stands it may swing, as do passes with many guesses and with few
        s = (s + (1 - q ** (width - s + 1)) / (1 - q)) / 2
    return s


@dataclass
class AheadState(State):
    """Sequences of which some tokens are settled and some are guessed."""

    plan: Plan
    settled: Tensor  # int64 [B]: tokens that are final, the first ones of the order
    guesses: Tensor  # int64 [B, L]: by slot of the order, -1 where there is none
    noise: KeptNoise  # [B, L]
    width: Width


@dataclass(frozen=True, kw_only=True)
class AheadAsk(Ask):
    """The next W positions of the order, and when they were asked for."""

    slots: Tensor  # int64 [B, W]: of the order
    guesses: Tensor  # int64 [B, W]: -1 where there is none
    started: float


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

    def shares(self, state: AheadState, ask: AheadAsk, sequences: int) -> AheadAsk:
        """The ask of a pass that begins now and is for so many sequences; if they are many, auto's next one is narrow.

        For who asks long before the network is called, or calls it for several runs at once.
        """
        state.width.most = shared_width(sequences)
        return replace(ask, started=seconds_now(state.x))

    def ask(self, state: AheadState) -> AheadAsk:
        """The next W positions of the order, on a canvas that shows the guesses."""
        started, plan = seconds_now(state.x), state.plan
        left = plan.holes - state.settled
        width = min(state.width.next, int(left.max())) if len(left) else 0
        slots = state.settled.unsqueeze(1) + torch.arange(width)
        real = slots < plan.holes.unsqueeze(1)
        inside = torch.where(real, slots, 0)
        rows = torch.where(real, plan.order.gather(1, inside), -1)
        guesses = torch.where(real, state.guesses.gather(1, inside), -1)
        # A step is one slot, so that slot s is called at the time of step s.
        time = torch.where(real, plan.call_time.gather(1, inside), 0.0) if width else torch.zeros(rows.shape)
        if width == 1:  # no chain: a call as any other
            return AheadAsk(rows, time.squeeze(1), slots=slots, guesses=guesses, started=started)
        # The last row's guess is not shown: no row is behind it.
        known = torch.minimum((guesses >= 0).sum(1), (left - 1).clamp(0, max(width - 1, 0)))
        row, column = (torch.arange(width) < known.unsqueeze(1)).nonzero(as_tuple=True)
        canvas = state.x.clone()
        canvas[row, rows[row, column]] = guesses[row, column].to(canvas.device)
        return AheadAsk(rows, time, canvas, known, slots=slots, guesses=guesses, started=started)

    def fill(self, state: AheadState, ask: AheadAsk, log_mu: Tensor) -> Step:
        """Settle the tokens up to and including the first that differs from its guess; the rest are new guesses."""
        rows, guesses, slots, real = ask.rows, ask.guesses, ask.slots, ask.rows >= 0
        row, column = real.nonzero(as_tuple=True)
        ids, certain = torch.full_like(rows, -1), torch.zeros(rows.shape, dtype=torch.float64)
        picked, probabilities = state.task.pick(log_mu, state.noise[row, rows[row, column]], normalised=True)
        ids[row, column], certain[row, column] = picked.cpu(), probabilities.cpu()
        same = (ids == guesses) & real
        run = same.long().cumprod(1).sum(1)
        count = torch.minimum(run + 1, real.sum(1))
        settles = torch.arange(rows.shape[1]) < count.unsqueeze(1)
        state.guesses[row, slots[row, column]] = ids[row, column]
        state.noise.forget(torch.where(settles, rows, -1))
        state.settled = state.settled + count
        wrong = int((settles & (guesses >= 0) & ~same).sum())
        state.width.passed(rows.shape[1], int(run.sum()), wrong, seconds_now(state.x) - ask.started)
        kept, later = settles[:, : int(count.max())], real & ~settles
        most = kept.shape[1]
        tau = state.plan.times.gather(1, slots[:, :most].clamp(max=state.plan.times.shape[1] - 1))
        return Step(
            torch.arange(len(rows)),
            torch.where(kept, rows[:, :most], -1),
            torch.where(kept, ids[:, :most], -1),
            torch.where(kept, certain[:, :most], 0.0),
            torch.where(kept, tau, 0.0),
            kept,
            real.sum(1),
            guessed=torch.stack((torch.where(later, rows, -1), torch.where(later, ids, -1)), -1),
            corrected=((guesses >= 0) & ~same).sum(1),
        )
