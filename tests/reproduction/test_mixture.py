"""Eq. 8 and what Sec. 3.1 says of its Beta distribution."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from reproduction.mixture import BetaMixture

PAIRS = [(1, 1), (1, 8), (4, 8), (8, 8), (1, 1024), (300, 1024), (1024, 1024)]


@pytest.mark.parametrize(("n", "L"), PAIRS)
def test_density_is_that_of_beta_l_minus_n_plus_1_and_n(n, L):
    alpha = np.linspace(0, 1, 101)
    reference = scipy.stats.beta(L - n + 1, n)
    np.testing.assert_allclose(BetaMixture(n, L).density(alpha), reference.pdf(alpha), rtol=1e-10, atol=1e-300)
    assert np.all(BetaMixture(n, L).density([-0.1, 1.1]) == 0)


@pytest.mark.parametrize(("n", "L"), [p for p in PAIRS if p[1] > 1])
def test_mode_is_l_minus_n_over_l_minus_1(n, L):
    mixture = BetaMixture(n, L)
    alpha = np.arange(L) / (L - 1)
    assert alpha[np.argmax(mixture.log_density(alpha))] == mixture.mode


@pytest.mark.parametrize(("n", "L"), PAIRS)
def test_mean_and_variance(n, L):
    mixture, reference = BetaMixture(n, L), scipy.stats.beta(L - n + 1, n)
    assert mixture.mean == pytest.approx(reference.mean(), rel=1e-12, abs=0)
    assert mixture.variance == pytest.approx(reference.var(), rel=1e-12, abs=0)


@pytest.mark.parametrize("L", [1, 2, 7, 1024])
def test_variance_is_at_most_one_over_4_l_plus_2(L):
    variances = [BetaMixture(n, L).variance for n in range(1, L + 1)]
    bound = BetaMixture(1, L).variance_bound
    assert bound == pytest.approx(1 / (4 * (L + 2)))
    assert max(variances) <= bound * (1 + 1e-15)
    if L % 2:
        assert variances[L // 2] == pytest.approx(bound, rel=1e-14, abs=0)  # attained at n = (L + 1) / 2


def test_linear_mode_of_time_is_close_to_the_masked_ratio():
    for n in (1, 10, 512, 1024):
        mixture = BetaMixture(n, 1024)
        assert mixture.mode_time == pytest.approx(1 - mixture.mode)
        assert abs(mixture.mode_time - n / 1024) < 1 / 1000


@pytest.mark.parametrize(("n", "L"), PAIRS)
def test_expectation_is_exact_for_moments(n, L):
    moments = BetaMixture(n, L).expectation(lambda a: a[:, None] ** np.arange(8), nodes=4)
    exact = [math.prod(Fraction(L - n + 1 + i, L + 1 + i) for i in range(k)) for k in range(8)]
    np.testing.assert_allclose(moments, [float(m) for m in exact], rtol=1e-12, atol=0)


def test_expectation_of_a_smooth_function():
    f = lambda a: np.log(0.1 + a**2)  # noqa: E731
    mixture = BetaMixture(5, 12)
    integral, _ = scipy.integrate.quad(lambda a: f(a) * mixture.density(a), 0, 1, epsabs=1e-13)
    assert mixture.expectation(f, nodes=48) == pytest.approx(integral, rel=1e-10)


def test_proposition_3_1_continuous_and_discrete_elbo_agree():
    """Eq. 6 integrated over alpha equals Eq. 7 with Eq. 8's mixture, for a network that depends on time."""
    L, x_0, rng = 3, (0, 1, 1), np.random.default_rng(0)
    weights = {pattern: rng.normal(size=(L, 3)) for pattern in itertools.product((False, True), repeat=L)}

    def log_mu(pattern, alpha):
        """sum over masked l of log mu^(l)(x, t)_{x_0}, a smooth function of alpha for each masked pattern."""
        total = np.zeros_like(alpha)
        for position in np.flatnonzero(pattern):
            u, v, w = weights[pattern][position]
            logit = u + v * alpha + w * np.sin(3 * alpha)
            total = total - np.logaddexp(0, -logit if x_0[position] else logit)
        return total

    def integrand(alpha):
        """Eq. 6 as an integral over alpha: E[sum log mu] / (1 - alpha) d alpha, negated."""
        masked = [p for p in weights if any(p)]
        chance = [alpha ** (L - sum(p)) * (1 - alpha) ** (sum(p) - 1) for p in masked]
        return -sum(c * log_mu(p, np.float64(alpha)) for c, p in zip(chance, masked, strict=True))

    continuous, _ = scipy.integrate.quad(integrand, 0, 1, epsabs=1e-13)
    discrete = 0.0
    for n in range(1, L + 1):
        patterns = [p for p in weights if sum(p) == n]
        assert len(patterns) == math.comb(L, n)
        bars = [BetaMixture(n, L).expectation(lambda a, p=p: log_mu(p, a)) for p in patterns]
        discrete -= float(np.mean(bars)) / n
    assert discrete == pytest.approx(continuous, rel=1e-10)


def test_bad_arguments_are_named():
    for n, L in [(0, 4), (5, 4), (1, 0)]:
        with pytest.raises(ValueError, match="1 <= n <= L"):
            BetaMixture(n, L)
    with pytest.raises(ValueError, match="no mode"):
        _ = BetaMixture(1, 1).mode
    with pytest.raises(ValueError, match="nodes"):
        BetaMixture(1, 4).expectation(np.log, nodes=0)
