"""The samplers as other codebases run them: for comparison only, never a default, and labelled so wherever they show.

They differ from ``unmask.sample`` in one thing. Whether a position is unmasked and which token it gets is drawn
together, from one categorical over all tokens and the mask, at every position, in each of N steps (Eq. 10): N L (V + 1)
random numbers, by the race argmax_i pi_i / (-log u_i), most often in float32. In float64 the law is that of
``plan.ancestral``; in float32 it is not (Sec. 5).

Two laws are at work in low precision, and they are not the same. Take K tokens of probability p beside a mask at
1 - r, r = K p, and c = e^-M / p. Uniforms scaled to float32's largest value ("float64-truncated") follow Prop. 5.2: the
mask is left with probability r e^{-(1 - r - p) c}. Real float32 uniforms are a grid that rounds everything above M down
to M: the mask is left with probability (e^{rc} - 1) / (e^c - 1), which is higher. Both are far below r once c > 1.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from unmask.draw import Draw, uniforms
from unmask.predict import log_mean
from unmask.protocol import for_sampling, inference, logits_at
from unmask.sampling import Sample, Step, apply, check_canvas, generators
from unmask.schedule import Linear, Schedule
from unmask.theory import largest_below_one

PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "float64-truncated": torch.float64}
FINAL = ("draw", "argmax")

Law = Callable[[Schedule, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(schedule, s, t) -> (a, b): a masked position goes to token v with probability a mu_v and stays with b."""


def race(precision: str = "float32", *, eps: float = 0.0) -> Draw:
    """The published categorical, the paper's figure of code versions: argmax_i pi_i / (-log u_i) over weights [R, K].

    precision: "float32", as published; "float64", the repair; "float64-truncated", float64 uniforms scaled to float32's
    largest one. eps: the constant that some codebases add twice, to u and to the exponential, 1e-10 as a rule; without
    it u = 0 loses every race. Unlike the draws of ``unmask.draw`` it takes weights, not logits.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(map(repr, PRECISIONS))}, got {precision!r}")
    if not 0 <= eps < 1e-3:
        raise ValueError(f"eps must be at least 0 and tiny (1e-10 is usual), got {eps}")

    def published_race(weights: Tensor, rows: Sequence[torch.Generator]) -> Tensor:
        u = uniforms(rows, weights.shape[-1], dtype=PRECISIONS[precision]).to(weights.device)
        if precision == "float64-truncated":
            u = u * largest_below_one("float32")
        return winner(weights, u, eps)

    return published_race


def winner(weights: Tensor, u: Tensor, eps: float = 0.0) -> Tensor:
    """argmax_i pi_i / (-log u_i), everything in the precision of u."""
    return (weights.to(u.dtype) / (eps - torch.log(u + eps))).argmax(-1)


def ancestral_law(schedule: Schedule, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Equation 10: (alpha_s - alpha_t) / (1 - alpha_t) and (1 - alpha_s) / (1 - alpha_t)."""
    alpha_s, alpha_t = schedule.alpha(s), schedule.alpha(t)
    return (alpha_s - alpha_t) / (1 - alpha_t), (1 - alpha_s) / (1 - alpha_t)


