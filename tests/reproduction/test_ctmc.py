"""The CTMC appendix: chains, their reversal, and the equivalence of SEDD Absorb and masked diffusion."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.integrate
import scipy.linalg

from reproduction import ctmc

CHAINS = {
    "uniform": (ctmc.uniform_rate, ctmc.uniform_exponential),
    "absorbing": (ctmc.absorbing_rate, ctmc.absorbing_exponential),
}
chains = pytest.mark.parametrize("chain", CHAINS)
S = 5  # states; the mask is state 4
MASK = S - 1


def start(chain):
    """p_0: positive everywhere, except that data are never the mask."""
    p = np.array([0.1, 0.4, 0.2, 0.05, 0.25])
    if chain == "absorbing":
        p[MASK] = 0
    return p / p.sum()


def mean():
    return np.append(np.array([0.5, 0.125, 0.3, 0.075]), 0.0)


@chains
def test_rate_matrices_as_printed(chain):
    rate = CHAINS[chain][0](S)
    assert np.all(rate.sum(axis=1) == 0)
    expected = {"uniform": [1, 1 - S, 1, 1, 1], "absorbing": [0, -1, 0, 0, 1]}
    np.testing.assert_array_equal(rate[1], expected[chain])
    np.testing.assert_array_equal(rate[MASK], {"uniform": [1, 1, 1, 1, 1 - S], "absorbing": [0] * S}[chain])


@chains
@pytest.mark.parametrize("sigma_bar", [0.0, 1e-9, 0.3, 4.0, -0.3, -2.0])
def test_transition_matrix_is_the_exponential(chain, sigma_bar):
    rate, exponential = CHAINS[chain]
    expected = scipy.linalg.expm(sigma_bar * rate(S))
    np.testing.assert_allclose(exponential(sigma_bar, S), expected, rtol=1e-11, atol=1e-14 * np.abs(expected).max())


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_powers_of_q_absorb(n):
    rate = ctmc.absorbing_rate(S)
    np.testing.assert_array_equal(np.linalg.matrix_power(rate, n), (-1.0) ** (n - 1) * rate)


@chains
def test_kolmogorov_forward_equation(chain):
    rate, exponential = CHAINS[chain]
    h = 1e-5
    slope = (exponential(0.7 + h, S) - exponential(0.7 - h, S)) / (2 * h)
    np.testing.assert_allclose(slope, exponential(0.7, S) @ rate(S), atol=1e-7)


@chains
def test_the_chain_forgets_its_start(chain):
    base = {"uniform": np.full(S, 1 / S), "absorbing": np.eye(S)[MASK]}[chain]
    np.testing.assert_allclose(CHAINS[chain][1](40.0, S), np.tile(base, (S, 1)), atol=1e-15)


def test_forward_process_of_sedd_absorb_is_eq_1():
    """P_{t|0} rows are alpha_t e_{x_0} + (1 - alpha_t) e_m with alpha_t = e^{-sigma_bar}."""
    alpha = ctmc.alpha_from_noise(0.8)
    expected = alpha * np.eye(S) + (1 - alpha) * np.eye(S)[MASK]
    np.testing.assert_allclose(ctmc.absorbing_exponential(0.8, S), expected, rtol=1e-14)
    assert ctmc.noise_from_alpha(alpha) == pytest.approx(0.8, rel=1e-14)


@chains
def test_reverse_rate_matrix_reverses_the_marginals(chain):
    """dp/dt = p Q forwards and dp/ds = -p Qbar backwards are the same motion."""
    rate, exponential = CHAINS[chain]
    p_t = start(chain) @ exponential(0.4, S)
    reverse = ctmc.reverse_rate(rate(S), p_t)
    np.testing.assert_allclose(reverse.sum(axis=1), 0, atol=1e-15)
    assert np.all(reverse[~np.eye(S, dtype=bool)] >= 0)
    np.testing.assert_allclose(p_t @ reverse, -p_t @ rate(S), atol=1e-14)


@chains
def test_euler_is_one_step_of_the_reverse_rate(chain):
    rate, exponential = CHAINS[chain]
    p_t = start(chain) @ exponential(0.4, S)
    score, step = ctmc.concrete_score(p_t), 0.01
    expected = np.eye(S) + step * ctmc.reverse_rate(rate(S), p_t)
    for x_t in range(S):
        np.testing.assert_allclose(ctmc.euler(score[x_t], x_t, rate(S), step), expected[x_t], atol=1e-15)


@chains
def test_euler_can_give_negative_probabilities(chain):
    rate, exponential = CHAINS[chain]
    p_t = start(chain) @ exponential(0.4, S)
    score = ctmc.concrete_score(p_t)[MASK]
    law = ctmc.euler(score, MASK, rate(S), 3.0)
    assert law[MASK] < 0
    assert law.sum() == pytest.approx(1)


@chains
def test_tweedie_is_bayes_rule_on_an_enumerated_p_0(chain):
    """p(x_s | x_t) from the joint of (x_0, x_s, x_t), summed over x_0."""
    exponential = CHAINS[chain][1]
    bar_s, bar_t = 0.25, 0.9
    joint = np.einsum("a,ab,bc->bc", start(chain), exponential(bar_s, S), exponential(bar_t - bar_s, S))
    score = ctmc.concrete_score(joint.sum(axis=0))
    for x_t in range(S):
        law = ctmc.tweedie(score[x_t], x_t, exponential, bar_t - bar_s)
        np.testing.assert_allclose(law, joint[:, x_t] / joint[:, x_t].sum(), atol=1e-14)


@chains
def test_euler_and_tweedie_agree_to_first_order(chain):
    rate, exponential = CHAINS[chain]
    score = ctmc.concrete_score(start(chain) @ exponential(0.4, S))[MASK]
    errors = [
        np.abs(ctmc.euler(score, MASK, rate(S), h) - ctmc.tweedie(score, MASK, exponential, h)).max()
        for h in (1e-3, 5e-4)
    ]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.02)


def test_score_and_mean_parameterisations():
    """s_t(m)_x = alpha_t / (1 - alpha_t) p_0(x): Prop. 3.2's mean at the mask is p_0 for one token."""
    p_0, sigma_bar = start("absorbing"), 0.6
    alpha = float(ctmc.alpha_from_noise(sigma_bar))
    score = ctmc.concrete_score(p_0 @ ctmc.absorbing_exponential(sigma_bar, S))
    np.testing.assert_allclose(ctmc.score_from_mean(p_0, alpha), score[MASK], rtol=1e-13)
    np.testing.assert_allclose(ctmc.mean_from_score(score[MASK], alpha), p_0, rtol=1e-13)
    assert ctmc.score_from_mean(mean(), alpha)[:-1].sum() == pytest.approx(alpha / (1 - alpha))


