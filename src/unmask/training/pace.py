"""The steps of a run of given minutes: planned again as its speed changes, so that it ends on time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

RECENT = 50  # steps over which the speed is averaged
OFTEN = 0.05  # of the minutes, between two plans
FAR = math.log(2)  # of the logarithms of seconds: the points that a forecast looks at reach back so far
ENOUGH = 2  # validations that a forecast needs
FIRST_VALIDATION = 60.0  # seconds until the first validation, sample and checkpoint, for any length of run
FIRST_PART = 0.1  # of the minutes, if that is less


@dataclass(frozen=True)
class StepPlan:
    """The steps of a run, as planned at step ``since``, when the part ``done`` of the decay was over.

    A decaying learning rate depends on the part that is over. A new plan keeps the part, so the rate has no jump.
    """

    steps: int
    since: int = 0
    done: float = 0.0

    def part(self, step: int, warmup: int) -> float:
        """How much of the decay is over at this step: 0 after the warm-up, 1 at the last step."""
        since = max(self.since, warmup)
        return min(1.0, self.done + (1 - self.done) * ((step - since) / max(1, self.steps - since)))

    def again(self, step: int, steps: int, warmup: int) -> StepPlan:
        """The plan from this step on, with another number of steps."""
        return StepPlan(max(steps, step, 1), step, self.part(step, warmup) if step > warmup else 0.0)


@dataclass
class Pace:
    """What a run's steps, validations and checkpoints take, in seconds."""

    budget: float  # seconds of the whole run; inf for no limit
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    validation: float = 0.0  # of the last one, with its sample
    sample: float = 0.0
    saving: float = 0.0
    planned: float = 0.0  # when it was planned last, since the start

    @property
    def ending(self) -> float:
        """What comes after the last step: a validation, a checkpoint, the model, and its samples."""
        return self.validation + 2 * self.saving + 2 * self.sample

    def late(self, spent: float) -> bool:
        """Whether the rest of the budget is needed for the end."""
        return spent + self.ending > self.budget

    def left(self, spent: float, every: int) -> int | None:
        """How many more steps fit, with a validation for every so many; None if it is too early to plan again."""
        if math.isinf(self.budget) or not self.steps or spent - self.planned < OFTEN * self.budget:
            return None
        each = sum(self.steps) / len(self.steps) + (self.validation + self.saving) / every
        return max(0, int((self.budget - self.ending - spent) / each))


@dataclass(frozen=True)
class Now:
    """What every process must know before a step."""

    signal: int  # the number of a received signal, or 0
    waiting: bool  # the user has waited long enough to see a first result
    late: bool  # the minutes are over
    left: int | None  # how many more steps fit into them, if it is time to plan again


def agreed(accelerator: Any, signal: int, pace: Pace, spent: float, looped: float, every: int | None) -> Now:
    """The signals and clocks of all processes: they must all do the same at the same step.

    spent and looped: the seconds since the start and since the loop began. every: the steps between two validations,
    if the run may be planned again.
    """
    waiting = looped > min(FIRST_VALIDATION, FIRST_PART * pace.budget)
    left = None if every is None else pace.left(spent, every)
    now = [signal, int(waiting), int(pace.late(spent)), -1 if left is None else left]
    if accelerator.num_processes > 1:  # the first process's speed is that of all: they wait for each other
        everyone = accelerator.gather(torch.tensor([now], device=accelerator.device))
        now = [*everyone[:, :3].amax(0).tolist(), int(everyone[0, 3])]
    return Now(now[0], bool(now[1]), bool(now[2]), None if now[3] < 0 else now[3])


def forecast(points: Sequence[tuple[float, float]], target: float) -> float | None:
    """The seconds of training after which a bound falls to the target, from its last points (seconds, nats).

    log nats is taken as linear in log seconds. A real curve flattens towards the entropy of the data, so this is the
    least that it takes; inf if the bound does not fall. None for too few points.
    """
    known = [(math.log(seconds), math.log(nats)) for seconds, nats in points if seconds > 0 and nats > 0]
    far = sum(x < known[-1][0] - FAR for x, _ in known) - 1  # the last one that is far enough from the end for a slope
    known = known[max(0, min(far, len(known) - ENOUGH)) :]
    if len(known) < ENOUGH or target <= 0:
        return None
    x, y = (sum(values) / len(known) for values in zip(*known, strict=True))
    spread = sum((a - x) ** 2 for a, _ in known)
    slope = sum((a - x) * (b - y) for a, b in known) / spread if spread else 0.0
    power = x + (math.log(target) - y) / slope if slope < 0 else math.inf
    return math.exp(power) if power < 50 else math.inf
