"""Continuous-time Markov chains and the equivalences of SEDD and masked diffusion models (the CTMC appendix).

States are 0..S-1; in the absorbing chain the mask m is the last of them. Matrices act on row vectors: P[x, y] is the
probability of going from x to y. A score vector s(x, t) has s_y = p_t(y) / p_t(x), so s_x = 1. A mean vector mu(x, t)
covers all states and is zero at the mask (Eq. 4). sigma_bar(t) is the integral of sigma, and alpha = e^-sigma_bar.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def _states(states: int) -> int:
    if states < 2:
        raise ValueError(f"states={states}: at least 2 are needed")
    return states


def uniform_rate(states: int) -> Array:
    """Q_uniform: 1 everywhere off the diagonal, 1 - S on it."""
    return np.ones((_states(states), states)) - states * np.eye(states)


def absorbing_rate(states: int) -> Array:
    """Q_absorb: every state goes to the mask, the last one, at rate 1."""
    rate = -np.eye(_states(states))
    rate[:, -1] += 1
    return rate


def uniform_exponential(sigma_bar: float, states: int) -> Array:
    """e^{sigma_bar Q_uniform} = I + (1 - e^{-S sigma_bar}) / S Q_uniform, since Q^2 = -S Q."""
    return np.asarray(np.eye(_states(states)) - np.expm1(-states * sigma_bar) / states * uniform_rate(states))


def absorbing_exponential(sigma_bar: float, states: int) -> Array:
    """e^{sigma_bar Q_absorb} = I + (1 - e^{-sigma_bar}) Q_absorb, since Q^n = (-1)^{n-1} Q."""
    return np.asarray(np.eye(_states(states)) - np.expm1(-sigma_bar) * absorbing_rate(states))


def alpha_from_noise(sigma_bar: ArrayLike) -> Array:
    """alpha_t = e^{-sigma_bar(t)}: the forward process of SEDD Absorb is that of masked diffusion (Eq. 1)."""
    return np.asarray(np.exp(-np.asarray(sigma_bar, dtype=np.float64)))


def noise_from_alpha(alpha: ArrayLike) -> Array:
    """sigma_bar(t) = -log alpha_t."""
    return np.asarray(-np.log(np.asarray(alpha, dtype=np.float64)))


def noise_rate(alpha: ArrayLike, alpha_prime: ArrayLike) -> Array:
    """sigma(t) = -alpha'_t / alpha_t."""
    return np.asarray(-np.asarray(alpha_prime, dtype=np.float64) / np.asarray(alpha, dtype=np.float64))


def concrete_score(p: ArrayLike) -> Array:
    """The concrete score of a marginal p_t, for all pairs: s[x, y] = p(y) / p(x)."""
    marginal = np.asarray(p, dtype=np.float64)
    if marginal.ndim != 1 or not np.all(marginal > 0):
        raise ValueError(f"p={marginal}: a vector of positive probabilities is needed")
    return np.asarray(marginal[None, :] / marginal[:, None])


def reverse_rate(rate: ArrayLike, p: ArrayLike) -> Array:
    """The time reversal's rates: Qbar(x, y) = p(y) / p(x) Q(y, x) off the diagonal, rows summing to zero."""
    reverse = concrete_score(p) * np.asarray(rate, dtype=np.float64).T
    np.fill_diagonal(reverse, 0.0)
    np.fill_diagonal(reverse, -reverse.sum(axis=1))
    return reverse


def _open_unit(alpha: float) -> float:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha={alpha}: 0 < alpha < 1 is needed")
    return alpha


def score_from_mean(mu: ArrayLike, alpha: float) -> Array:
    """s(m, t) = alpha_t / (1 - alpha_t) mu(m, t), except at the mask, where s_m = 1."""
    score = np.asarray(mu, dtype=np.float64) * (_open_unit(alpha) / (1 - alpha))
    score[..., -1] = 1.0
    return np.asarray(score)


def mean_from_score(score: ArrayLike, alpha: float) -> Array:
    """mu(m, t) = (1 - alpha_t) / alpha_t s(m, t), except at the mask, where mu_m = 0."""
    mu = np.asarray(score, dtype=np.float64) * ((1 - alpha) / _open_unit(alpha))
    mu[..., -1] = 0.0
    return np.asarray(mu)


def score_elsewhere(score_at_mask: ArrayLike, x: int) -> Array:
    """s(x)_y = s(m)_y / s(m)_x: the score at any state from the one at the mask."""
    score = np.asarray(score_at_mask, dtype=np.float64)
    return np.asarray(score / score[x])


