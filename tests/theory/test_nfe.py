"""The appendix on the expected NFE of ancestral sampling with the cache."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from unmask.schedule import Cosine, Geometric, LogLinear, Polynomial
from unmask.theory import expected_nfe


def linear(t):
    return 1 - t


def cosine(t):
    return 1 - np.cos(np.pi / 2 * (1 - t))


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("steps", [1, 2, 10, 1000, 50_000])
def test_closed_form_of_the_linear_schedule_equals_the_sum(steps, batch):
    closed = expected_nfe(steps, 1024, batch)
    assert expected_nfe(steps, 1024, batch, alpha=linear) == pytest.approx(closed, rel=1e-9)
    assert expected_nfe(steps, 1024, batch, grid=np.arange(steps + 1) / steps) == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize("steps", [1, 7, 50_000, 10**9, 10**15])
def test_closed_form_is_stable_for_many_steps(steps):
    with mpmath.workdps(50):
        exact = float(steps * (1 - (1 - mpmath.mpf(1) / steps) ** 8192))
    assert expected_nfe(steps, 1024, 8) == pytest.approx(exact, rel=1e-12)


def test_one_step_is_one_call_and_one_position_is_one_call():
    assert expected_nfe(1, 1024) == 1
    for steps in (1, 5, 5000):
        assert expected_nfe(steps, 1) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_the_limit_of_many_steps_is_batch_times_length(batch):
    calls = [expected_nfe(10**k, 64, batch) for k in range(8)]
    assert all(np.diff(calls) > 0)
    assert calls[-1] == pytest.approx(64 * batch, rel=1e-4)
    assert calls[-1] < 64 * batch


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("alpha", [linear, cosine])
def test_expected_nfe_is_the_mean_of_simulated_sampling(alpha, batch):
    """Eq. 10 step by step, 4,000 runs. |z| < 4.9: false alarm 1e-6 each; the seed is fixed."""
    rng = np.random.default_rng(batch)
    steps, length, runs = 20, 5, 4000
    grid = np.linspace(0, 1, steps + 1) ** 1.5
    masked = np.ones((runs, batch * length), dtype=bool)
    calls = np.zeros(runs)
    for t, s in zip(grid[:0:-1], grid[-2::-1], strict=True):
        stays = rng.random(masked.shape) < (1 - alpha(s)) / (1 - alpha(t))
        calls += np.any(masked & ~stays, axis=1)
        masked &= stays
    assert not masked.any()
    expected = expected_nfe(steps, length, batch, alpha=alpha, grid=grid)
    assert abs(calls.mean() - expected) < 4.9 * calls.std() / np.sqrt(runs)


@pytest.mark.parametrize("schedule", [Cosine(), Polynomial(2.0), Geometric(), LogLinear()], ids=repr)
def test_schedules_of_the_package_are_accepted(schedule):
    times = np.arange(101) / 100
    a = schedule.alpha(times).numpy()
    change = (a[:-1] - a[1:]) / (1 - a[-1])
    expected = (1 - (1 - change) ** 24).sum()
    assert expected_nfe(100, 8, 3, alpha=schedule.alpha) == pytest.approx(expected, rel=1e-9)


def test_a_schedule_that_ends_above_zero_starts_fully_masked():
    """LogLinear's change per step, divided by 1 - alpha_1, is the linear schedule's."""
    assert expected_nfe(50, 16, alpha=LogLinear(0.1).alpha) == pytest.approx(expected_nfe(50, 16), rel=1e-12)


@pytest.mark.parametrize("bad", [{"steps": 0}, {"length": 0}, {"batch": 0}])
def test_bad_counts_are_named(bad):
    (name,) = bad
    with pytest.raises(ValueError, match=name):
        expected_nfe(**({"steps": 4, "length": 4} | bad))


@pytest.mark.parametrize("grid", [[0.0, 0.5], [0.0, 0.5, 0.5], [1.0, 0.5, 0.0], [0.0, 0.5, 1.5]])
def test_bad_grids_are_named(grid):
    with pytest.raises(ValueError, match="grid"):
        expected_nfe(2, 4, grid=grid)


@pytest.mark.parametrize("alpha", [lambda t: t, lambda t: np.ones_like(t), lambda t: 0.5])
def test_bad_schedules_are_named(alpha):
    with pytest.raises(ValueError, match="alpha"):
        expected_nfe(2, 4, alpha=alpha)
