"""The published samplers without the numbers that cannot win: the same distribution, with all relevant draws.

In a coupled step (``published.Coupled``) a token wins only if pi_i / E_i >= pi_m / E_m, with E = -log u. Once the
mask's E_m is drawn, a token of any weight needs E_i <= theta = max_i pi_i E_m / pi_m, so u_i near 1. The number of such
uniforms among V is binomial, the tokens they belong to are uniform, and so is each over the remaining grid values.
These are drawn; the rest cannot win. The race itself is then computed as published, in its own precision. If N is
large, theta is about 1/k in the k-th step from the end, and of N V numbers a position needs about V log N.

For comparison only, like the samplers whose distribution it has. The network must not read the time, as for their
cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.noise import Noise, generator
from unmask.sampler import Ask, State, Step, Task, filled, packed
from unmask.samplers.published import PRECISIONS, Law, ancestral_law, race, steps_as_published
from unmask.theory import largest_below_one

SAFE = 1 + 2.0**-16  # theta is a little larger than necessary, because the race rounds
CELLS = 1 << 16  # races at once
BITS = {"float32": 24, "float64": 53, "float64-truncated": 53}  # random bits of a uniform
TRUNCATED = largest_below_one("float32")


def races(
    mu: Tensor, leave: Tensor, stay: Tensor, random: torch.Generator, precision: str = "float32"
) -> tuple[Tensor, Tensor]:
    """J coupled steps at R positions with distributions mu float64 [R, V]: which leave the mask, and for which token.

    leave, stay: float64 [J], the weights of Eq. 10. Returns bool [J, R] and token ids int64 [J, R], 0 where masked.
    """
    dtype, V = PRECISIONS[precision], mu.shape[1]
    stay = stay.abs()  # -0 is possible in the last step
    shape = (len(leave), len(mu))
    clock = -_uniform(torch.rand(shape, dtype=dtype, generator=random), precision).log()
    theta = leave.unsqueeze(1) * mu.amax(1) * clock.double() / stay.unsqueeze(1) * SAFE
    if precision == "float64-truncated":
        theta = (theta + torch.log(torch.tensor(TRUNCATED, dtype=torch.float64))).clamp(min=0)
    # The grid's values u = 1 - i 2^-bits, i = 1, 2, ... with -log u <= theta: the first `near` of them.
    size = 2.0 ** BITS[precision]
    near = (size * -torch.expm1(-theta)).floor()
    number = torch.binomial(torch.full(shape, float(V), dtype=torch.float64), near / size, generator=random).long()
    step, row = number.nonzero(as_tuple=True)
    cell, ids = _placed(number[step, row], V, random)
    step, row = step[cell], row[cell]
    i = (torch.rand(len(ids), dtype=torch.float64, generator=random) * near[step, row]).floor() + 1
    u = _uniform((1 - i / size).to(dtype), precision)
    value = (leave[step] * mu[row, ids]).to(dtype) / -u.log()
    best = (stay.to(dtype).unsqueeze(1) / clock).clone()
    at = step * shape[1] + row
    best = best.flatten().scatter_reduce(0, at, value, "amax")
    left, tokens = torch.zeros(best.shape, dtype=torch.bool), torch.zeros(best.shape, dtype=torch.int64)
    won = value == best[at]  # on a tie the token is first, as for argmax
    left[at[won]], tokens[at[won]] = True, ids[won]
    return left.view(shape), tokens.view(shape)


def _uniform(u: Tensor, precision: str) -> Tensor:
    return u * TRUNCATED if precision == "float64-truncated" else u


def _placed(number: Tensor, V: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Distinct tokens for each cell, ``number`` [C] of V, all sets equally likely: the cell of each, and its token."""
    many = number.square() > V
    cells, ids = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, dtype=torch.int64)]
    for cell in many.nonzero().squeeze(1).tolist():
        ids.append(torch.randperm(V, generator=random)[: int(number[cell])])
        cells.append(torch.full((int(number[cell]),), cell))
    todo = (~many).nonzero().squeeze(1)
    while len(todo):  # a cell in which a token occurs twice is drawn again
        cell = torch.repeat_interleave(todo, number[todo])
        drawn = torch.randint(V, (len(cell),), generator=random)
        key, order = (cell * V + drawn).sort()
        again = torch.unique(cell[order[1:][key[1:] == key[:-1]]])
        kept = ~torch.isin(cell, again)
        cells.append(cell[kept])
        ids.append(drawn[kept])
        todo = again
    return torch.cat(cells), torch.cat(ids)


