"""Prop. 5.2 and Table 1, against 50-digit arithmetic, the integral of its proof, and simulation."""

from __future__ import annotations

from itertools import pairwise

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.theory import (
    effective_temperature,
    largest_below_one,
    maximum_gumbel,
    shifted_probabilities,
    unmasking_probability,
)

GPT2 = 50_257
FLOAT32 = 16.6355


def printed_formula(probabilities, maximum, digits=50):
    """Prop. 5.2 as printed, term by term, in mpmath."""
    with mpmath.workdps(digits):
        order = np.argsort(probabilities, kind="stable")
        pi = [mpmath.mpf(float(probabilities[i])) for i in order]
        K, e_minus_M = len(pi), mpmath.exp(-mpmath.mpf(float(maximum)))
        tail = [mpmath.mpf(0)] * (K + 1)
        for i in reversed(range(K)):
            tail[i] = tail[i + 1] + pi[i]
        shifted, total = [mpmath.mpf(0)] * K, mpmath.mpf(0)
        for i in range(K):  # the paper's i is this one plus 1
            if pi[i] == 0:
                continue
            second = mpmath.mpf(0)
            if i > 0 and pi[i - 1] > 0:
                second = mpmath.exp((K - i - tail[i] / pi[i - 1]) * e_minus_M)
            total += (mpmath.exp((K - i - tail[i] / pi[i]) * e_minus_M) - second) / tail[i]
            shifted[order[i]] = pi[i] * total
        return shifted


def worst_error(values, reference):
    """The largest relative error; below the normal range, where float64 has fewer digits, in units of 1e-308."""
    floor = mpmath.mpf("1e-308")
    return max(float(abs(mpmath.mpf(float(v)) - r) / max(r, floor)) for v, r in zip(values, reference, strict=True))


def zipf(K, power=1.0):
    weights = np.arange(1, K + 1) ** -power
    return weights / weights.sum()


def cases():
    rng = np.random.default_rng(0)
    near = 1 + np.finfo(np.float64).eps * rng.integers(0, 4, 300)
    return {
        "zipf": zipf(2000),
        "steep zipf": zipf(2000, 1.5),
        "shuffled log-normal": np.exp(rng.normal(size=1000) * 3),
        "mask at 1 - 1/N": np.append(zipf(1000) / 50_000, 1 - 1 / 50_000),
        "peaked": np.append(np.exp(rng.normal(size=2000) * 8 - 40), 1.0),
        "ties": np.repeat(rng.random(20), 50),
        "uniform": np.full(100, 0.01),
        "apart by the last bit": near / near.sum(),
        "zeros among them": np.where(rng.random(300) < 0.5, 0.0, rng.random(300)),
        "denormal beside certain": np.append(rng.integers(0, 50, 200) * 5e-324, [1e-310, 1e-200, 0.25, 0.75]),
        "all denormal": rng.integers(0, 10**6, 1000) * 5e-324,
        "near the largest": np.concatenate([rng.random(50) * 1e300, rng.random(50) * 1e-300]),
        "one class": np.array([0.3]),
    }


@pytest.mark.parametrize("maximum", [1.0, 5.0, 8.0, FLOAT32, 36.7368, 40.0])
@pytest.mark.parametrize("name", cases())
def test_proposition_5_2_agrees_with_50_digits(name, maximum):
    pi = cases()[name]
    assert worst_error(shifted_probabilities(pi, maximum), printed_formula(pi, maximum)) < 1e-10


@pytest.mark.parametrize(
    ("pi", "maximum"),
    [
        pytest.param(zipf(GPT2), FLOAT32, id="zipf"),
        pytest.param(np.append(zipf(GPT2, 1.5) / 50_000, 1 - 1 / 50_000), 8.0, id="mask-beside-zipf"),
    ],
)
def test_proposition_5_2_agrees_with_50_digits_at_the_papers_vocabulary(pi, maximum):
    assert worst_error(shifted_probabilities(pi, maximum), printed_formula(pi, maximum)) < 1e-10