def test_score_elsewhere_follows_from_the_score_at_the_mask():
    """s(x)_y = s(m)_y / s(m)_x, and sum_y s(x)_y = s(x)_m / (1 - alpha_t)."""
    p_0, sigma_bar = start("absorbing"), 0.6
    score = ctmc.concrete_score(p_0 @ ctmc.absorbing_exponential(sigma_bar, S))
    for x in range(S):
        elsewhere = ctmc.score_elsewhere(score[MASK], x)
        np.testing.assert_allclose(elsewhere, score[x], rtol=1e-13)
        assert elsewhere.sum() == pytest.approx(elsewhere[MASK] / (1 - np.exp(-sigma_bar)))


def test_score_and_mean_of_sequences():
    """Between sequences a Hamming distance of 1 apart, p_t(y) / p_t(x) is alpha_t / (1 - alpha_t) E[e_{x_0}]."""
    V, L, alpha = 3, 2, 0.35
    p_0 = np.random.default_rng(0).dirichlet(np.ones(V**L)).reshape(V, V)

    def p_t(x):
        chance = 0.0
        for x_0 in itertools.product(range(V), repeat=L):
            kernel = [alpha * (a == b) + (1 - alpha) * (b == V) for a, b in zip(x_0, x, strict=True)]
            chance += p_0[x_0] * np.prod(kernel)
        return chance

    for seen in range(V):
        ratios = np.array([p_t((y, seen)) / p_t((V, seen)) for y in range(V)] + [1.0])
        mu = np.append(p_0[:, seen] / p_0[:, seen].sum(), 0.0)
        np.testing.assert_allclose(ctmc.score_from_mean(mu, alpha), ratios, rtol=1e-12)