@dataclass
class RareState(State):
    """The state of sequences that each go through the N steps separately."""

    k: Tensor  # int64 [B]: steps taken
    noise: Noise  # [B]


@dataclass(frozen=True)
class CoupledRare:
    """``published.Coupled`` with its cache, on a grid from 1 to 0, for networks that do not read the time."""

    precision: str = "float32"
    law: Law = ancestral_law

    def __post_init__(self) -> None:
        race(self.precision)  # refuses an unknown precision

    def begin(self, canvas: Tensor, task: Task) -> RareState:
        steps = steps_as_published(task)
        calls = (canvas == task.mask_id).sum(1).cpu().clamp(max=steps)
        made = torch.zeros(len(canvas), dtype=torch.int64)
        return RareState(task, canvas.clone(), calls, made, task.streams.at("rare", 1)[:, 0])

    def ask(self, state: RareState) -> Ask:
        steps = state.task.steps or 1
        return Ask(packed((state.x == state.task.mask_id).cpu()), (steps - state.k).double() / steps)

    def fill(self, state: RareState, ask: Ask, log_mu: Tensor) -> Step:
        """One output serves all steps of its sequence until something changes."""
        real = ask.rows >= 0
        parts = torch.split(log_mu.cpu().exp(), real.sum(1).tolist())
        chosen = torch.zeros(state.x.shape, dtype=torch.bool)
        tokens, certain = torch.zeros(chosen.shape, dtype=torch.int64), torch.zeros(chosen.shape, dtype=torch.float64)
        draws, tau = torch.zeros(len(chosen), dtype=torch.int64), torch.zeros(len(chosen), dtype=torch.float64)
        for b, mu in enumerate(parts):
            before = int(state.k[b])
            left, ids = self._changed(state, b, mu)
            at = ask.rows[b, real[b]][left]
            chosen[b, at], tokens[b, at], certain[b, at] = True, ids[left], mu[left, ids[left]]
            draws[b] = (int(state.k[b]) - before) * chosen.shape[1]
            tau[b] = self._time(state, state.k[b])
        return filled(chosen, tokens, certain, tau, draws)

    def _changed(self, state: RareState, b: int, mu: Tensor) -> tuple[Tensor, Tensor]:
        """The first step in which a position of sequence b leaves the mask: which ones, and for which tokens."""
        steps = state.task.steps or 1
        while True:
            k = int(state.k[b])
            random = generator(0, int(state.noise[b : b + 1].again(k).keys))
            first = self._weights(state, torch.tensor([k]))[0]
            size = min(max(1, int(2 / (len(mu) * float(first)))), max(1, CELLS // len(mu)), steps - k)
            left, ids = races(mu, *self._weights(state, torch.arange(k, k + size)), random, self.precision)
            changed = left.any(1).nonzero()
            if len(changed):
                state.k[b] = k + int(changed[0]) + 1
                return left[changed[0, 0]], ids[changed[0, 0]]
            state.k[b] = k + size
            assert k + size < steps, "the last step leaves no mask"

    def _weights(self, state: RareState, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.law(state.task.schedule, self._time(state, k + 1), self._time(state, k))

    def _time(self, state: RareState, k: Tensor) -> Tensor:
        steps = state.task.steps or 1
        return (steps - k).double() / steps