def test_denormal_probabilities_where_truncation_still_matters():
    """At M = 720, e^-M is itself denormal and comparable to the denormal probabilities."""
    pi = np.append(10.0 ** -np.linspace(306, 320, 40), 1.0)
    shifted, reference = shifted_probabilities(pi, 720.0), printed_formula(pi, 720.0, 400)
    normal = pi > 1e-307
    assert worst_error(shifted[normal], [r for r, n in zip(reference, normal, strict=True) if n]) < 1e-10
    tiny = zip(shifted[:-1], reference[:-1], strict=True)
    assert max(abs(mpmath.mpf(float(v)) - r) for v, r in tiny) <= mpmath.mpf("1e-320")
    assert 0.1 < shifted[0] / pi[0] < 0.9999999  # the case is one that shifts


def test_naive_differences_of_exponentials_lose_what_the_stable_form_keeps():
    """As printed, in float64: denormals overflow, and a small shift is off in its third digit."""

    def naive(pi, maximum):
        tail, count, e_minus_M = np.cumsum(pi[::-1])[::-1], np.arange(pi.size, 0, -1), np.exp(-maximum)
        with np.errstate(all="ignore"):
            previous = np.append(0.0, pi[:-1])
            beta = np.exp((count - tail / pi) * e_minus_M) - np.exp((count - tail / previous) * e_minus_M)
            return pi * np.cumsum(beta / tail)

    def shift(law, pi):  # of the largest class against the smallest
        with mpmath.workdps(50):
            first, last = (mpmath.mpf(law[i]) / mpmath.mpf(float(pi[i])) for i in (0, -1))
            return float(last / first - 1)

    assert not np.isfinite(naive(np.sort(cases()["all denormal"]), FLOAT32)).any()
    pi = np.sort(zipf(2000))
    exact = shift(printed_formula(pi, 36.7368), pi)
    assert shift(naive(pi, 36.7368), pi) != pytest.approx(exact, rel=2e-3, abs=0)
    assert shift(shifted_probabilities(pi, 36.7368), pi) == pytest.approx(exact, rel=1e-3, abs=0)


def test_proof_of_proposition_5_2_integral():
    """The first line of the proof, integrated numerically: int f(g) prod_{k != n} F(theta_n + g - theta_k) dg."""
    pi, M = np.array([0.5, 0.05, 0.2, 0.15, 0.1]), 1.2
    log_F_M = -np.exp(-M)

    def integrand(g, n):
        others = np.delete(np.log(pi[n]) + g - np.log(pi), n)
        return np.exp(-g - np.exp(-g) - log_F_M + np.minimum(-np.exp(-others) - log_F_M, 0).sum())

    shifted = shifted_probabilities(pi, M)
    for n in range(pi.size):
        kinks = sorted(M + np.log(pi) - np.log(pi[n]))
        edges = [-8.0, *[k for k in kinks if k < M], M]
        parts = [scipy.integrate.quad(integrand, a, b, args=(n,), epsabs=1e-13)[0] for a, b in pairwise(edges)]
        assert sum(parts) == pytest.approx(shifted[n], rel=1e-9, abs=0)


def test_proposition_5_2_is_the_distribution_of_truncated_gumbels():
    """400,000 simulated draws. Chi-square with 5 degrees of freedom; false alarm 1e-6; the seed is fixed."""
    rng = np.random.default_rng(1)
    pi, M, draws = np.array([0.4, 0.02, 0.3, 0.05, 0.05, 0.18]), 0.5, 400_000
    g = -np.log(np.exp(-M) + rng.exponential(size=(draws, pi.size)))  # F(g) = u F(M) with u uniform
    assert g.max() <= M
    counts = np.bincount(np.argmax(np.log(pi) + g, axis=1), minlength=pi.size)
    assert scipy.stats.chisquare(counts, draws * shifted_probabilities(pi, M)).pvalue > 1e-6
    assert scipy.stats.chisquare(counts, draws * pi).pvalue < 1e-100


