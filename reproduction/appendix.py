"""The equalities of the paper's appendices, checked numerically for the item "propositions"."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

import unmask
from reproduction import ctmc
from reproduction.item import Settings
from unmask import draw, objective, theory, timing
from unmask.noise import generator

Outcome = tuple[str, float, float]
"""What was compared, the error, and the error that is allowed: rounding, or 5 standard errors where drawn."""


def joint() -> Tensor:
    """Two tokens at three positions, all dependent."""
    weights = torch.tensor([0.30, 0.02, 0.11, 0.07, 0.05, 0.21, 0.08, 0.16], dtype=torch.float64)
    return weights.view(2, 2, 2)


def kolmogorov(values: Any, law: Any) -> float:
    """sqrt(n) times the distance of an empirical distribution from a true one; above 2.6 once in a million."""
    ordered = np.sort(np.asarray(values))
    n = len(ordered)
    cdf, i = law(ordered), np.arange(1, n + 1)
    return float(np.sqrt(n) * max(np.max(i / n - cdf), np.max(cdf - (i - 1) / n)))


def rate_matrices(settings: Settings) -> Outcome:
    worst, S = 0.0, 5
    for rate, exponential in (
        (ctmc.absorbing_rate, ctmc.absorbing_exponential),
        (ctmc.uniform_rate, ctmc.uniform_exponential),
    ):
        series, term = np.eye(S), np.eye(S)
        for k in range(1, 60):
            term = term @ rate(S) * 0.7 / k
            series = series + term
        worst = max(worst, float(np.abs(series - exponential(0.7, S)).max()))
    Q = ctmc.absorbing_rate(S)
    powers = max(float(np.abs(np.linalg.matrix_power(Q, n) - (-1.0) ** (n - 1) * Q).max()) for n in range(1, 6))
    return "e^{sigma Q} by its series and in closed form; Q^n and (-1)^{n-1} Q", max(worst, powers), 1e-12


def time_reversal(settings: Settings) -> Outcome:
    """delta + Qbar h against Bayes' rule over a step h: the difference is of order h^2."""
    p0, sigma_bar = np.array([0.5, 0.3, 0.2, 0.0]), 0.8
    p_t = p0 @ ctmc.absorbing_exponential(sigma_bar, 4)
    errors = []
    for h in (1e-3, 1e-4):
        p_s, step = p0 @ ctmc.absorbing_exponential(sigma_bar - h, 4), ctmc.absorbing_exponential(h, 4)
        bayes = (step * p_s[:, None]).T / p_t[:, None]
        errors.append(np.abs(np.eye(4) + h * ctmc.reverse_rate(ctmc.absorbing_rate(4), p_t) - bayes).max())
    return "errors of the reversed rates at h = 1e-4 over 1e-3, against 1/100", abs(errors[1] / errors[0] - 0.01), 1e-3


def score_and_mean(settings: Settings) -> Outcome:
    p0, alpha = np.array([0.5, 0.3, 0.2, 0.0]), 0.37
    p_t = p0 @ ctmc.absorbing_exponential(float(ctmc.noise_from_alpha(alpha)), 4)
    error = np.abs(ctmc.concrete_score(p_t)[3] - ctmc.score_from_mean(p0, alpha)).max()
    return "p_t(x) / p_t(m) and alpha/(1 - alpha) p_0(x)", float(error), 1e-12


def score_entropy_is_nelbo(settings: Settings) -> Outcome:
    mu, alpha = np.array([0.5, 0.3, 0.2, 0.0]), 0.37
    inner = ctmc.denoising_score_entropy(ctmc.score_from_mean(mu, alpha), 1, alpha)
    pointwise = abs(inner + alpha / (1 - alpha) * math.log(0.3))

    class AsScore(unmask.EnumeratedOracle):
        def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
            return super().__call__(tokens, time, rows) + math.log(2)  # log-scores: f plus log D

    x0, t = torch.tensor([[0, 1, 1], [1, 1, 0]]), torch.tensor([0.3, 0.8], dtype=torch.float64)
    a = objective.score_entropy(AsScore(joint()), x0, t, generator=generator(0, 5))
    b = objective.nelbo_by_time(unmask.EnumeratedOracle(joint()), x0, t, generator=generator(0, 5))
    return (
        "DWDSE and the NELBO, by its inner sum and at the same masks",
        max(pointwise, float((a - b).abs().max())),
        1e-12,
    )


