"""Every proposition and every equality of the appendices, checked numerically: one line each, with its error."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, pairwise, permutations
from typing import Any

import numpy as np
import torch
from torch import Tensor

import unmask
from reproduction import appendix, mixture
from reproduction.appendix import Outcome, joint, kolmogorov
from reproduction.item import ItemResult, Settings, Table, Tables
from reproduction.verdict import Claim, Number, claim
from unmask import draw, forward, objective, plan, theory
from unmask.hitting import hitting_times
from unmask.masking import Masking
from unmask.networks.oracles.enumerated import TimeDependent
from unmask.noise import Streams
from unmask.predict import log_mean

TITLE = "Every proposition and appendix equality, checked numerically"
PAPER = "Sec. 2 to 5 and the appendices"
L, V = 3, 2
SCHEDULES = (unmask.Linear(), unmask.Cosine(), unmask.Polynomial(2.0))
Check = Callable[[Settings], Outcome]


def run(settings: Settings) -> ItemResult:
    rows = tuple((name, *check(settings)) for name, check in CHECKS.items())
    table = Table(("statement", "what was compared", "error", "allowed"), rows)
    notes = (
        "Errors of drawn quantities are in standard errors, or Kolmogorov's distance times the root of the number, and "
        "what is allowed is exceeded once in a million; the others are the largest absolute difference.",
    )
    return ItemResult({"checks": table}, notes=notes)


def claims(tables: Tables) -> list[Claim]:
    return [
        claim(row["statement"], "-", row["what was compared"], Number("error", row["error"]).at_most(row["allowed"]))
        for row in tables["checks"].records()
    ]


def masks(n: int) -> list[tuple[int, ...]]:
    return list(combinations(range(L), n))


def cross_entropy(model: Any, x0: Tensor, mask: tuple[int, ...], t: float) -> float:
    """sum over the masked positions of -log mu(x_n, t)[x_0]."""
    masked = torch.zeros_like(x0, dtype=torch.bool)
    masked[:, list(mask)] = True
    one = torch.ones(1, dtype=torch.float64)
    return float(objective.cross_entropy(model, x0, Masking(masked, t * one, one)))


def by_count(model: Any, x0: Tensor) -> float:
    """Eq. 7 for a network that does not read the time."""
    return sum(float(np.mean([cross_entropy(model, x0, m, 0.5) for m in masks(n)])) / n for n in range(1, L + 1))


def reversal_is_bayes(settings: Settings) -> Outcome:
    worst = 0.0
    for schedule in SCHEDULES:
        for s, t in ((0.1, 0.4), (0.3, 0.9), (0.0, 1.0)):
            a_s, a_t = float(schedule.alpha(s)), float(schedule.alpha(t))
            # P(x_s = x_0) P(masked between s and t) / P(x_t = m)
            bayes = a_s * (1 - a_t / a_s) / (1 - a_t)
            mu = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
            law = forward.reversal(
                torch.tensor([[V]]), mu, *torch.tensor([[s], [t]], dtype=torch.float64), schedule=schedule, mask_id=V
            )
            worst = max(worst, abs(float(law[0, 0, 0]) - bayes))
    return "q(x_s | x_t = m, x_0) and Bayes' rule on the forward process", worst, 1e-12


def elbo_over_time_and_counts(settings: Settings) -> Outcome:
    model, x0 = TimeDependent(unmask.EnumeratedOracle(joint()), 0.9), torch.tensor([[0, 1, 1]])
    nodes, weights = np.polynomial.legendre.leggauss(40)
    times, weights = (nodes + 1) / 2, weights / 2
    over_time = sum(
        w
        / t
        * sum(t**n * (1 - t) ** (L - n) * cross_entropy(model, x0, m, t) for n in range(1, L + 1) for m in masks(n))
        for t, w in zip(times, weights, strict=True)
    )

    def mixed(n: int, m: tuple[int, ...]) -> float:
        law = mixture.BetaMixture(n, L)
        return float(law.expectation(lambda a: [cross_entropy(model, x0, m, 1 - alpha) for alpha in a]))

    over_counts = sum(np.mean([mixed(n, m) for m in masks(n)]) / n for n in range(1, L + 1))
    return (
        "Eq. 6 by quadrature over t, Eq. 7 with the Beta mixture of Eq. 8, for a network that reads the time",
        abs(over_time - over_counts),
        1e-10,
    )


def oracle_bound_is_exact(settings: Settings) -> Outcome:
    model = unmask.EnumeratedOracle(joint())
    x = torch.cartesian_prod(*[torch.arange(V)] * L)
    worst = max(abs(by_count(model, row[None]) + float(model.log_likelihood(row[None]))) for row in x)
    return "Eq. 7 of the optimal network and -log p(x), for every x", worst, 1e-12


def order_agnostic(settings: Settings) -> Outcome:
    class Skewed(unmask.EnumeratedOracle):
        def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
            return super().__call__(tokens, time, rows) * 0.7  # not the optimum, so that orders differ

    model, x0 = Skewed(joint()), torch.tensor([[1, 0, 1]])
    orders = torch.tensor(list(permutations(range(L))))
    mean = float(objective.along_order(model, x0.expand(len(orders), -1), orders).mean())
    return "the mean over all orders of the chain rule, and Eq. 7", abs(mean - by_count(model, x0)), 1e-12


def optimum(settings: Settings) -> Outcome:
    """The optimal network is the posterior mean, and minimises the loss for any weights w_n > 0."""
    model, p = unmask.EnumeratedOracle(joint()), joint()
    x = torch.tensor([[1, V, V]])
    brute = p[1].sum(1) / p[1].sum()
    posterior = float((log_mean(model(x)[:, 1]).exp() - brute).abs().max())
    gradient = 0.0
    for weight in (lambda n: 1 / n, lambda n: 1.0, lambda n: float(n)):
        logits = brute.log().clone().requires_grad_()
        loss = weight(2) * -(brute * torch.log_softmax(logits, -1)).sum()
        gradient = max(gradient, float(torch.autograd.grad(loss, logits)[0].abs().max()))
    return "mu and E[e_x0 | x]; the gradient of any weighted cross-entropy there", max(posterior, gradient), 1e-12


def first_hitting_times(settings: Settings) -> Outcome:
    num, length = settings.pick(full=20_000, fast=5_000, tiny=500), 8
    worst = 0.0
    for schedule in SCHEDULES:
        canvas = torch.zeros(num, length, dtype=torch.int64)
        _, tau, _ = hitting_times(canvas, mask_id=0, streams=Streams.of(settings.seed, num), schedule=schedule)
        masked = torch.cat([torch.ones(num, 1, dtype=torch.float64), 1 - schedule.alpha(tau)], 1)
        n = torch.arange(length, 0, -1)
        u = (masked[:, 1:] / masked[:, :-1]) ** n  # Prop. 4.1 solved for u_n
        worst = max(worst, kolmogorov(u.flatten().numpy(), lambda v: v))
    return "((1 - alpha_{tau_{n-1}}) / (1 - alpha_{tau_n}))^n of the plans and U(0, 1)", worst, 2.6


def uniforms_below_maximum(settings: Settings) -> Outcome:
    num = settings.pick(full=100_000, fast=20_000, tiny=2_000)
    u = np.random.default_rng(settings.seed).random((num, 5))
    rest = np.sort(u, 1)[:, :-1]
    rest = np.random.default_rng(settings.seed + 1).permuted(rest, axis=1)[:, 0] / u.max(1)
    return "u_i / max u of the others and U(0, 1)", kolmogorov(rest, lambda v: v), 2.6


def truncated_law(settings: Settings) -> Outcome:
    """The integral over g <= M in the proof, by quadrature, against the closed form."""
    pi, M = np.array([0.02, 0.07, 0.07, 0.24, 0.6]), 1.5
    theta = np.log(pi)

    def cdf(x: Any) -> Any:
        return np.minimum(np.exp(-np.exp(-x) + np.exp(-M)), 1.0)

    worst = 0.0
    for n in range(len(pi)):
        # The integrand has kinks where theta_n + g - theta_k = M: integrate between them.
        edges = np.unique(np.clip(np.r_[-4.0, M + theta - theta[n], M], -4.0, M))
        total = 0.0
        for a, b in pairwise(edges):
            nodes, weights = np.polynomial.legendre.leggauss(60)
            g = (a + b) / 2 + (b - a) / 2 * nodes
            others = np.prod([cdf(theta[n] + g - theta[k]) for k in range(len(pi)) if k != n], axis=0)
            total += (b - a) / 2 * float((weights * np.exp(-g - np.exp(-g) + np.exp(-M)) * others).sum())
        worst = max(worst, abs(total - float(theory.shifted_probabilities(pi, M)[n])))
    return "Prop. 5.2 and the integral of its proof, K = 5, M = 1.5", worst, 1e-9


def truncated_sums(settings: Settings) -> Outcome:
    pi = np.random.default_rng(settings.seed).dirichlet(np.full(200, 0.3))
    laws = [theory.shifted_probabilities(pi, M) for M in (0.0, 2.0, 5.0, 16.6)]
    exact = np.abs(theory.shifted_probabilities(pi, math.inf) - pi).max()
    return (
        "the sum of pi' and 1; pi' at M = infinity and pi",
        float(max(*(abs(p.sum() - 1) for p in laws), exact)),
        1e-12,
    )


def truncated_amplifies(settings: Settings) -> Outcome:
    pi = np.sort(np.random.default_rng(settings.seed).dirichlet(np.full(50, 0.3)))
    falls = [float(np.maximum(-np.diff(theory.shifted_probabilities(pi, M) / pi), 0).max()) for M in (1.0, 4.0, 16.6)]
    return "how much pi'/pi ever falls while pi grows", max(falls), 1e-12


def truncated_draws(settings: Settings) -> Outcome:
    num, M = settings.pick(full=400_000, fast=100_000, tiny=10_000), 1.5
    pi = torch.tensor([0.02, 0.07, 0.07, 0.24, 0.6], dtype=torch.float64)
    ids = draw.truncated(M)(pi.log().expand(num, -1), Streams.of(settings.seed, 1).at("truncated", num)[0])
    law = theory.shifted_probabilities(pi.numpy(), M)
    found = np.bincount(ids.numpy(), minlength=5) / num
    return (
        "frequencies of truncated Gumbel-max draws and Prop. 5.2, in standard errors",
        float(np.max(np.abs(found - law) / np.sqrt(law * (1 - law) / num))),
        5.0,
    )


def unequal_unmasking(settings: Settings) -> Outcome:
    """K equal tokens beside the mask: r e^{-(1 - r - p) c} with c = e^-M / p."""
    K, N, M = 50_257, 1000, theory.maximum_gumbel("float32")
    r, p = 1 / N, 1 / N / K
    closed = r * math.exp(-(1 - r - p) * math.exp(-M) / p)
    found = float(theory.unmasking_probability(np.full(K, 1 / K), 1 / N, 0.0, M))
    return (
        "the chance to be unmasked over a flat position, V = 50,257, N = 1,000, relative",
        abs(found / closed - 1),
        1e-9,
    )


def beta_moments(settings: Settings) -> Outcome:
    worst = 0.0
    for n in (1, 300, 1024):
        law = mixture.BetaMixture(n, 1024)
        mean = float(law.expectation(lambda a: a))
        worst = max(worst, abs(mean - law.mean), abs(float(law.expectation(lambda a: a**2)) - mean**2 - law.variance))
    return "mean and variance of Beta(L - n + 1, n) by quadrature and in closed form", worst, 1e-12


def same_joint(settings: Settings) -> Outcome:
    """First-hitting and ancestral sampling in many steps give the oracle's joint: chi-square with 7 degrees."""
    num = settings.pick(full=40_000, fast=8_000, tiny=400)
    model, worst = unmask.EnumeratedOracle(joint()), 0.0
    for planner, steps in ((plan.first_hitting, None), (plan.ancestral, 100_000)):
        x = unmask.sample(model, num=num, length=L, plan=planner, steps=steps, seed=settings.seed).tokens
        found = torch.bincount((x * torch.tensor([4, 2, 1])).sum(1), minlength=8).double()
        expected = joint().flatten() * num
        worst = max(worst, float(((found - expected) ** 2 / expected).sum()))
    return (
        "chi-square of first-hitting and of ancestral samples against the joint (beyond 40.5 once in a million)",
        worst,
        40.5,
    )