def euler_law(schedule: Schedule, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """SEDD's Euler step: (t - s) sigma(t) s(m, t), with the score s(m, t) = alpha_t / (1 - alpha_t) mu.

    sigma = -alpha'/alpha, so sigma(t) alpha_t / (1 - alpha_t) is minus the weight of Eq. 6, finite at alpha_t = 0 too.
    Where a step is too long the probability of staying would be negative; it never wins then.
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


def coupled_ancestral(
    model: Any,
    *,
    steps: int,
    num: int = 1,
    length: int | None = None,
    canvas: Tensor | None = None,
    precision: str = "float32",
    eps: float = 0.0,
    cache: bool = True,
    denoise: str = "draw",
    end: float = 0.0,
    law: Law = ancestral_law,
    schedule: Schedule | None = None,
    seed: int | Sequence[int] = 0,
    batch: int | None = None,
    callback: Callable[[Step], object] | None = None,
) -> Sample:
    """N-step ancestral sampling as published: tokens and mask in one categorical, over all positions, in every step.

    cache: the network's last output is used again as long as no sequence of the batch has changed, whatever the time.
    The grid is even from 1 to ``end`` (MDLM and SEDD stop at 1e-5); what is masked after it is filled at once,
    ``denoise`` by a "draw" from mu or by its "argmax". batch: at most so many sequences per network call. Everything
    else, and what comes back, is as in ``unmask.sample``; a Step's tau is the end of the step that unmasked a position,
    and ``planned`` a bound only, because the number of calls is not known before the end. ncs counts every row drawn.
    """
    started = clock.perf_counter()
    canvas = check_canvas(model, canvas, num, length)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a whole number of at least 1, got {steps!r}")
    if denoise not in FINAL:
        raise ValueError(f"denoise must be one of {FINAL}, got {denoise!r}")
    if not 0 <= end < 1:
        raise ValueError(f"end, the last time of the grid, must be in [0, 1), got {end}")
    if batch is not None and batch < 1:
        raise ValueError(f"batch must be at least 1, or None for all sequences at once, got {batch}")
    run = _Run(for_sampling(model), model.mask_id, law, schedule or Linear(), race(precision, eps=eps), cache, denoise)
    times = end + (1 - end) * torch.arange(steps, -1, -1, dtype=torch.float64) / steps
    random = generators(seed, len(canvas))
    tokens = canvas.clone()
    nfe, ncs = torch.zeros(2, len(canvas), dtype=torch.int64)
    trace: list[Step] = []
    size = batch or max(len(canvas), 1)
    parts = [torch.arange(i, min(i + size, len(canvas))) for i in range(0, len(canvas), size)]
    planned = sum(min(steps, max(part.numel() * canvas.shape[1], 1)) if cache else steps for part in parts)
    for part in parts:
        # A network may remember its run: each batch is one.
        fresh = replace(run, network=for_sampling(run.network))
        for drawn, step in fresh.stream(canvas[part], times, [random[i] for i in part.tolist()]):
            ncs[part] += drawn
            if step is None:
                continue
            nfe[part] += 1
            calls = len(trace) + 1
            step = replace(step, sequences=part[step.sequences], calls=calls, planned=max(planned, calls))
            trace.append(step)
            apply(step, tokens, model.mask_id)
            if callback is not None:
                callback(step)
    return Sample(tokens, tuple(trace), nfe, ncs, len(trace), clock.perf_counter() - started)


def sedd_euler(model: Any, *, steps: int, cache: bool = False, **options: Any) -> Sample:
    """SEDD's Euler sampler, as published; arguments as in ``coupled_ancestral``.

    Under the linear schedule it is the ancestral sampler; under others its steps are those of a constant rate.
    """
    return coupled_ancestral(model, steps=steps, cache=cache, law=euler_law, **options)


def sedd_tweedie(model: Any, *, steps: int, cache: bool = False, **options: Any) -> Sample:
    """SEDD's analytic sampler, Tweedie tau-leaping; arguments as in ``coupled_ancestral``, whose law it has."""
    return coupled_ancestral(model, steps=steps, cache=cache, law=tweedie_law, **options)


@dataclass(frozen=True)
class _Run:
    """What stays the same from one batch to the next."""

    network: Any
    mask_id: int
    law: Law
    schedule: Schedule
    pick: Draw
    cache: bool
    denoise: str

    def stream(self, x: Tensor, times: Tensor, random: Sequence[torch.Generator]) -> Iterator[tuple[int, Step | None]]:
        """For each step the rows drawn per sequence, and a Step if it is the one that the last network call is for.

        With the cache a call's output serves all steps up to the first that changes something: that is its Step.
        """
        rows = [generator for generator in random for _ in range(x.shape[1])]
        mu = None  # the network's output for x, once it is there
        for t, s in pairwise(times):
            if self.cache and not bool((x == self.mask_id).any()):
                return
            mu = self.mean(x, t) if mu is None or not self.cache else mu
            new = torch.where(x == self.mask_id, self.draw_coupled(mu, s, t, rows).view_as(x), x)
            changed = bool((new != x).any())
            yield x.shape[1], _step(x, new, mu, s) if changed or not self.cache else None
            x, mu = new, None if changed else mu
        masked = x == self.mask_id
        if bool(masked.any()):
            mu = self.mean(x, times[-1]) if mu is None or not self.cache else mu
            ids = mu.argmax(-1) if self.denoise == "argmax" else self.pick(mu.flatten(0, 1), rows).view_as(x)
            yield x.shape[1], _step(x, torch.where(masked, ids, x), mu, times[-1])

    def mean(self, x: Tensor, t: Tensor) -> Tensor:
        """mu at every position, [B, L, max(V, mask_id + 1)] in float64."""
        every = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
        with inference(self.network):
            mu = log_mean(logits_at(self.network, x, t.expand(len(x)).to(x.device), every)).exp()
        return torch.nn.functional.pad(mu, (0, max(self.mask_id + 1 - mu.shape[-1], 0)))

    def draw_coupled(self, mu: Tensor, s: Tensor, t: Tensor, rows: Sequence[torch.Generator]) -> Tensor:
        """Tokens and mask in one categorical, at every position: ids [B L]."""
        leave, stay = self.law(self.schedule, s, t)
        weights = mu * leave.to(mu.device)
        weights[..., self.mask_id] = stay.to(mu.device)
        return self.pick(weights.flatten(0, 1), rows)


def _step(x: Tensor, new: Tensor, mu: Tensor, tau: Tensor) -> Step:
    """What changed between two canvases, as a Step: positions packed to the left, -1 behind them."""
    changed = new != x
    width = int(changed.sum(1).max()) if changed.numel() else 0
    positions = torch.argsort((~changed).to(torch.int8), dim=1, stable=True)[:, :width]
    real = changed.gather(1, positions)
    tokens = torch.where(real, new.gather(1, positions), -1)
    at = mu.gather(1, positions.unsqueeze(-1).expand(-1, -1, mu.shape[-1]))
    probabilities = torch.where(real, at.gather(2, tokens.clamp(min=0).unsqueeze(-1)).squeeze(-1), 0.0)
    return Step(
        torch.arange(len(x)), torch.where(real, positions, -1), tokens, probabilities, torch.where(real, tau, 0.0),
        drawn=real, hidden=None, calls=0, planned=0,
    )  # fmt: skip