def test_score_entropy_is_not_negative_and_zero_at_the_ratio():
    a, b = np.meshgrid(np.linspace(0.01, 5, 60), np.linspace(0.01, 5, 60))
    entropy = ctmc.score_entropy(a, b)
    assert np.all(entropy >= -1e-15)
    np.testing.assert_allclose(np.diag(entropy), 0, atol=1e-15)
    np.testing.assert_allclose(entropy, a - b * np.log(a) + b * np.log(b) - b, atol=1e-13)
    np.testing.assert_array_equal(ctmc.score_entropy([0.0, 0.5, 3.0], 0.0), [0.0, 0.5, 3.0])  # I(a, 0) = a
    assert ctmc.score_entropy(0.0, 1.0) == np.inf


@pytest.mark.parametrize("alpha", [1e-6, 0.3, 0.5, 0.999])
@pytest.mark.parametrize("x_0", range(S - 1))
def test_equality_of_score_entropy_and_cross_entropy(alpha, x_0):
    """sum_{x != m} I(r mu_x, r delta_{x, x_0}) = -r log mu_{x_0} with r = alpha / (1 - alpha)."""
    score = ctmc.score_from_mean(mean(), alpha)
    expected = -alpha / (1 - alpha) * np.log(mean()[x_0])
    assert ctmc.denoising_score_entropy(score, x_0, alpha) == pytest.approx(expected, rel=1e-11, abs=0)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_equality_of_dwdse_and_the_nelbo(name):
    """The integrals of SEDD's objective and of Eq. 5, for a network that depends on time."""
    alpha, alpha_prime = {
        "linear": (lambda t: 1 - t, lambda t: -1.0),
        "cosine": (lambda t: 1 - np.cos(np.pi / 2 * (1 - t)), lambda t: -np.pi / 2 * np.sin(np.pi / 2 * (1 - t))),
    }[name]
    x_0 = 2

    def mu(t):
        weights = np.exp(np.array([0.3, -1.0, 0.5 * t, t**2]))
        return np.append(weights / weights.sum(), 0.0)

    def dwdse(t):
        a = alpha(t)
        inner = ctmc.denoising_score_entropy(ctmc.score_from_mean(mu(t), a), x_0, a)
        return ctmc.noise_rate(a, alpha_prime(t)) * (1 - a) * inner  # x_t = m has probability 1 - alpha_t

    def nelbo(t):
        return alpha_prime(t) / (1 - alpha(t)) * (1 - alpha(t)) * np.log(mu(t)[x_0])

    ends = (1e-6, 1 - 1e-6)
    left, right = (scipy.integrate.quad(f, *ends, epsabs=1e-12)[0] for f in (dwdse, nelbo))
    assert left == pytest.approx(right, rel=1e-7)


def absorbing_laws(bar_s=0.25, bar_t=0.9):
    """x_t, and the score at it, of a network with the mean of `mean()` at the mask."""
    at_mask = ctmc.score_from_mean(mean(), float(ctmc.alpha_from_noise(bar_t)))
    return [(x, ctmc.score_elsewhere(at_mask, x)) for x in range(S)], bar_s, bar_t


def test_euler_of_sedd_absorb_simplified():
    laws, _, bar_t = absorbing_laws()
    sigma, step = 1.7, 0.05
    for x_t, score in laws:
        expected = ctmc.euler(score, x_t, sigma * ctmc.absorbing_rate(S), step)
        simplified = ctmc.euler_absorbing(score, x_t, sigma=sigma, sigma_bar=bar_t, step=step)
        np.testing.assert_allclose(simplified, expected, atol=1e-15)


def test_tweedie_of_sedd_absorb_simplified():
    laws, bar_s, bar_t = absorbing_laws()
    for x_t, score in laws:
        expected = ctmc.tweedie(score, x_t, ctmc.absorbing_exponential, bar_t - bar_s)
        simplified = ctmc.tweedie_absorbing(score, x_t, sigma_bar_s=bar_s, sigma_bar_t=bar_t)
        np.testing.assert_allclose(simplified, expected, atol=1e-14)