def euler_tweedie_ancestral(settings: Settings) -> Outcome:
    mu, worst = np.array([0.5, 0.3, 0.2, 0.0]), 0.0
    for s, t in ((0.2, 0.5), (0.6, 0.61)):
        a_s, a_t = 1 - s, 1 - t
        score = ctmc.score_from_mean(mu, a_t)
        delta = math.log(a_s / a_t)
        leap = ctmc.tweedie(score, 3, ctmc.absorbing_exponential, delta)
        others = (
            ctmc.euler(score, 3, ctmc.absorbing_rate(4) / a_t, t - s),  # sigma(t) = 1 / (1 - t)
            ctmc.tweedie_absorbing(score, 3, sigma_bar_s=-math.log(a_s), sigma_bar_t=-math.log(a_t)),
            ctmc.ancestral(mu, 3, alpha_s=a_s, alpha_t=a_t),
        )
        worst = max(worst, *(float(np.abs(law - leap).max()) for law in others))
    return "Euler, Tweedie in general and simplified, and Eq. 3, under the linear schedule", worst, 1e-12


def expected_calls(settings: Settings) -> Outcome:
    grid = np.arange(1001) / 1000
    summed = theory.expected_nfe(1000, 64, 4, alpha=lambda t: 1 - t, grid=grid)
    closed = 1000 * (1 - (1 - 1 / 1000) ** 256)
    return "the sum over steps and N(1-(1-1/N)^(BL)), relative", abs(summed / closed - 1), 1e-9


def gumbel_tricks(settings: Settings) -> Outcome:
    num = settings.pick(full=200_000, fast=50_000, tiny=5_000)
    pi = np.array([0.7, 1.1, 2.2])
    g = -np.log(-np.log(np.random.default_rng(settings.seed).random((num, 3)))) + np.log(pi)
    largest = kolmogorov(g.max(1), lambda x: np.exp(-np.exp(-(x - math.log(pi.sum())))))
    law = pi / pi.sum()
    found = np.bincount(g.argmax(1), minlength=3) / num
    errors = np.abs(found - law) / np.sqrt(law * (1 - law) / num)
    return (
        "max_i(g_i + log pi_i) and Gumbel(log sum pi); argmax and pi (allowed 5 errors)",
        max(largest, float(errors.max()) * 2.6 / 5),
        2.6,
    )


def gumbel_softmax_limits(settings: Settings) -> Outcome:
    logits = torch.tensor([0.1, 0.5, 0.4], dtype=torch.float64).log()
    cold, hot = (
        draw.gumbel_softmax(logits.expand(100, -1), temperature=T, generator=generator(0, 3)) for T in (1e-4, 1e7)
    )
    return (
        "one-hot vectors at T = 1e-4 and uniform ones at T = 1e7",
        max(float((1 - cold.max(-1).values).median()), float((hot - 1 / 3).abs().max())),
        1e-5,
    )


def low_discrepancy(settings: Settings) -> Outcome:
    random = generator(0, settings.seed, "low discrepancy")
    comb = timing.vdm(64, random).sort().values
    bins = (timing.stratified(64, random) * 64).long()
    counts = timing.count(timing.stratified(1024, random), 1024)
    off = float((comb.diff() - 1 / 64).abs().max())
    even = float(
        (bins.sort().values != torch.arange(64)).any() or (counts.sort().values != torch.arange(1, 1025)).any()
    )
    return "VDM's spacing and 1/B; one time per bin, every n once (MDLM's)", max(off, even), 1e-12


def preconditioning(settings: Settings) -> Outcome:
    """mu = a F + b e_{x_t}: the loss and its gradient in F for b = 0 and other b, computed by the objective."""

    class Preconditioned:
        vocab_size, mask_id = 3, 2

        def __init__(self, logits: Tensor, b: float) -> None:
            self.logits, self.b = logits, b

        def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
            made = self.logits.expand(len(tokens), -1, -1) + self.b * torch.nn.functional.one_hot(tokens, 3)
            return made if rows is None else made.gather(1, rows.unsqueeze(-1).expand(-1, -1, 3))

    found = []
    x0, t = torch.tensor([[0, 1, 1], [1, 1, 0]]), torch.tensor([0.6, 0.8], dtype=torch.float64)
    for b in (0.0, 3.0, -7.0):
        logits = torch.randn(3, 3, dtype=torch.float64, generator=generator(0, 7)).requires_grad_()
        loss = objective.nelbo_by_time(Preconditioned(logits, b), x0, t, generator=generator(0, 5)).sum()
        found.append(torch.cat((loss.detach().view(1), torch.autograd.grad(loss, logits)[0].flatten())))
    off = max(float((one - found[0]).abs().max()) for one in found[1:])
    return "the loss and its gradient with b e_{x_t} added to the output, b = 0, 3 and -7", off, 1e-12
