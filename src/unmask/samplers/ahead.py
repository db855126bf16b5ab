"""Exact sampling with several tokens per network pass: the same tokens as with one call per token.

With the order sigma and every position's noise drawn before the network runs, a sequence is the fixed point of

    x_sigma(j) = draw(noise_sigma(j), mu(. | x_sigma(<j)))        j = 1 .. L

Guess the next W tokens of the order and compute all their conditionals at once, each given the settled tokens and the
guesses before it. The first resulting token is right, because no guess precedes it; if it equals its guess, so is the
second; and so on, up to and including the first that differs. These settle, and the results after them are the next
guesses. Every pass settles at least one token, so there are never more passes than tokens.

In a random order a few passes are enough: early tokens are far apart and hardly depend on each other. From left to
right each token depends on the one before, and guesses are rarely right. This fixed point for fixed noise is that of
predictive sampling (Wiggers and Hoogeboom, ICML 2020).

A draft guesses where there is no guess yet: any cheap model of the same ids. Its tokens are drawn with their positions'
own noise, so where it is close to the network they are the network's. It also guesses again to the right of a wrong
guess, because the result there was computed from that guess. A draft changes the number of passes and no token.

A network with a cache along the order (``protocol.LooksAhead``) computes W rows in one pass. Any other gets one canvas
per guess: that saves rounds, which is latency on an accelerator, not operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from unmask.devices import download, indices, upload
from unmask.network import logits_at
from unmask.noise import KeptNoise
from unmask.plan import Plan, Planner, first_hitting
from unmask.predict import log_mean
from unmask.protocol import Denoiser
from unmask.sampler import Ask, State, Step, Task
from unmask.samplers.width import WIDTHS, Width, shared_width


@dataclass
class AheadState(State):
    """The state of sequences with settled and guessed tokens."""

    plan: Plan
    settled: Tensor  # int64 [B]: the number of final tokens, the first ones of the order
    guesses: Tensor  # int64 [B, L]: by slot of the order, -1 where there is none
    noise: KeptNoise  # [B, L]
    width: Width


@dataclass(frozen=True, kw_only=True)
class AheadAsk(Ask):
    """The next W positions of the order."""

    slots: Tensor  # int64 [B, W]: of the order
    guesses: Tensor  # int64 [B, W]: -1 where there is none


@dataclass(frozen=True)
class Ahead:
    """A plan that fills one token per step, several steps per network pass. window: how many, or "auto".

    most: the widest window allowed, to bound the cost of a network call; the tokens are the same.
    draft: a cheap denoiser that guesses, with each position's own noise, where there is no guess; the tokens are the
    same. block: the size of a block model's blocks, none of which the window leaves.
    """

    plan: Planner = first_hitting
    window: int | Literal["auto"] = "auto"
    most: int | None = None
    draft: Denoiser | None = None
    block: int | None = None

    def __post_init__(self) -> None:
        window = self.window
        if window != "auto" and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise ValueError(f"the window must be a whole number of at least 1, or 'auto', got {self.window!r}")

    @property
    def widest(self) -> int:
        """The largest number of rows per sequence in one call."""
        widest = WIDTHS[-1] if self.window == "auto" else self.window
        return min(widest, self.most or widest, self.block or widest)

    @property
    def entries(self) -> int:
        """The largest number of entries per sequence in one call, beside those of new tokens."""
        return self.widest * (self.block or 1)

    def begin(self, canvas: Tensor, task: Task) -> AheadState:
        whole = self.plan(canvas, mask_id=task.mask_id, streams=task.streams, schedule=task.schedule, steps=task.steps)
        if whole.tentative is not None or bool((whole.calls != whole.holes).any()):
            raise ValueError(
                "looking ahead is for plans that fill one token per step, such as plan.first_hitting, "
                "without predict.correct"
            )
        noise = KeptNoise(task.streams.at("token", canvas.shape[1]).keys)
        guesses = torch.full(canvas.shape, -1, dtype=torch.int64)
        fixed, drafts = None if self.window == "auto" else self.widest, self.draft is not None
        width = Width(fixed, task.chains, self.widest, drafts=drafts, block=self.block)
        settled = torch.zeros(len(canvas), dtype=torch.int64)
        return AheadState(task, canvas.clone(), whole.calls, whole, settled, guesses, noise, width)

    def shares(self, state: AheadState, sequences: int) -> None:
        """If many sequences share a pass, auto's next one is narrow; for callers that run several states at once."""
        state.width = replace(state.width, most=min(shared_width(sequences), self.widest))

    def skip(self, state: AheadState, needless: Tensor) -> None:
        """Remove positions from the order, and their guesses; the later ones move up."""
        earlier, state.plan = state.plan.order, state.plan.without(needless, state.settled)
        later, length = state.plan.order, earlier.shape[1]
        if later is earlier:
            return
        # By position and back; padding writes to one column more.
        guesses = torch.full((len(earlier), length + 1), -1)
        guesses = guesses.scatter(1, torch.where(earlier >= 0, earlier, length), state.guesses)
        state.guesses = torch.where(later >= 0, guesses.gather(1, later.clamp(min=0)), -1)
        state.noise.forget(torch.where(needless, torch.arange(needless.shape[1]), -1))

    def ask(self, state: AheadState) -> AheadAsk:
        """The next W positions of the order, on a canvas that shows the guesses."""
        plan = state.plan
        left = plan.holes - state.settled
        width = min(state.width.of(len(left)), int(left.max())) if len(left) else 0
        slots = state.settled.unsqueeze(1) + torch.arange(width)
        real = slots < plan.holes.unsqueeze(1)
        inside = torch.where(real, slots, 0)
        if self.block is not None and width:
            block = plan.order.gather(1, inside) // self.block
            real = real & (block == block[:, :1])
            left = real.sum(1)
            width = int(left.max())
            slots, inside, real = slots[:, :width], inside[:, :width], real[:, :width]
        rows = torch.where(real, plan.order.gather(1, inside), -1)
        guesses = torch.where(real, state.guesses.gather(1, inside), -1)
        # A step is one slot, so slot s is called at the time of step s.
        time = torch.where(real, plan.call_time.gather(1, inside), 0.0) if width else torch.zeros(rows.shape)
        if width == 1:  # no chain: an ordinary call
            return AheadAsk(rows, time.squeeze(1), slots=slots, guesses=guesses)
        if self.draft is not None:
            guesses = self._drafted(self.draft, state, rows, slots, guesses)
        # The last row's guess is not shown: no row comes after it.
        known = torch.minimum((guesses >= 0).sum(1), (left - 1).clamp(0, max(width - 1, 0)))
        row, column = (torch.arange(width) < known.unsqueeze(1)).nonzero(as_tuple=True)
        canvas = state.x.clone()
        at = indices(canvas.device, row, rows[row, column])
        canvas[at] = upload(guesses[row, column], canvas.device)
        return AheadAsk(rows, time, canvas, known, slots=slots, guesses=guesses)

    def _drafted(self, draft: Denoiser, state: AheadState, rows: Tensor, slots: Tensor, guesses: Tensor) -> Tensor:
        """The guesses [B, W], those that are missing drawn from the draft, each given the ones before it."""
        canvas, guesses = state.x.cpu().clone(), guesses.clone()
        for k in range(rows.shape[1]):
            real = rows[:, k] >= 0
            new = (real & (guesses[:, k] < 0)).nonzero().squeeze(1)
            if len(new):
                at = rows[new, k]
                logits = logits_at(draft, canvas[new], None, at.unsqueeze(1)).squeeze(1)
                guesses[new, k] = state.task.pick(log_mean(logits), state.noise[new, at], normalised=True)[0].cpu()
                state.guesses[new, slots[new, k]] = guesses[new, k]
            row = real.nonzero().squeeze(1)
            canvas[row, rows[row, k]] = guesses[row, k]
        return guesses

    def fill(self, state: AheadState, ask: AheadAsk, log_mu: Tensor) -> Step:
        """Settle the tokens up to and including the first that differs from its guess; the rest are new guesses."""
        rows, guesses, slots, real = ask.rows, ask.guesses, ask.slots, ask.rows >= 0
        row, column = real.nonzero(as_tuple=True)
        ids, certain = torch.full_like(rows, -1), torch.zeros(rows.shape, dtype=torch.float64)
        picked, probabilities = state.task.pick(log_mu, state.noise[row, rows[row, column]], normalised=True)
        ids[row, column], certain[row, column] = download(picked, probabilities)
        same = (ids == guesses) & real
        run = same.long().cumprod(1).sum(1)
        count = torch.minimum(run + 1, real.sum(1))
        if state.task.stop:  # what follows an end may be skipped, and is then no condition of what comes later
            ends = torch.isin(ids, torch.tensor(state.task.stop)) & real
            before = (ends.long().cumsum(1) == 0).sum(1)
            count = torch.minimum(count, before + 1)
        settles = torch.arange(rows.shape[1]) < count.unsqueeze(1)
        state.guesses[row, slots[row, column]] = ids[row, column]
        if self.draft is not None:  # a result to the right of the one before it was given a wrong left neighbour
            follows = torch.zeros_like(real)
            follows[:, 1:] = rows[:, 1:] == rows[:, :-1] + 1
            behind = torch.arange(rows.shape[1]) >= count.unsqueeze(1)
            state.guesses[row, slots[row, column]] = torch.where(follows & behind, -1, ids)[row, column]
        state.noise.forget(torch.where(settles, rows, -1))
        state.settled = state.settled + count
        wrong = int((settles & (guesses >= 0) & ~same).sum())
        state.width = state.width.passed(int(run.sum()), wrong)
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