@pytest.mark.parametrize(("s", "t"), [(0.0, 0.1), (0.2, 0.7), (0.5, 0.5001), (0.9, 0.999)])
def test_euler_equals_tweedie_under_the_linear_schedule(s, t):
    sigma_bar_s, sigma_bar_t = ctmc.noise_from_alpha([1 - s, 1 - t])
    sigma = float(ctmc.noise_rate(1 - t, -1.0))
    assert sigma == pytest.approx(np.exp(sigma_bar_t))
    assert (t - s) * sigma == pytest.approx(np.expm1(sigma_bar_t - sigma_bar_s))
    at_mask = ctmc.score_from_mean(mean(), 1 - t)
    for x_t in range(S):
        score = ctmc.score_elsewhere(at_mask, x_t)
        euler = ctmc.euler_absorbing(score, x_t, sigma=sigma, sigma_bar=sigma_bar_t, step=t - s)
        tweedie = ctmc.tweedie_absorbing(score, x_t, sigma_bar_s=sigma_bar_s, sigma_bar_t=sigma_bar_t)
        np.testing.assert_allclose(euler, tweedie, atol=1e-13)


def test_euler_differs_from_tweedie_under_another_schedule():
    """alpha_t = 1 - t^2: the equality is the linear schedule's own."""
    s, t = 0.2, 0.7
    bar_s, bar_t = ctmc.noise_from_alpha([1 - s**2, 1 - t**2])
    score = ctmc.score_from_mean(mean(), 1 - t**2)
    euler = ctmc.euler_absorbing(
        score, MASK, sigma=float(ctmc.noise_rate(1 - t**2, -2 * t)), sigma_bar=bar_t, step=t - s
    )
    tweedie = ctmc.tweedie_absorbing(score, MASK, sigma_bar_s=bar_s, sigma_bar_t=bar_t)
    assert np.abs(euler - tweedie).max() > 0.1


def test_tweedie_equals_the_ancestral_reversal():
    """The Tweedie sampler of SEDD Absorb is Eq. 3: Eq. 2 with mu for e_{x_0}."""
    laws, bar_s, bar_t = absorbing_laws()
    alpha_s, alpha_t = (float(a) for a in ctmc.alpha_from_noise([bar_s, bar_t]))
    for x_t, score in laws:
        tweedie = ctmc.tweedie_absorbing(score, x_t, sigma_bar_s=bar_s, sigma_bar_t=bar_t)
        np.testing.assert_allclose(ctmc.ancestral(mean(), x_t, alpha_s=alpha_s, alpha_t=alpha_t), tweedie, atol=1e-14)


def test_eq_2_is_bayes_rule_given_x_0():
    """q_{s|t,0} from the forward chain, for each x_0 and x_t that can occur together."""
    bar_s, bar_t = 0.25, 0.9
    alpha_s, alpha_t = (float(a) for a in ctmc.alpha_from_noise([bar_s, bar_t]))
    to_s, s_to_t = ctmc.absorbing_exponential(bar_s, S), ctmc.absorbing_exponential(bar_t - bar_s, S)
    for x_0 in range(S - 1):
        for x_t in (x_0, MASK):
            joint = to_s[x_0] * s_to_t[:, x_t]
            law = ctmc.ancestral(np.eye(S)[x_0], x_t, alpha_s=alpha_s, alpha_t=alpha_t)
            np.testing.assert_allclose(law, joint / joint.sum(), atol=1e-15)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="states"):
        ctmc.absorbing_rate(1)
    with pytest.raises(ValueError, match="alpha"):
        ctmc.score_from_mean(mean(), 1.0)
    with pytest.raises(ValueError, match="alpha"):
        ctmc.mean_from_score(mean(), 0.0)
    with pytest.raises(ValueError, match="alpha_s"):
        ctmc.ancestral(mean(), MASK, alpha_s=0.2, alpha_t=0.5)
    with pytest.raises(ValueError, match="p="):
        ctmc.concrete_score([0.5, 0.0])
    with pytest.raises(ValueError, match="negative"):
        ctmc.score_entropy(-1.0, 1.0)