weights = st.lists(
    st.one_of(st.floats(0, 1), st.sampled_from([0.0, 5e-324, 1e-310, 1e-12, 0.25, 1.0])), min_size=1, max_size=30
).filter(lambda w: sum(w) > 0)
maxima = st.floats(-2, 60)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(weights, maxima)
def test_shifted_probabilities_sum_to_one_and_keep_zeros_ties_and_order(w, maximum):
    pi = np.array(w)
    shifted = shifted_probabilities(pi, maximum)
    assert shifted.sum() == pytest.approx(1, rel=1e-13)
    assert np.all(shifted >= 0)
    assert np.all(shifted[pi == 0] == 0)
    for p in np.unique(pi):
        assert np.unique(shifted[pi == p]).size == 1
    assert np.all(np.diff(shifted[np.argsort(pi)]) >= 0)


@settings(derandomize=True, deadline=None)
@given(weights, maxima, st.randoms(use_true_random=False), st.integers(-900, 900))
def test_shifted_probabilities_ignore_order_and_scale(w, maximum, random, power):
    pi = np.array([0.0 if p < 1e-12 else p for p in w] + [1.0])  # so that no power of two makes one denormal
    order = list(range(pi.size))
    random.shuffle(order)
    shifted = shifted_probabilities(pi, maximum)
    np.testing.assert_allclose(shifted_probabilities(pi[order], maximum), shifted[order], rtol=1e-13, atol=0)
    np.testing.assert_allclose(shifted_probabilities(np.ldexp(pi, power), maximum), shifted, rtol=1e-13, atol=0)


@pytest.mark.parametrize("maximum", [5.0, FLOAT32, 36.7368])
def test_implication_1_larger_probabilities_are_amplified(maximum):
    pi = np.sort(zipf(1000))
    gain = shifted_probabilities(pi, maximum) / pi
    assert np.all(gain[1:] >= gain[:-1] * (1 - 4e-16))  # two roundings of the division
    assert gain[-1] > gain[0]
    if maximum <= FLOAT32:
        assert np.all(np.diff(gain) > 0)


def test_an_infinite_maximum_gives_the_probabilities_back():
    pi = np.array([[0.5, 0.0, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25], [1e-310, 0.0, 0.0, 1.0]])
    np.testing.assert_allclose(shifted_probabilities(pi, np.inf), pi, rtol=1e-15, atol=5e-324)
    errors = [np.abs(shifted_probabilities(pi, M) - pi).max() for M in (2.0, 8.0, 16.0, 32.0)]
    assert all(later < earlier for earlier, later in pairwise(errors))
    assert errors[-1] < 1e-12


def test_batches_are_rows():
    pi = np.random.default_rng(0).dirichlet(np.full(7, 0.3), size=(2, 3))
    shifted = shifted_probabilities(pi, 3.0)
    assert shifted.shape == (2, 3, 7)
    for index in np.ndindex(2, 3):
        np.testing.assert_array_equal(shifted[index], shifted_probabilities(pi[index], 3.0))


def test_the_input_is_left_as_it_was():
    pi = np.array([0.5, 0.2, 0.3])
    shifted_probabilities(pi, 3.0)
    np.testing.assert_array_equal(pi, [0.5, 0.2, 0.3])


@pytest.mark.parametrize("bad", [[], 0.5, [0.5, -0.5], [0.5, np.nan], [0.0, 0.0], [np.inf, 1.0], [1e308, 1e308]])
def test_bad_probabilities_are_named(bad):
    with pytest.raises(ValueError, match="probabilities"):
        shifted_probabilities(bad, 5.0)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_bad_maxima_are_named(bad):
    with pytest.raises(ValueError, match="maximum"):
        shifted_probabilities([0.5, 0.5], bad)


