"""Samplers as other codebases implement them: for comparison only, never a default, and labelled as published.

They differ from ``unmask.sample`` in one way. In each of N steps they draw from one categorical over all tokens and the
mask, at every position, both whether to unmask it and with which token (Eq. 10): N L (V + 1) random numbers, by the
race argmax_i pi_i / (-log u_i), most often in float32. In float64 the distribution is that of ``plan.ancestral``; in
float32 it is not (Sec. 5).

Low precision can act in two ways. Take K tokens of probability p beside a mask at 1 - r, r = K p, and let c = e^-M / p.
Uniforms scaled to float32's largest value ("float64-truncated") follow Prop. 5.2: the mask loses with probability r
e^{-(1 - r - p) c}. Real float32 uniforms are a grid: near 0, E = -log u is rounded up to multiples of eps = 2^-24, and
the mask loses with probability (e^{rc} - 1) / (e^c - 1), which is higher. Both are far below r once c > 1. (u = 0
occurs once in 2^24 draws; without ``eps`` it loses its race.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from unmask.devices import CPU, download, upload
from unmask.draw import Draw, Pick
from unmask.noise import Noise, generator
from unmask.sampler import Ask, State, Step, Task, filled
from unmask.schedule import Schedule
from unmask.theory import largest_below_one

PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "float64-truncated": torch.float64}

Law = Callable[[Schedule, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(schedule, s, t) -> (a, b): a masked position goes to token v with probability a mu_v and stays with b."""


@dataclass(frozen=True)
class TorchRand(Noise):
    """torch.rand instead of a hash: what these codebases use, and what makes N L V numbers affordable.

    keys: int64 [B], one for each sequence and step; places: the rows that each of them is for.
    """

    places: int = 1

    def uniform(
        self, columns: int | None = None, *, dtype: torch.dtype = torch.float64, device: torch.device | None = None
    ) -> Tensor:
        shape = (self.places,) if columns is None else (self.places, columns)
        drawn = [torch.rand(shape, dtype=dtype, generator=generator(0, key)) for key in self.keys.tolist()]
        return upload(drawn[0] if len(drawn) == 1 else torch.cat(drawn), device or CPU)


def race(precision: str = "float32", *, eps: float = 0.0) -> Draw:
    """The categorical of published code (the paper's figure of code versions): argmax_i pi_i / (-log u_i).

    precision: "float32", as published; "float64", the fix; "float64-truncated", float64 uniforms scaled to float32's
    largest one. eps: the constant that some codebases add to u and to the exponential, usually 1e-10; without it u = 0
    loses every race. Unlike the draws of ``unmask.draw`` it takes weights, not logits.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(map(repr, PRECISIONS))}, got {precision!r}")
    if not 0 <= eps < 1e-3:
        raise ValueError(f"eps must be at least 0 and tiny (1e-10 is usual), got {eps}")

    def published_race(weights: Tensor, noise: Noise) -> Tensor:
        u = noise.uniform(weights.shape[-1], dtype=PRECISIONS[precision], device=weights.device)
        if precision == "float64-truncated":
            u = u * largest_below_one("float32")
        return winner(weights, u, eps)

    return published_race


def winner(weights: Tensor, u: Tensor, eps: float = 0.0) -> Tensor:
    """argmax_i pi_i / (-log u_i), computed in the precision of u."""
    return (weights.to(u.dtype) / (eps - torch.log(u + eps))).argmax(-1)


def ancestral_law(schedule: Schedule, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Equation 10: (alpha_s - alpha_t) / (1 - alpha_t) and (1 - alpha_s) / (1 - alpha_t)."""
    alpha_s, alpha_t = schedule.alpha(s), schedule.alpha(t)
    return (alpha_s - alpha_t) / (1 - alpha_t), (1 - alpha_s) / (1 - alpha_t)


