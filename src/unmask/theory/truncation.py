"""Categorical sampling with truncated Gumbels (Sec. 5): how low precision changes a distribution, in closed form.

Everything here depends only on ratios of probabilities, so any non-negative weights with a positive sum will do, and
inputs are not normalised; outputs sum to one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# Bits of the significand, the hidden one included: the spacing of the numbers just below 1 is 2^-bits.
SIGNIFICAND_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def largest_below_one(dtype: str) -> float:
    """Table 1: the largest number below 1 of a floating-point type, 1 - 2^-bits, so the largest uniform u."""
    if dtype not in SIGNIFICAND_BITS:
        raise ValueError(f"dtype={dtype!r}: one of {', '.join(SIGNIFICAND_BITS)} is needed")
    return 1.0 - 2.0 ** -SIGNIFICAND_BITS[dtype]


def maximum_gumbel(dtype: str) -> float:
    """Table 1: M = -log(-log(1 - 2^-bits)), the largest Gumbel that uniforms of this type can give."""
    return -math.log(-math.log(largest_below_one(dtype)))


def _weights(name: str, values: ArrayLike) -> Array:
    weights = np.asarray(values, dtype=np.float64)
    if weights.ndim == 0 or weights.shape[-1] == 0:
        raise ValueError(f"{name} of shape {weights.shape}: the last axis must hold at least one class")
    if not np.all(weights >= 0):
        raise ValueError(f"{name}: every entry must be a number that is not negative, got {np.min(weights)}")
    with np.errstate(over="ignore"):
        total = weights.sum(axis=-1)
    if not (np.all(total > 0) and np.all(np.isfinite(total))):
        raise ValueError(f"{name}: the sum over the last axis must be positive and finite, got {total}")
    return weights


def _suffix_sums(terms: Array) -> Array:
    """sum_{k >= i} terms_k by doubling: the rounding error grows with log2 K, not with K as in a running sum."""
    sums = terms.copy()
    reach = 1
    while reach < sums.shape[-1]:
        sums[..., :-reach] = sums[..., :-reach] + sums[..., reach:]
        reach *= 2
    return sums


def shifted_probabilities(probabilities: ArrayLike, maximum: float) -> Array:
    """Proposition 5.2: the distribution of argmax_i (log pi_i + g_i) with Gumbels g_i truncated at M = `maximum`.

    `probabilities` [..., K] may be in any order and need not be normalised: only ratios matter. Zeros stay zero and
    equal entries stay equal. M = inf returns the normalised input.

    With the exponents E_i = (K + 1 - i - sum_{k>=i} pi_k / pi_i) e^-M <= 0, the second exponent of the paper's beta(i)
    is E_{i-1}, and
        x_i = E_i - E_{i-1} = e^-M sum_{k>=i} pi_k (pi_i - pi_{i-1}) / (pi_{i-1} pi_i) >= 0,
        E_i = -sum_{j>i} x_j,    beta(i) = e^{E_i} (1 - e^{-x_i}) / sum_{k>=i} pi_k,
    where all terms of every sum have the same sign: no digits cancel.
    """
    weights = _weights("probabilities", probabilities)
    if not maximum > -math.inf:
        raise ValueError(f"maximum={maximum}: a number above -inf is needed")
    # Small weights are scaled up towards 1 by a power of two, which is exact, so that no tail sum is denormal.
    _, exponent = np.frexp(weights.max(axis=-1, keepdims=True))
    up, down = -np.minimum(exponent, 0), -np.maximum(exponent, 0)

    order = np.argsort(weights, axis=-1)
    pi = np.ldexp(np.take_along_axis(weights, order, axis=-1), up)  # ascending
    previous = np.concatenate([np.zeros_like(pi[..., :1]), pi[..., :-1]], axis=-1)  # pi_{i-1}, with pi_0 = 0
    gap = pi - previous
    tail = _suffix_sums(pi)
    # e^-M in two halves, and one division at a time: pi_{i-1} pi_i underflows for denormal pi, e^-M for M > 745.
    half = np.exp(-maximum / 2)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        x = np.where(gap > 0, half * tail / previous * half * (gap / pi), 0.0)
    first = (previous == 0) & (pi > 0)
    x[first] = np.inf  # the second exponential is 0 where pi_{i-1} is

    minus_exponent = np.concatenate([_suffix_sums(x)[..., 1:], np.zeros_like(x[..., :1])], axis=-1)
    # Large weights are scaled down only here, where a weight that underflows has a result that does too.
    beta = np.exp(-minus_exponent) * -np.expm1(-x) / np.ldexp(tail, down)
    # The first beta is added last: if M is large it is almost the whole sum, and would absorb the others one by one. A
    # running sum never decreases, so equal pi stay equal and larger pi are amplified, to the last bit.
    gain = beta.sum(axis=-1, keepdims=True, where=first) + np.cumsum(np.where(first, 0.0, beta), axis=-1)
    shifted = np.empty(weights.shape)
    np.put_along_axis(shifted, order, np.ldexp(pi, down) * gain, axis=-1)
    return shifted


def unmasking_probability(mu: ArrayLike, alpha_s: ArrayLike, alpha_t: ArrayLike, maximum: float) -> Array:
    """Implication 2 of Proposition 5.2: the probability that a coupled step t -> s (Eq. 10) unmasks, under truncation.

    The step draws from [mu (alpha_s - alpha_t), 1 - alpha_s] / (1 - alpha_t); the mask is the last class. Exact Gumbels
    (maximum = inf) give (alpha_s - alpha_t) / (1 - alpha_t) for any mu; with truncated ones it depends on mu.

    `mu` [..., V] covers only the tokens and is normalised here; `alpha_s` and `alpha_t` broadcast with its leading
    axes, which are those of the result.
    """
    tokens = _weights("mu", mu)
    a_s, a_t = np.asarray(alpha_s, dtype=np.float64), np.asarray(alpha_t, dtype=np.float64)
    if not np.all((a_t >= 0) & (a_t <= a_s) & (a_s <= 1) & (a_t < 1)):
        raise ValueError(f"alpha_s={a_s}, alpha_t={a_t}: 0 <= alpha_t <= alpha_s <= 1 with alpha_t < 1 needed")
    tokens = tokens / tokens.sum(axis=-1, keepdims=True)
    tokens = tokens * (a_s - a_t)[..., None]
    mask = np.broadcast_to((1 - a_s)[..., None], (*tokens.shape[:-1], 1))
    # Summing the tokens keeps the digits that 1 - P(mask) would lose at small steps.
    return np.asarray(shifted_probabilities(np.concatenate([tokens, mask], axis=-1), maximum)[..., :-1].sum(axis=-1))


def effective_temperature(probabilities: ArrayLike, shifted: ArrayLike) -> Array:
    """Implication 1 of Proposition 5.2: the temperature T for which pi^(1/T) is closest to the shifted distribution.

    Closest in KL(shifted || pi^(1/T)), so T is the maximum-likelihood fit to draws from `shifted`: both have the same
    mean of log pi. T < 1 is colder than `probabilities`; 0 (up to rounding) means that only the most probable classes
    are left, and inf that no temperature makes `probabilities` as flat as `shifted`. For a uniform distribution T is
    not defined, and 1 is returned.
    """
    pi, target = _weights("probabilities", probabilities), _weights("shifted", shifted)
    if pi.shape != target.shape or np.any((pi == 0) & (target > 0)):
        raise ValueError(
            f"shifted of shape {target.shape}: the shape of probabilities, {pi.shape}, and its zeros are needed"
        )
    support = pi > 0
    top = pi.max(axis=-1, keepdims=True)
    score = np.log(pi / top, out=np.zeros_like(pi), where=support)
    goal = (target * score).sum(axis=-1) / target.sum(axis=-1)
    # The mean of log pi under pi^(1/T) rises with 1/T: bisect log2(1/T).
    low, high = np.full(goal.shape, -64.0), np.full(goal.shape, 64.0)
    for _ in range(64):
        middle = (low + high) / 2
        law = np.where(support, np.exp(np.exp2(middle)[..., None] * score), 0.0)
        colder = (law * score).sum(axis=-1) / law.sum(axis=-1) > goal
        low, high = np.where(colder, low, middle), np.where(colder, middle, high)
    flat = np.all(~support | (pi == top), axis=-1)
    temperature = np.where(low == -64.0, np.inf, np.exp2(-(low + high) / 2))
    return np.asarray(np.where(flat, 1.0, temperature))
