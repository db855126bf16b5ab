"""SEDD's two samplers in the package are the formulas of the CTMC appendix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reproduction import ctmc
from unmask.samplers.published import euler_law, tweedie_law
from unmask.schedule import Cosine, Geometric, Linear, LogLinear, Polynomial

SCHEDULES = [Linear(), Cosine(), Polynomial(2), Geometric(), LogLinear()]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_they_are_the_steps_of_the_score(schedule):
    """s(m, t) = alpha / (1 - alpha) mu, away from the ends."""
    mu = np.array([0.2, 0.5, 0.3, 0.0])
    s, t = torch.tensor(0.5).double(), torch.tensor(0.55).double()
    alpha_s, alpha_t = float(schedule.alpha(s)), float(schedule.alpha(t))
    score = ctmc.score_from_mean(mu, alpha_t)
    noise_s, noise_t = float(ctmc.noise_from_alpha(alpha_s)), float(ctmc.noise_from_alpha(alpha_t))
    sigma = float(ctmc.noise_rate(alpha_t, float(schedule.alpha_prime(t))))
    euler = ctmc.euler_absorbing(score, 3, sigma=sigma, sigma_bar=noise_t, step=float(t - s))
    tweedie = ctmc.tweedie_absorbing(score, 3, sigma_bar_s=noise_s, sigma_bar_t=noise_t)
    for law, expected in ((euler_law, euler), (tweedie_law, tweedie)):
        leave, stay = (float(value) for value in law(schedule, s, t))
        np.testing.assert_allclose(np.r_[leave * mu[:3], stay], expected, rtol=1e-9)
