# ruff: noqa: E741  (l is the paper's)
"""The paper's samplers as printed, for one sequence, to be read beside the paper.

Algorithms 1 to 4 and N-step ancestral sampling (Equation 10), in the paper's symbols:

    x, m    the sequence, int64 [L], and the mask at its masked positions; [m m ... m] is an empty canvas
    tau     the hitting times; alpha_tau is the expected share of visible tokens
    l       how many tokens are still masked (n in Algorithm 1)
    mu      the network's prediction at every position, float64 [L, V] (Equation 4)
    L_n     the decoding schedule: how many tokens are unmasked with one network call

Nothing here is fast. ``unmask.sample`` fills batches of any canvases with the same distributions, which the tests check
against these functions. Random numbers come from one torch.Generator, call by call: the distributions are the
reference, the noise is not. ``given`` is the exception: Algorithm 1 with all of its randomness passed in.

Where the paper is silent: a partly filled canvas starts at alpha^-1(1 - masked/L), which is 1 for an empty one.
Algorithm 3's mu is set to 0 where it is negative, and renormalised. Algorithm 4's last group is not corrected, and its
mu carries visible tokens over. A schedule with alpha_0 < 1 leaves tokens masked at time 0; they are unmasked there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from unmask.forward import reversal
from unmask.network import inference, logits_at
from unmask.predict import log_mean
from unmask.protocol import Denoiser
from unmask.schedule import Linear, Schedule


def first_hitting(
    model: Denoiser, x: Tensor, *, generator: torch.Generator, schedule: Schedule | None = None
) -> Tensor:
    """Algorithm 1: First-Hitting Sampling of MDMs."""
    m, schedule = model.mask_id, schedule or Linear()
    x, L, tau = start(x, m, schedule)
    for n in range(L, 0, -1):
        tau = hitting_time(tau, n, schedule, generator)
        mu = mean(model, x, tau)
        l = masked_position(x, m, generator)
        x[l] = categorical(mu[l], generator)
    return x


def given(
    model: Denoiser, x: Tensor, order: Sequence[int], times: Sequence[float], draw: Callable[[int, Tensor], int]
) -> Tensor:
    """Algorithm 1 with its randomness passed in: the positions l, their hitting times, and x^(l) = draw(l, mu^(l))."""
    x = x.clone()
    for l, tau in zip(order, times, strict=True):
        mu = mean(model, x, torch.tensor(tau, dtype=torch.float64))
        x[l] = draw(l, mu[l])
    return x


def parallel_decoding(
    model: Denoiser, x: Tensor, N: int, *, generator: torch.Generator, schedule: Schedule | None = None
) -> Tensor:
    """Algorithm 2: First-Hitting Sampling of MDMs (parallel decoding)."""
    m, schedule = model.mask_id, schedule or Linear()
    x, l, tau = start(x, m, schedule)
    for L_n in decoding_schedule(l, N):
        for i in range(1, L_n + 1):
            tau = hitting_time(tau, l, schedule, generator)
            if i == 1:
                mu = mean(model, x, tau)
            k = masked_position(x, m, generator)
            x[k] = categorical(mu[k], generator)
            l = l - 1
    return x


def extrapolation(
    model: Denoiser, x: Tensor, N: int, *, generator: torch.Generator, schedule: Schedule | None = None
) -> Tensor:
    """Algorithm 3: First-Hitting Sampling of MDMs (extrapolation)."""
    m, schedule = model.mask_id, schedule or Linear()
    x, l, tau_l = start(x, m, schedule)
    mu_last = tau_last = None
    for L_n in decoding_schedule(l, N):
        for i in range(1, L_n + 1):
            tau_l = hitting_time(tau_l, l, schedule, generator)
            if i == 1:
                mu = mean(model, x, tau_l)
                tau = tau_l
            if mu_last is None or tau_last is None:
                mu_hat = mu
            else:
                now, last = (tau_l - tau_last) / (tau - tau_last), (tau_l - tau) / (tau_last - tau)
                mu_hat = (now * mu + last * mu_last).clamp(min=0)
            k = masked_position(x, m, generator)
            x[k] = categorical(mu_hat[k], generator)
            l = l - 1
        mu_last, tau_last = mu, tau
    return x


def predictor_corrector(
    model: Denoiser, x: Tensor, N: int, *, generator: torch.Generator, schedule: Schedule | None = None
) -> Tensor:
    """Algorithm 4: First-Hitting Sampling of MDMs (predictor-corrector)."""
    m, schedule = model.mask_id, schedule or Linear()
    x, l, tau = start(x, m, schedule)
    x_hat, L_last = x, 0  # the first group has none before it to correct
    for L_n in decoding_schedule(l, N):
        for i in range(1, L_n + 1):
            tau = hitting_time(tau, l, schedule, generator)
            if i == 1:
                mu = mean(model, x, tau)
                x = x_hat
                for _ in range(L_last):
                    k = masked_position(x, m, generator)
                    x[k] = categorical(mu[k], generator)
                x_hat = x.clone()
            k = masked_position(x, m, generator)
            x[k] = categorical(mu[k], generator)
            l = l - 1
        L_last = L_n
    return x


def ancestral(
    model: Denoiser, x: Tensor, N: int, *, generator: torch.Generator, schedule: Schedule | None = None
) -> Tensor:
    """Equation 10: N steps of the reversal from t to s, in which every masked token may be unmasked."""
    m, schedule = model.mask_id, schedule or Linear()
    x, _, tau = start(x, m, schedule)
    times = [tau * n / N for n in range(N, -1, -1)]
    for t, s in pairwise(times):
        if bool((x == m).any()):
            q = reversal(x[None], mean(model, x, t)[None], s[None], t[None], schedule=schedule, mask_id=m)[0]
            x = torch.stack([categorical(q[l], generator) for l in range(len(x))])
    if bool((x == m).any()):
        mu = mean(model, x, times[-1])
        x = torch.stack([categorical(mu[l], generator) for l in range(len(x))])
    return x


def start(x: Tensor, m: int, schedule: Schedule) -> tuple[Tensor, int, Tensor]:
    """x_L to write to, its number of masked tokens, and the time tau_L at which as many are expected."""
    l = int((x == m).sum())
    return x.clone(), l, schedule.inverse(1 - l / max(len(x), 1))


def hitting_time(tau: Tensor, n: int, schedule: Schedule, generator: torch.Generator) -> Tensor:
    """Proposition 4.1: when the next of n masked tokens is unmasked, if the last one was at tau."""
    u = torch.rand((), generator=generator, dtype=torch.float64)
    return schedule.inverse(1 - u ** (1 / n) * (1 - schedule.alpha(tau)))


def mean(model: Denoiser, x: Tensor, tau: Tensor) -> Tensor:
    """Equation 4: mu(x, tau) is the softmax of the network's output where x is masked, and x elsewhere."""
    masked = x == model.mask_id
    mu = torch.zeros(len(x), model.vocab_size, dtype=torch.float64)
    mu[~masked] = torch.nn.functional.one_hot(x[~masked], model.vocab_size).double()
    with inference(model):
        logits = logits_at(model, x[None], tau[None], masked.nonzero().T)[0]
    mu[masked] = log_mean(logits).exp()
    return mu


def masked_position(x: Tensor, m: int, generator: torch.Generator) -> int:
    """One of the masked positions, uniformly."""
    positions = (x == m).nonzero().squeeze(1)
    return int(positions[torch.randint(len(positions), (1,), generator=generator)])


def categorical(weights: Tensor, generator: torch.Generator) -> Tensor:
    """An id drawn with these weights, in float64."""
    return torch.multinomial(weights, 1, generator=generator)[0]


def decoding_schedule(l: int, N: int) -> list[int]:
    """L_N, ..., L_1: l tokens in N groups whose sizes differ by at most one; one token each if there are fewer."""
    N = min(N, l)
    return [-(-(n + 1) * l // N) + (-n * l // N) for n in range(N)]
