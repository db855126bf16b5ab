"""The Beta mixture of Eq. 8: how alpha is distributed when n of L positions are masked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class BetaMixture:
    """Eq. 8: alpha_n ~ Beta(L - n + 1, n), the mixture weights of times for a sequence with n masked tokens."""

    n: int
    L: int

    def __post_init__(self) -> None:
        if not 1 <= self.n <= self.L:
            raise ValueError(f"BetaMixture(n={self.n}, L={self.L}): 1 <= n <= L is needed")

    def log_density(self, alpha: ArrayLike) -> Array:
        """log of n C(L, n) alpha^(L-n) (1 - alpha)^(n-1) on [0, 1]; -inf outside."""
        a = np.asarray(alpha, dtype=np.float64)
        inside = (a >= 0) & (a <= 1)
        x = np.where(inside, a, 0.5)
        log_normaliser = math.log(self.n * math.comb(self.L, self.n))  # log of an exact integer
        with np.errstate(divide="ignore"):
            visible = (self.L - self.n) * np.log(x) if self.n < self.L else np.zeros_like(x)
            masked = (self.n - 1) * np.log1p(-x) if self.n > 1 else np.zeros_like(x)
        return np.asarray(np.where(inside, log_normaliser + visible + masked, -np.inf))

    def density(self, alpha: ArrayLike) -> Array:
        """The density of alpha_n, as in the paper's figure of Beta(L - n + 1, n)."""
        return np.asarray(np.exp(self.log_density(alpha)))

    @property
    def mode(self) -> float:
        """(L - n) / (L - 1)."""
        if self.L == 1:
            raise ValueError("BetaMixture(n=1, L=1) is the uniform distribution, which has no mode")
        return (self.L - self.n) / (self.L - 1)

    @property
    def mode_time(self) -> float:
        """(n - 1) / (L - 1): the mode of t under the linear schedule, close to the masked ratio n / L."""
        if self.L == 1:
            raise ValueError("BetaMixture(n=1, L=1) is the uniform distribution, which has no mode")
        return (self.n - 1) / (self.L - 1)

    @property
    def mean(self) -> float:
        """(L - n + 1) / (L + 1)."""
        return (self.L - self.n + 1) / (self.L + 1)

    @property
    def variance(self) -> float:
        """n (L - n + 1) / ((L + 1)^2 (L + 2))."""
        return self.n * (self.L - self.n + 1) / ((self.L + 1) ** 2 * (self.L + 2))

    @property
    def variance_bound(self) -> float:
        """1 / (4 (L + 2)), an upper bound for every n."""
        return 1 / (4 * (self.L + 2))

    def expectation(self, f: Callable[[Array], ArrayLike], nodes: int = 32) -> Array:
        """E[f(alpha_n)] by Gauss-Jacobi quadrature: exact for polynomials of degree below 2 `nodes`.

        `f` takes the array of nodes [Q] and returns [Q, ...]. Eq. 8 is f(a) = log mu(x_n, alpha^-1(a)).
        """
        points, weights = self._quadrature(nodes)
        return np.asarray(np.tensordot(weights, np.asarray(f(points), dtype=np.float64), axes=1))

    def _quadrature(self, nodes: int) -> tuple[Array, Array]:
        """Nodes and weights from the eigenvectors of the Jacobi matrix (Golub and Welsch)."""
        if nodes < 1:
            raise ValueError(f"nodes={nodes}: at least 1 is needed")
        # Jacobi polynomials on [-1, 1] with weight (1 - z)^a (1 + z)^b, where alpha = (1 + z) / 2.
        a, b = self.n - 1.0, float(self.L - self.n)
        k = np.arange(1, nodes, dtype=np.float64)
        c = 2 * k + a + b
        diagonal = np.concatenate([[(b - a) / (a + b + 2)], (b - a) * (a + b) / (c * (c + 2))])
        beside = np.sqrt(4 * k * (k + a) * (k + b) * (k + a + b) / (c**2 * (c**2 - 1)))
        jacobi = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        z, vectors = np.linalg.eigh(jacobi)
        return (1 + z) / 2, vectors[0] ** 2