CHECKS: dict[str, Check] = {
    "Equations 1 to 3: the reversal": reversal_is_bayes,
    "Proposition 3.1: the ELBO by the number of masked tokens": elbo_over_time_and_counts,
    "Proposition 3.1 at the optimum: the bound is exact": oracle_bound_is_exact,
    "Related work: the ELBO of order-agnostic models is Eq. 7": order_agnostic,
    "Proposition 3.2: the optimal network": optimum,
    "Equation 8: the Beta mixture": beta_moments,
    "Proposition 4.1: analytic first-hitting times": first_hitting_times,
    "Lemma C.1: uniforms below their maximum": uniforms_below_maximum,
    "Section 4.2: first-hitting is the original process": same_joint,
    "Proposition 5.2: the law of truncated Gumbels": truncated_law,
    "Proposition 5.2: valid probabilities": truncated_sums,
    "Proposition 5.2: by draws": truncated_draws,
    "Implication 1: larger probabilities are amplified": truncated_amplifies,
    "Implication 2: unequal unmasking": unequal_unmasking,
    "CTMC: rate matrices and their exponentials": appendix.rate_matrices,
    "CTMC: time reversal": appendix.time_reversal,
    "SEDD: score and mean parameterisations": appendix.score_and_mean,
    "SEDD: the score entropy is the NELBO": appendix.score_entropy_is_nelbo,
    "SEDD: Euler, Tweedie and ancestral steps are one": appendix.euler_tweedie_ancestral,
    "Flow matching, preconditioning: adding b e_x to the output changes nothing": appendix.preconditioning,
    "Expected NFE": appendix.expected_calls,
    "Gumbel-max": appendix.gumbel_tricks,
    "Gumbel-softmax": appendix.gumbel_softmax_limits,
    "Low-discrepancy samplers": appendix.low_discrepancy,
}