def score_entropy(a: ArrayLike, b: ArrayLike) -> Array:
    """I(a, b) = a - b log a + K(b) with K(b) = b log b - b: non-negative, and 0 where a = b; I(a, 0) = a."""
    a, b = np.broadcast_arrays(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
    if np.any(a < 0) or np.any(b < 0):
        raise ValueError("a, b: scores and ratios must not be negative")
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(b > 0, a - b + b * (np.log(b) - np.log(a)), a))


def denoising_score_entropy(score: ArrayLike, x_0: int, alpha: float) -> float:
    """sum_{x != m} I(s(m, t)_x, p_{t|0}(x | x_0) / p_{t|0}(m | x_0)): the inner sum of SEDD's DWDSE at x_t = m."""
    predicted = np.asarray(score, dtype=np.float64)[:-1]
    ratio = np.zeros_like(predicted)
    ratio[x_0] = _open_unit(alpha) / (1 - alpha)
    return float(score_entropy(predicted, ratio).sum())


def euler(score: ArrayLike, x_t: int, rate: ArrayLike, step: float) -> Array:
    """Euler step: p(y | x_t) = (t - s) Q_t(y, x_t) s(x_t, t)_y for y != x_t; the rest is the probability of staying.

    `rate` is Q_t = sigma(t) Q and `step` is t - s. The rest is negative if the step is too long.
    """
    law = step * np.asarray(rate, dtype=np.float64)[:, x_t] * np.asarray(score, dtype=np.float64)
    law[x_t] = 0.0
    law[x_t] = 1 - law.sum()
    return np.asarray(law)


def tweedie(score: ArrayLike, x_t: int, exponential: Callable[[float, int], Array], delta: float) -> Array:
    """Tweedie tau-leaping: p(y | x_t) = (e^{delta Q})_{y, x_t} (s(x_t, t) e^{-delta Q})_y.

    `exponential` is uniform_exponential or absorbing_exponential, and delta = sigma_bar(t) - sigma_bar(s).
    """
    s = np.asarray(score, dtype=np.float64)
    return np.asarray(exponential(delta, s.size)[:, x_t] * (s @ exponential(-delta, s.size)))


def _stay(x_t: int, states: int) -> Array:
    law = np.zeros(states)
    law[x_t] = 1.0
    return law


def euler_absorbing(score: ArrayLike, x_t: int, *, sigma: float, sigma_bar: float, step: float) -> Array:
    """Euler step of SEDD Absorb, simplified: (t - s) sigma(t) s(m, t)_y, and the rest at the mask."""
    s = np.asarray(score, dtype=np.float64)
    if x_t != s.size - 1:
        return _stay(x_t, s.size)
    law = np.asarray(step * sigma * s)
    law[-1] = 1 - step * sigma / np.expm1(sigma_bar)  # e^-sigma_bar / (1 - e^-sigma_bar) = 1 / (e^sigma_bar - 1)
    return law


def tweedie_absorbing(score: ArrayLike, x_t: int, *, sigma_bar_s: float, sigma_bar_t: float) -> Array:
    """Tweedie step of SEDD Absorb, simplified: (e^{sigma_bar(t) - sigma_bar(s)} - 1) s(m, t)_y off the mask."""
    s = np.asarray(score, dtype=np.float64)
    if x_t != s.size - 1:
        return _stay(x_t, s.size)
    law = np.asarray(np.expm1(sigma_bar_t - sigma_bar_s) * s)
    law[-1] = np.expm1(-sigma_bar_s) / np.expm1(-sigma_bar_t)
    return law


def ancestral(mu: ArrayLike, x_t: int, *, alpha_s: float, alpha_t: float) -> Array:
    """Eq. 3 (Eq. 2 with mu for e_{x_0}): [(alpha_s - alpha_t) mu + (1 - alpha_s) e_m] / (1 - alpha_t) at the mask."""
    mean = np.asarray(mu, dtype=np.float64)
    if x_t != mean.size - 1:
        return _stay(x_t, mean.size)
    if not 0 <= alpha_t <= alpha_s <= 1 or alpha_t == 1:
        raise ValueError(f"alpha_s={alpha_s}, alpha_t={alpha_t}: 0 <= alpha_t <= alpha_s <= 1 with alpha_t < 1 needed")
    law = np.asarray((alpha_s - alpha_t) / (1 - alpha_t) * mean)
    law[-1] = (1 - alpha_s) / (1 - alpha_t)
    return law
