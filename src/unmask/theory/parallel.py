"""The cost of decoding several tokens per network call, in closed form, and the group sizes that minimise it.

h(n), n = 0 .. L - 1, is the profile: the mean entropy in nats of a masked token given n visible ones, over all sets of
n positions and all positions outside. Parallel decoding (Algorithm 2) follows a uniform order in groups of sizes k_1 ..
k_N. It draws the tokens of a group independently, given the n_g = k_1 + .. + k_{g-1} tokens before the group.
The mean over orders of KL(truth || sampler) is

    sum_g k_g h(n_g) - sum_n h(n).

Proof. Along an order sigma, -log q_sigma(x) is the sum over groups, and over the tokens l of a group, of -log p(x^l |
x^S), where S are the n_g positions before the group. Its mean under the true distribution is the sum of the conditional
entropies H(x^l | x^S). Under a uniform order, S is a uniform set of n_g positions and l a uniform position outside it,
so each of the k_g terms of the group has mean h(n_g). With groups of one the sampler is the chain rule, q_sigma = p,
and sum_n h(n) is the joint entropy H(x). The difference is the mean of KL(p || q_sigma).

The order is not part of the sample: the sampler's distribution is the mixture of the q_sigma, and since KL is convex,
the divergence of the mixture is at most this. By the same steps, a network mu loses sum_g k_g h(n_g) - sum_n h(n) nats
against itself with one token per call, where h(n) is its mean cross-entropy on data with n visible tokens (Eq. 7).

Entropies are non-increasing in n (Han's inequality), so equal groups lose most where h falls fastest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


def parallel_loss(profile: ArrayLike, sizes: ArrayLike) -> float:
    """sum_g k_g h(n_g) - sum_n h(n) nats: the mean over orders of KL(truth || sampler) with groups of these sizes."""
    h = _profile(profile)
    k = np.asarray(sizes)
    if k.ndim != 1 or not np.issubdtype(k.dtype, np.integer) or k.size == 0 or k.min() < 1 or k.sum() != len(h):
        raise ValueError(f"sizes={k.tolist()}: whole numbers of at least 1 with the sum {len(h)} are needed")
    start = np.cumsum(k) - k
    return float((np.repeat(h[start], k) - h).sum())


def equal_sizes(length: int, steps: int) -> tuple[int, ...]:
    """The groups of ``plan.parallel``: N sizes that differ by at most one and sum to L."""
    _check_steps(steps, length)
    return tuple(np.bincount(np.arange(length) * steps // length).tolist())


def optimal_sizes(profile: ArrayLike, steps: int) -> tuple[int, ...]:
    """The N group sizes with the smallest ``parallel_loss`` for any finite profile: O(N L^2) dynamic programming."""
    (sizes,) = _optimal(_profile(profile), [steps])
    return sizes


@dataclass(frozen=True)
class ParallelCost:
    """The loss in nats for one number of steps."""

    steps: int
    equal: float  # with the groups of plan.parallel
    optimal: float
    sizes: tuple[int, ...]  # the optimal ones


def parallel_costs(profile: ArrayLike, steps: Iterable[int]) -> list[ParallelCost]:
    """The loss in nats with equal and with optimal sizes, for several numbers of steps."""
    h, steps = _profile(profile), list(steps)
    return [
        ParallelCost(n, parallel_loss(h, equal_sizes(len(h), n)), parallel_loss(h, sizes), sizes)
        for n, sizes in zip(steps, _optimal(h, steps), strict=True)
    ]


def smoothed(profile: ArrayLike, errors: ArrayLike) -> NDArray[np.float64]:
    """The smoothest curve z within the errors of a measured profile: the mean of ((h - z) / error)^2 is at most 1.

    Optimal sizes of a noisy profile start their groups at its chance minima. Among the curves that minimise sum ((h -
    z) / error)^2 + c sum (second differences of z)^2, this is the one with the largest such c.
    """
    h, error = _profile(profile), np.asarray(errors, dtype=np.float64)
    if error.shape != h.shape or not (error >= 0).all():
        raise ValueError(f"errors of shape {error.shape}: one of at least 0 for each of {len(h)} counts is needed")
    if len(h) < 4 or not (error > 0).all():
        return h
    second = np.diff(np.eye(len(h)), 2, axis=0)
    roughness, weight = second.T @ second, error**-2
    z = h
    for power in np.arange(-6, 12, 0.5):
        stiffer = np.linalg.solve(np.diag(weight) + 10.0**power * roughness, weight * h)
        if (((h - stiffer) / error) ** 2).mean() > 1:
            break
        z = stiffer
    return z


def _optimal(h: NDArray[np.float64], steps: list[int]) -> list[tuple[int, ...]]:
    """The best sizes for each number of steps, from one recursion up to the largest.

    least_g[j] = min_i least_{g-1}[i] + (j - i) h(i) is the smallest sum_g k_g h(n_g) of g groups that end at j.
    """
    length = len(h)
    for n in steps:
        _check_steps(n, length)
    start, end = np.arange(length)[:, None], np.arange(1, length + 1)
    group = np.where(end > start, (end - start) * h[:, None], np.inf)
    least, before = group[0], [np.zeros(length, dtype=np.int64)]  # one group, for the ends 1 .. L
    for g in range(1, max(steps, default=0)):  # g groups end at g or later
        total = least[g - 1 : -1, None] + group[g:, g:]
        before.append(np.pad(np.argmin(total, axis=0) + g, (g, 0)))  # where the last group starts
        least = np.pad(np.min(total, axis=0), (g, 0), constant_values=np.inf)
    groups = []
    for n in steps:
        ends = [length]
        for choice in reversed(before[:n]):
            ends.append(int(choice[ends[-1] - 1]))
        groups.append(tuple(np.diff(ends[::-1]).tolist()))
    return groups


def _profile(values: ArrayLike) -> NDArray[np.float64]:
    h = np.asarray(values, dtype=np.float64)
    if h.ndim != 1 or len(h) == 0 or not np.isfinite(h).all():
        raise ValueError(f"profile of shape {h.shape}: finite numbers h(0) .. h(L - 1) are needed")
    return h


def _check_steps(steps: int, length: int) -> None:
    if not 1 <= steps <= length:
        raise ValueError(f"steps={steps}: it must be in 1..{length}, the number of tokens")
