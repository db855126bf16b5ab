"""Uniform state: tokens are replaced by random ones, not by a mask.

At time t a token is still the one of the data with probability alpha, and otherwise uniform over the V ids, so

    q(z | x0) = alpha [z = x0] + (1 - alpha) / V

The network sees such a state x, never a mask. ``mask_id`` is V: on a canvas it marks a position without a token, to
which the sampler gives a random one before the first call.

What the network predicts is nu(v) = p(x0^l = v | the other positions of x). The token of l itself adds its likelihood,

    mu(v) = p(x0^l = v | x) ~ nu(v) q(x^l | v)        p(x^l = y | the others) = q(y | nu) = sum_v nu(v) q(y | v)

so the ratios p(x with y at l) / p(x), on which every reverse process and the bound depend, are q(y | nu) / q(x^l | nu).
This is the parameterisation of UDLM and DUO: substituting the network for x0 in the posterior of one token is exact for
nu, and not for E[x0^l | x] = mu. A network that ``scores`` predicts q(. | nu) instead: SEDD's log-ratios.

In the forward process tokens are replaced again and again, at the rate -alpha'/alpha. With the ratios
r(y) = q(y | x0) / q(x^l | x0) and s(y) = q(y | nu) / q(x^l | nu), and phi(u) = e^u - 1 - u, its paths give

    -log p(x0) <= int -alpha'/alpha E_x [ sum_l 1/V sum_y r(y) phi(log s(y) - log r(y)) ] dt

in which the expectation over the next jump y is computed and not drawn, for tokens that were replaced and for those
that were not. No term is negative, and for the true nu it is -log p(x0). It is the bound of SEDD, UDLM and DUO.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.schedule import Schedule

SMALLEST = 2.0**-53  # of alpha and 1 - alpha: at the ends the rate is infinite, and its integrand 0 / 0


def stretched(schedule: Schedule, t: Tensor) -> tuple[Tensor, Tensor]:
    """alpha at times t and its slope, stretched so that it runs from 1 at t = 0 to 0 at t = 1 under every schedule.

    The process starts from noise without a trace of the data and ends with data, and a bound over less is none.
    """
    ends = schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64)).to(t.device)
    span = ends[0] - ends[1]
    alpha = ((schedule.alpha(t).to(t.device) - ends[1]) / span).clamp(SMALLEST, 1 - SMALLEST)
    return alpha, schedule.alpha_prime(t).to(t.device) / span


def noised(x0: Tensor, replaced: Tensor, vocab_size: int) -> Tensor:
    """The state [B, L]: each token replaced by the id at ``replaced`` in 0..1, or kept where that is negative."""
    ids = (replaced * vocab_size).long().clamp(0, vocab_size - 1)  # in float32 a number just below 1 may become 1
    return torch.where(replaced < 0, x0, ids)


def noisy(nu: Tensor, alpha: Tensor) -> Tensor:
    """q(y | nu) [M, V], the distribution of the state at a position, from that of its clean token and alpha [M]."""
    alpha = alpha.unsqueeze(1)
    return alpha.to(nu) * nu + ((1 - alpha) / nu.shape[1]).to(nu)


def log_noisy(logits: Tensor, alpha: Tensor, *, scores: bool) -> Tensor:
    """log q(y | nu) [M, V] of a network's logits."""
    return logits.log_softmax(1) if scores else noisy(logits.softmax(1), alpha).log()


def clean(log_p: Tensor, alpha: Tensor, *, scores: bool) -> Tensor:
    """nu [M, V] from a network's normalised output. A score that no clean token explains counts as probability 0."""
    if not scores:
        return log_p.exp()
    alpha = alpha.unsqueeze(1).to(log_p)
    nu = ((log_p.exp() - (1 - alpha) / log_p.shape[1]) / alpha).clamp(min=0)
    return nu / nu.sum(1, keepdim=True)


def posterior(nu: Tensor, x: Tensor, alpha_s: Tensor, alpha_t: Tensor) -> Tensor:
    """p(x_s = y | x_t) [M, V] of each position, up to a factor, from nu [M, V], x_t [M], alpha_s and alpha_t [M].

    It is q(y | nu) at s times the probability that y becomes x_t; at alpha_s = 1 it is mu.
    """
    kept = (alpha_t / alpha_s).unsqueeze(1).to(nu)
    at_s, index = noisy(nu, alpha_s), x.unsqueeze(1)
    return (at_s * (1 - kept) / nu.shape[1]).scatter_add(1, index, at_s.gather(1, index) * kept)


def score_entropies(logits: Tensor, x: Tensor, x0: Tensor, alpha: Tensor, *, scores: bool = False) -> Tensor:
    """1/V sum_y r(y) phi(log s(y) - log r(y)) of each position, [M], from logits [M, V], x, x0 and alpha [M]."""
    here, vocab_size = x.unsqueeze(1), logits.shape[1]
    log_s = log_noisy(logits, alpha, scores=scores)
    log_s = log_s - log_s.gather(1, here)
    kept, other = (alpha + (1 - alpha) / vocab_size).log(), ((1 - alpha) / vocab_size).log()
    log_q = other.unsqueeze(1).to(log_s).expand_as(log_s).scatter(1, x0.unsqueeze(1), kept.unsqueeze(1).to(log_s))
    log_r = log_q - log_q.gather(1, here)
    u = log_s - log_r
    return (log_r.exp() * (u.expm1() - u)).sum(1) / vocab_size
