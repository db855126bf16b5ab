"""Noise schedules: alpha(t), the probability that a token is still visible at time t (Eq. 1).

Every schedule decreases from alpha(0), about 1, to alpha(1), about 0. All arithmetic is in float64. ``inverse`` clamps
to [0, 1], so a schedule that does not reach its ends (Geometric, LogLinear) also works for a fully masked canvas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Number = float | Tensor


class Schedule(Protocol):
    """The interface that samplers and objectives use."""

    def alpha(self, t: Number) -> Tensor:
        """alpha_t: the probability of being visible at time t."""
        ...

    def alpha_prime(self, t: Number) -> Tensor:
        """The derivative of alpha by time; never positive."""
        ...

    def inverse(self, a: Number) -> Tensor:
        """alpha^-1(a): the time at which a token is visible with probability a."""
        ...

    def weight(self, t: Number) -> Tensor:
        """alpha'_t / (1 - alpha_t), the weight of Eq. 6, without the cancellation of 1 - alpha_t near t = 0."""
        ...


def _float64(value: Number) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


@dataclass(frozen=True)
class Linear:
    """alpha_t = 1 - t: the usual schedule of masked diffusion."""

    def alpha(self, t: Number) -> Tensor:
        return 1 - _float64(t)

    def alpha_prime(self, t: Number) -> Tensor:
        return torch.full_like(_float64(t), -1.0)

    def inverse(self, a: Number) -> Tensor:
        return (1 - _float64(a)).clamp(0, 1)

    def weight(self, t: Number) -> Tensor:
        return -1 / _float64(t)


@dataclass(frozen=True)
class Cosine:
    """alpha_t = 1 - cos(pi/2 (1 - t))."""

    def alpha(self, t: Number) -> Tensor:
        # 1 - cos x = 2 sin^2(x/2) keeps every digit where alpha is small.
        return 2 * torch.sin(math.pi / 4 * (1 - _float64(t))).square()

    def alpha_prime(self, t: Number) -> Tensor:
        return -math.pi / 2 * torch.sin(math.pi / 2 * (1 - _float64(t)))

    def inverse(self, a: Number) -> Tensor:
        half = (_float64(a).clamp(0, 1) / 2).sqrt()
        return (1 - 4 / math.pi * torch.asin(half)).clamp(0, 1)

    def weight(self, t: Number) -> Tensor:
        angle = math.pi / 2 * _float64(t)
        return -math.pi / 2 * torch.cos(angle) / torch.sin(angle)


@dataclass(frozen=True)
class Polynomial:
    """alpha_t = 1 - t^k."""

    k: float = 2.0

    def __post_init__(self) -> None:
        if not self.k > 0:
            raise ValueError(f"Polynomial(k={self.k}): k must be positive")

    def alpha(self, t: Number) -> Tensor:
        return 1 - _float64(t).pow(self.k)

    def alpha_prime(self, t: Number) -> Tensor:
        return -self.k * _float64(t).pow(self.k - 1)

    def inverse(self, a: Number) -> Tensor:
        return (1 - _float64(a)).clamp(0, 1).pow(1 / self.k)

    def weight(self, t: Number) -> Tensor:
        return -self.k / _float64(t)


@dataclass(frozen=True)
class Geometric:
    """alpha_t = exp(-sigma_t), sigma_t = sigma_min^(1-t) sigma_max^t. alpha_0 is a little below 1."""

    sigma_min: float = 1e-4
    sigma_max: float = 20.0

    def __post_init__(self) -> None:
        if not 0 < self.sigma_min < self.sigma_max:
            raise ValueError(f"0 < sigma_min < sigma_max is needed, got Geometric({self.sigma_min}, {self.sigma_max})")

    @property
    def _log_ratio(self) -> float:
        return math.log(self.sigma_max / self.sigma_min)

    def _sigma(self, t: Number) -> Tensor:
        return self.sigma_min * torch.exp(self._log_ratio * _float64(t))

    def alpha(self, t: Number) -> Tensor:
        return torch.exp(-self._sigma(t))

    def alpha_prime(self, t: Number) -> Tensor:
        return -self._log_ratio * self._sigma(t) * self.alpha(t)

    def inverse(self, a: Number) -> Tensor:
        sigma = -torch.log(_float64(a).clamp(0, 1))
        return (torch.log(sigma / self.sigma_min) / self._log_ratio).clamp(0, 1)

    def weight(self, t: Number) -> Tensor:
        sigma = self._sigma(t)
        return -self._log_ratio * sigma / torch.expm1(sigma)


@dataclass(frozen=True)
class LogLinear:
    """alpha_t = 1 - (1 - eps) t, the published "log-linear" noise of SEDD and MDLM: alpha_1 is eps instead of 0."""

    eps: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 <= self.eps < 1:
            raise ValueError(f"LogLinear(eps={self.eps}): 0 <= eps < 1 is needed")

    def alpha(self, t: Number) -> Tensor:
        return 1 - (1 - self.eps) * _float64(t)

    def alpha_prime(self, t: Number) -> Tensor:
        return torch.full_like(_float64(t), self.eps - 1)

    def inverse(self, a: Number) -> Tensor:
        return ((1 - _float64(a)) / (1 - self.eps)).clamp(0, 1)

    def weight(self, t: Number) -> Tensor:
        return -1 / _float64(t)


# By the name used in saved models and training configurations.
SCHEDULES: dict[str, Schedule] = {
    "linear": Linear(),
    "cosine": Cosine(),
    "polynomial": Polynomial(),
    "geometric": Geometric(),
    "log-linear": LogLinear(),
}