def test_table_1_maximum_gumbel():
    assert maximum_gumbel("float32") == pytest.approx(16.6355, abs=5e-5)
    assert maximum_gumbel("float64") == pytest.approx(36.7368, abs=5e-5)
    for dtype, bits in {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}.items():
        with mpmath.workdps(50):
            exact = -mpmath.log(-mpmath.log(1 - mpmath.mpf(2) ** -bits))
        assert maximum_gumbel(dtype) == pytest.approx(float(exact), rel=1e-14)
    with pytest.raises(ValueError, match="float8"):
        maximum_gumbel("float8")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_table_1_largest_representable_below_one(dtype):
    assert largest_below_one(dtype) == float(np.nextafter(np.dtype(dtype).type(1), np.dtype(dtype).type(0)))


def test_unmasking_probability_without_truncation_is_the_schedules():
    mu = np.random.default_rng(0).dirichlet(np.ones(20), size=3)
    np.testing.assert_allclose(unmasking_probability(mu, 0.5, 0.49, np.inf), 0.01 / 0.51, rtol=1e-13)
    assert unmasking_probability([0.5, 0.5], 1.0, 0.3, 2.0) == 1
    assert unmasking_probability([0.5, 0.5], 0.3, 0.3, 2.0) == 0


def test_unmasking_probability_agrees_with_50_digits():
    mu, alpha_s, alpha_t = zipf(500), 0.5, 0.5 - 1 / 8192
    law = printed_formula(np.append(mu * (alpha_s - alpha_t), 1 - alpha_s), FLOAT32)
    exact = float(mpmath.fsum(law[:-1]))
    assert unmasking_probability(mu, alpha_s, alpha_t, FLOAT32) == pytest.approx(exact, rel=1e-10, abs=0)
    assert unmasking_probability(7 * mu, alpha_s, alpha_t, FLOAT32) == pytest.approx(exact, rel=1e-10, abs=0)


def test_implication_2_prioritized_unmasking():
    """Under truncation, the chance of unmasking depends on mu: confident positions come first, and all come late."""
    flat, peaked = np.full(GPT2, 1 / GPT2), np.append(np.full(GPT2 - 1, 1e-3 / GPT2), 1 - 1e-3)
    alpha_t = np.array([0.5, 0.5])
    chance = unmasking_probability(np.stack([flat, peaked]), alpha_t + 1e-4, alpha_t, maximum_gumbel("float32"))
    exact = 1e-4 / 0.5
    assert chance.shape == (2,)
    assert chance[0] < 0.8 * exact
    assert 0.9 * exact < chance[1] < exact


def test_bad_alphas_are_named():
    for alpha_s, alpha_t in [(0.2, 0.5), (1.2, 0.5), (0.5, -0.1), (1.0, 1.0)]:
        with pytest.raises(ValueError, match="alpha_s"):
            unmasking_probability([0.5, 0.5], alpha_s, alpha_t, 5.0)


def test_effective_temperature_recovers_a_temperature():
    pi = np.append(zipf(300), [0.0])
    for T in (0.25, 0.9, 1.0, 1.0 - 1e-6, 3.0):
        assert effective_temperature(pi, pi ** (1 / T)) == pytest.approx(T, rel=1e-12)


def test_effective_temperature_of_truncation_is_below_one():
    pi = np.stack([zipf(3000), zipf(3000, 2.0)])
    temperatures = [effective_temperature(pi, shifted_probabilities(pi, M)) for M in (4.0, 8.0, FLOAT32)]
    assert all(np.all(t < 1) for t in temperatures)
    assert np.all(temperatures[0] < temperatures[1]) and np.all(temperatures[1] < temperatures[2])


def test_effective_temperature_at_its_limits():
    assert effective_temperature([0.25] * 4, [0.25] * 4) == 1
    assert effective_temperature([0.5, 0.3, 0.2], [1.0, 0.0, 0.0]) < 1e-2
    assert effective_temperature([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]) == np.inf
    with pytest.raises(ValueError, match="zeros"):
        effective_temperature([1.0, 0.0], [0.5, 0.5])