def euler_law(schedule: Schedule, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """SEDD's Euler step: (t - s) sigma(t) s(m, t), with the score s(m, t) = alpha_t / (1 - alpha_t) mu.

    sigma = -alpha'/alpha, so sigma(t) alpha_t / (1 - alpha_t) is minus the weight of Eq. 6, finite at alpha_t = 0 too.
    If a step is too long, the probability of staying would be negative; staying then never wins.
    """
    leave = (t - s) * -schedule.weight(t)
    return leave, (1 - leave).clamp(min=0)


def tweedie_law(schedule: Schedule, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """SEDD's Tweedie tau-leaping: (e^{sigma_bar(t) - sigma_bar(s)} - 1) s(m, t), and sigma_bar = -log alpha.

    The score's factor is 1 / (e^sigma_bar(t) - 1); the quotient is written so that sigma_bar(t) may be infinite.
    """
    noise_s, noise_t = -schedule.alpha(s).log(), -schedule.alpha(t).log()
    masked_t = -torch.expm1(-noise_t)
    return torch.exp(-noise_s) * -torch.expm1(noise_s - noise_t) / masked_t, -torch.expm1(-noise_s) / masked_t


@dataclass
class CoupledState(State):
    """A batch that goes through the N steps together."""

    k: int  # steps taken
    noise: Noise  # [B]


@dataclass(frozen=True)
class Coupled:
    """N-step ancestral sampling as published: tokens and mask in one categorical, at all positions, in every step.

    cache: reuse the network's last output, whatever the time, as long as no sequence of the batch has changed. The grid
    is even from 1 to ``end`` (1e-5 in MDLM and SEDD); positions still masked after it are filled at once, ``denoise``
    by a "draw" from mu or by its "argmax". A Step's tau is the end of the step that unmasked a position, and every row
    drawn is counted.
    """

    precision: str = "float32"
    eps: float = 0.0
    cache: bool = True
    denoise: Literal["draw", "argmax"] = "draw"
    end: float = 0.0
    law: Law = ancestral_law

    def __post_init__(self) -> None:
        race(self.precision, eps=self.eps)
        if self.denoise not in ("draw", "argmax"):
            raise ValueError(f"denoise must be 'draw' or 'argmax', got {self.denoise!r}")
        if not 0 <= self.end < 1:
            raise ValueError(f"end, the last time of the grid, must be in [0, 1), got {self.end}")

    def begin(self, canvas: Tensor, task: Task) -> CoupledState:
        steps = steps_as_published(task)
        most = min(steps, max(canvas.numel(), 1)) if self.cache else steps
        calls = torch.full((len(canvas),), most)
        return CoupledState(task, canvas.clone(), calls, 0, task.streams.at("coupled", 1)[:, 0])

    def ask(self, state: CoupledState) -> Ask:
        """Every position; none at the end of the grid, or with the cache as soon as nothing is masked."""
        going = bool(state.masked.any()) or (not self.cache and state.k < (state.task.steps or 0))
        every = torch.arange(state.x.shape[1]) if going else torch.empty(0, dtype=torch.int64)
        return Ask(every.expand(len(state.x), -1), self._time(state, state.k).expand(len(state.x)))

    def fill(self, state: CoupledState, ask: Ask, log_mu: Tensor) -> Step:
        return next(step for step in self.parts(state, ask, log_mu) if step is not None)

    def parts(self, state: CoupledState, ask: Ask, log_mu: Tensor) -> Iterator[Step | None]:
        """One part per step of the grid: with the cache, one output serves all steps until a token changes.

        There may be thousands: near the end of the grid little is masked, so little changes.
        """
        x, mask_id, steps = state.x, state.task.mask_id, state.task.steps or 0
        mu = functional.pad(log_mu.exp(), (0, max(mask_id + 1 - log_mu.shape[-1], 0)))
        draws = 0
        while state.k < steps:
            t, s = self._time(state, state.k), self._time(state, state.k + 1)
            leave, stay = self.law(state.task.schedule, s, t)
            weights = mu * float(leave)
            weights[..., mask_id] = float(stay)
            new = torch.where(x == mask_id, self._drawn(state, weights), x)
            draws, state.k = draws + x.shape[1], state.k + 1
            if not self.cache or bool((new != x).any()):
                yield self._step(x, new, mu, s, draws)
                return
            yield None
        ids = mu.argmax(-1).view_as(x) if self.denoise == "argmax" else self._drawn(state, mu)
        yield self._step(x, torch.where(x == mask_id, ids, x), mu, self._time(state, steps), draws + x.shape[1])

    def _time(self, state: CoupledState, k: int) -> Tensor:
        """The time at which the k-th step begins."""
        steps = state.task.steps or 1
        return torch.tensor(self.end + (1 - self.end) * (steps - min(k, steps)) / steps, dtype=torch.float64)

    def _drawn(self, state: CoupledState, weights: Tensor) -> Tensor:
        noise = TorchRand(state.noise.numbered(state.k).keys, places=state.x.shape[1])
        return race(self.precision, eps=self.eps)(weights, noise).view_as(state.x)

    def _step(self, x: Tensor, new: Tensor, mu: Tensor, tau: Tensor, draws: int) -> Step:
        """The difference between two canvases, as a Step."""
        certain = mu.view(*x.shape, -1).gather(2, new.unsqueeze(-1)).squeeze(-1)
        count = torch.full((len(x),), draws)
        new, old, certain = download(new, x, certain)
        return filled(new != old, new, certain, tau.expand(len(x)), count)


def sedd_euler(*, cache: bool = False, **options: Any) -> Coupled:
    """SEDD's Euler sampler, as published; options as in ``Coupled``, without the cache by default.

    Under the linear schedule it equals the ancestral sampler; under others it takes steps at a constant rate.
    """
    return Coupled(cache=cache, law=euler_law, **options)


def sedd_tweedie(*, cache: bool = False, **options: Any) -> Coupled:
    """SEDD's analytic sampler, Tweedie tau-leaping: the ancestral sampler's distribution; options as in ``Coupled``."""
    return Coupled(cache=cache, law=tweedie_law, **options)


def steps_as_published(task: Task) -> int:
    """The number of steps, which these samplers need; they do not take other options for drawing tokens."""
    if task.steps is None:
        raise ValueError("the published samplers need steps, the number of steps N")
    if task.pick != Pick():
        raise ValueError("the published samplers cannot be combined with draw, temperature, top_k or top_p")
    return task.steps
