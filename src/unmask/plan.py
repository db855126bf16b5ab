"""Plans: which positions are unmasked at which step and time, all drawn before the network is called.

Whether and when a masked token is unmasked does not depend on the network (Sec. 4.2). The samplers differ only in how
they group the hitting times (``hitting``) into steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from unmask.errors import OptionError, check_number
from unmask.hitting import hitting_times, start_time
from unmask.noise import Streams
from unmask.protocol import Batched
from unmask.schedule import Linear, Schedule


@dataclass(frozen=True)
class Group(Batched):
    """The positions filled after one call, padded with -1. A real position that is not drawn keeps the token shown."""

    positions: Tensor  # int64 [B, R]: to fill after this call
    tau: Tensor  # float64 [B, R]: their hitting times
    drawn: Tensor  # bool [B, R]: to be drawn from the network's output
    hidden: Tensor | None = None  # int64 [B, H]: to be masked again first (Algorithm 4)


@dataclass(frozen=True)
class Plan(Batched):
    """The part of a sampling run that does not depend on the network, for any numbers of masked positions.

    A row's slots are its masked positions in the order of unmasking; the slots of one step are adjacent. Steps are
    counted per row without gaps: steps of the grid in which nothing happens are skipped.
    """

    order: Tensor  # int64 [B, L]: positions in the order of unmasking, then padding with -1
    times: Tensor  # float64 [B, L]: their hitting times, non-increasing, then 0
    step: Tensor  # int64 [B, L]: the step each belongs to, 0, 1, ... per row, then -1
    call_time: Tensor  # float64 [B, S]: the time at which the network is called in each step, then 0
    tentative: Tensor | None = None  # int64 [B, L], Algorithm 4's first choice of each step's positions, if any

    @property
    def calls(self) -> Tensor:
        """The number of network calls of each row: int64 [B]."""
        return self.step.amax(1) + 1 if self.step.shape[1] else self.step.new_zeros(len(self.step))

    @property
    def holes(self) -> Tensor:
        """The number of masked positions of each row: int64 [B]."""
        return (self.order >= 0).sum(1)

    def __len__(self) -> int:
        return len(self.order)

    @classmethod
    def join(cls, plans: Sequence[Plan]) -> Plan:
        """The plans of several batches as one: shorter ones get empty steps."""
        plans = [plan.resized(max(plan.order.shape[1] for plan in plans)) for plan in plans]
        most = max(plan.call_time.shape[1] for plan in plans)
        call_time = [functional.pad(plan.call_time, (0, most - plan.call_time.shape[1])) for plan in plans]
        tentative = [plan.tentative for plan in plans if plan.tentative is not None]
        assert len(tentative) in (0, len(plans)), "one predictor, one kind of plan"
        order, times, step = (torch.cat([getattr(plan, name) for plan in plans]) for name in ("order", "times", "step"))
        return cls(order, times, step, torch.cat(call_time), torch.cat(tentative) if tentative else None)

    def resized(self, length: int) -> Plan:
        """The same plan for padded canvases, or without padding that had been added."""
        if length == self.order.shape[1]:
            return self
        order, step = resized(self.order, length, -1), resized(self.step, length, -1)
        tentative = None if self.tentative is None else resized(self.tentative, length, -1)
        return replace(self, order=order, step=step, times=resized(self.times, length, 0.0), tentative=tentative)

    def without(self, needless: Tensor, step: Tensor) -> Plan:
        """The plan without the positions where the boolean [B, L] is true, from each row's ``step`` [B] on."""
        dropped = needless.gather(1, self.order.clamp(min=0)) & (self.step >= step.unsqueeze(1))
        kept = (self.order >= 0) & ~dropped
        if bool((kept == (self.order >= 0)).all()):
            return self
        slots = torch.argsort((~kept).to(torch.int8), dim=1, stable=True)
        real, old = kept.gather(1, slots), self.step.gather(1, slots)
        new = torch.zeros_like(old)
        new[:, 1:] = (old[:, 1:] != old[:, :-1]).cumsum(1)
        order = torch.where(real, self.order.gather(1, slots), -1)
        times = torch.where(real, self.times.gather(1, slots), 0.0)
        called = torch.where(real, self.call_time.gather(1, old.clamp(min=0)), 0.0)
        return _plan(order, times, torch.where(real, new, -1), called)

    @cached_property
    def starts(self) -> Tensor:
        """The first slot of each step: int64 [B, S + 1]; a row's steps past its last start where its slots end."""
        step = torch.where(self.step < 0, torch.iinfo(torch.int64).max, self.step)
        every = torch.arange(self.call_time.shape[1] + 1).expand(len(self), -1)
        return torch.searchsorted(step.contiguous(), every.contiguous())

    def group(self, step: Tensor) -> Group:
        """The positions of one step; each row has its own step, int64 [B]."""
        slots, real = self._slots(step)
        positions, tau = self._at(self.order, slots, real, -1), self._at(self.times, slots, real, 0.0)
        if self.tentative is None:
            return Group(positions, tau, drawn=real)
        # Algorithm 4: undo the last step's first choice, choose its positions again, then choose those of this step.
        earlier, was = self._slots(step - 1)
        hidden = self._at(self.tentative, earlier, was, -1)
        again = self._at(self.order, earlier, was, -1)
        positions = torch.cat([again, self._at(self.tentative, slots, real, -1)], 1)
        tau = torch.cat([self._at(self.times, earlier, was, 0.0), tau], 1)
        # Tokens that the network saw are carried over (Eq. 4); the rest is drawn.
        carried = (positions.unsqueeze(2) == hidden.unsqueeze(1)).any(2)
        return Group(positions, tau, drawn=(positions >= 0) & ~carried, hidden=hidden)

    def time(self, step: Tensor) -> Tensor:
        """The time at which the network is called for a step of each row, int64 [B]: float64 [B]."""
        steps = self.call_time.shape[1]
        if not steps:
            return torch.zeros(len(self), dtype=torch.float64)
        return self.call_time.gather(1, step.clamp(max=steps - 1).unsqueeze(1)).squeeze(1)

    def _slots(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """The slots of one step of each row, int64 [B, R], padded to the longest row, and which of them are real."""
        inside = step.clamp(0, self.call_time.shape[1])
        first = self.starts.gather(1, inside.unsqueeze(1))
        end = self.starts.gather(1, (inside + 1).clamp(max=self.call_time.shape[1]).unsqueeze(1))
        end = torch.where(step.unsqueeze(1) < 0, first, end)
        slots = first + torch.arange(int((end - first).amax()) if len(step) else 0)
        return slots, slots < end

    @staticmethod
    def _at(values: Tensor, slots: Tensor, real: Tensor, pad: float) -> Tensor:
        return torch.where(real, values.gather(1, torch.where(real, slots, 0)), pad)


def resized(x: Tensor, length: int, pad: float) -> Tensor:
    """x [B, L] as [B, length]: padded at its end, or cut."""
    return functional.pad(x, (0, length - x.shape[1]), value=pad)


Planner = Callable[..., Plan]


def first_hitting(
    tokens: Tensor, *, mask_id: int, streams: Streams, schedule: Schedule | None = None, steps: int | None = None
) -> Plan:
    """Algorithm 1: first-hitting sampling. One token per step; the network is called at its hitting time."""
    if steps is not None:
        raise ValueError(f"steps={steps}: plan.first_hitting takes one token per step; plan.parallel takes steps")
    order, times, holes = hitting_times(tokens, mask_id=mask_id, streams=streams, schedule=schedule)
    return _plan(order, times, _even_steps(holes, max(order.shape[1], 1), order.shape[1]), times)


def parallel(
    tokens: Tensor,
    *,
    mask_id: int,
    streams: Streams,
    schedule: Schedule | None = None,
    steps: int | None = None,
    sizes: Sequence[int] | None = None,
) -> Plan:
    """Algorithm 2: parallel decoding. N groups whose sizes differ by at most one, called at their first hitting times.

    A row with fewer masked positions than ``steps`` takes one step per position, which is Algorithm 1.
    sizes: the group sizes, instead of steps, as in ``partial(plan.parallel, sizes=theory.optimal_sizes(profile, 16))``;
    their sum must be the number of masked positions of every row.
    """
    order, times, holes = hitting_times(tokens, mask_id=mask_id, streams=streams, schedule=schedule)
    if sizes is None:
        return _plan(order, times, _even_steps(holes, _check_steps("parallel", steps), order.shape[1]), times)
    group = torch.arange(len(sizes)).repeat_interleave(_check_sizes(sizes, steps, holes))
    step = functional.pad(group, (0, order.shape[1] - len(group)), value=-1).expand_as(order)
    return _plan(order, times, step.contiguous(), times)


def ancestral(
    tokens: Tensor,
    *,
    mask_id: int,
    streams: Streams,
    schedule: Schedule | None = None,
    steps: int | None = None,
    eps: float = 0.0,
) -> Plan:
    """N-step ancestral sampling (Eq. 10), exactly: hitting times are grouped by the intervals of t_k = t_start k/N.

    The network is called at t_k, where the interval (t_{k-1}, t_k] starts; an empty interval costs no call. Under a
    schedule with alpha_0 < 1 the positions still masked at time 0 are unmasked in one last step. eps: the grid ends at
    t_start eps, and its last step unmasks the rest, as in Dream's ``alg="origin"``.
    """
    steps, schedule = _check_steps("ancestral", steps), schedule or Linear()
    if not 0 <= eps < 1:
        raise ValueError(f"eps, where the grid ends, must be in [0, 1), got {eps}")
    order, times, holes = hitting_times(tokens, mask_id=mask_id, streams=streams, schedule=schedule)
    start = start_time(holes, order.shape[1], schedule).unsqueeze(1)
    place = (times / start.clamp(min=2.0**-1000) - eps) / (1 - eps)
    interval = (place * steps).ceil().long().clamp(0, steps)
    if eps or bool(schedule.alpha(0.0) == 1):
        interval = interval.clamp(min=1)  # a hitting time of exactly 0, once in 2^53, belongs to the last interval
    interval = torch.where(order >= 0, interval, -1)
    step = torch.zeros_like(order)
    step[:, 1:] = (interval[:, 1:] != interval[:, :-1]).cumsum(1)
    called_at = start * (eps + (1 - eps) * interval.clamp(min=0).double() / steps)
    return _plan(order, times, torch.where(order >= 0, step, -1), called_at)


def left_to_right(
    tokens: Tensor, *, mask_id: int, streams: Streams, schedule: Schedule | None = None, steps: int | None = None
) -> Plan:
    """Masked positions from left to right: one per step, or ``steps`` groups whose sizes differ by at most one.

    With one token per step it is exact, like every order that does not depend on the tokens. With n masked positions
    left, the network is called at alpha^-1(1 - n/L): 1 - l/L under the linear schedule.
    """
    masked = (tokens == mask_id).cpu()
    holes, length = masked.sum(1), masked.shape[1]
    slot, left = torch.arange(length), holes.unsqueeze(1) - torch.arange(length)
    order = torch.where(left > 0, torch.where(masked, slot, length).sort(1).values, -1)
    times = torch.where(left > 0, start_time(left.clamp(min=0), length, schedule or Linear()), 0.0)
    steps = max(length, 1) if steps is None else _check_steps("left_to_right", steps)
    return _plan(order, times, _even_steps(holes, steps, length), times)


@dataclass(frozen=True)
class Blocks:
    """Blocks of ``size`` positions from left to right, each with an inner plan: ``plan.Blocks(16, plan.parallel)``.

    Exact if the inner plan is. ``steps`` counts the whole canvas and is shared evenly among its blocks. The times are
    those of ``left_to_right``.
    """

    size: int
    inner: Planner = first_hitting

    def __post_init__(self) -> None:
        check_number("size", self.size, whole=True, ge=1)

    def __call__(
        self,
        tokens: Tensor,
        *,
        mask_id: int,
        streams: Streams,
        schedule: Schedule | None = None,
        steps: int | None = None,
    ) -> Plan:
        length, visible = tokens.shape[1], 0 if mask_id else 1
        number = torch.arange(length, device=tokens.device) // self.size
        blocks = -(-length // self.size)
        shares = [None] * blocks if steps is None else shared(steps, blocks)
        order, step, calls = [], [], torch.zeros(len(tokens), 1, dtype=torch.int64)
        for k, share in enumerate(shares):
            here = torch.where(number == k, tokens, visible)
            part = self.inner(here, mask_id=mask_id, streams=streams, schedule=schedule, steps=share)
            order.append(part.order[:, : self.size])
            step.append(torch.where(order[-1] >= 0, part.step[:, : self.size] + calls, -1))
            calls = calls + part.calls.unsqueeze(1)
        slots = torch.cat([calls[:, :0], *order], 1), torch.cat([calls[:, :0], *step], 1)
        return _in_turn(*slots, length, schedule)


def even(n: int, parts: int) -> list[int]:
    """n in parts that differ by at most one, the larger ones first."""
    base, rest = divmod(n, parts)
    return [base + (k < rest) for k in range(parts)]


def shared(steps: int, blocks: int) -> list[int]:
    """The steps of each block."""
    if steps < blocks:
        says = f"steps={steps}: {blocks} blocks take at least one each, so give {blocks} or more, or none"
        raise OptionError("steps", says)
    return even(steps, max(blocks, 1))


def _in_turn(order: Tensor, step: Tensor, length: int, schedule: Schedule | None) -> Plan:
    """The plan with these slots, padding moved to the end, and the times of ``left_to_right``."""
    first = (order < 0).to(torch.int8).argsort(dim=1, stable=True)[:, :length]
    order, step = order.gather(1, first), step.gather(1, first)
    left = ((order >= 0).sum(1, keepdim=True) - torch.arange(length)).clamp(min=0)
    times = torch.where(order >= 0, start_time(left, length, schedule or Linear()), 0.0)
    return _plan(order, times, step, times)


def _plan(order: Tensor, times: Tensor, step: Tensor, called_at: Tensor) -> Plan:
    """Collect slots into steps: a step is called at the largest of its slots' times."""
    calls = int(step.amax()) + 1 if step.numel() else 0
    real = step >= 0
    call_time = torch.zeros(len(order), calls, dtype=torch.float64)
    if calls:
        call_time.scatter_reduce_(1, step.clamp(min=0), torch.where(real, called_at, 0.0), "amax")
    return Plan(order, times, step, call_time)


def _even_steps(holes: Tensor, steps: int, length: int) -> Tensor:
    """The step of each slot, -1 past the last: groups whose sizes differ by at most one, of at least one slot."""
    slot, holes = torch.arange(length), holes.unsqueeze(1)
    return torch.where(slot < holes, slot * holes.clamp(max=steps) // holes.clamp(min=1), -1)


def _check_steps(name: str, steps: int | None) -> int:
    if steps is None:
        raise OptionError("steps", f"plan.{name} needs steps, the number of steps N (plan.first_hitting needs none)")
    check_number("steps", steps, whole=True, ge=1)
    return steps


def _check_sizes(sizes: Sequence[int], steps: int | None, holes: Tensor) -> Tensor:
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
        raise ValueError(f"sizes must be whole numbers of at least 1, got {list(sizes)}")
    if steps not in (None, len(sizes)):
        raise ValueError(f"steps={steps} contradicts sizes, which are {len(sizes)} groups")
    for row, count in enumerate(holes.tolist()):
        if count != sum(sizes):
            raise ValueError(f"sizes sum to {sum(sizes)}, but sequence {row} has {count} masked positions")
    return torch.tensor(sizes, dtype=torch.int64)
