import pytest
import torch

from unmask.schedule import Cosine, Geometric, Linear, LogLinear, Polynomial

SCHEDULES = [Linear(), Cosine(), Polynomial(2), Polynomial(0.5), Polynomial(3), Geometric(), LogLinear(), LogLinear(0)]
EDGES = torch.tensor([0, 1e-300, 1e-16, 1e-12, 1e-9, 1e-6, 1e-3], dtype=torch.float64)
TIMES = torch.cat([EDGES, torch.linspace(0, 1, 2001, dtype=torch.float64), 1 - EDGES])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
class TestEverySchedule:
    def test_alpha_of_inverse_is_exact_over_the_whole_range(self, schedule):
        low, high = float(schedule.alpha(1.0)), float(schedule.alpha(0.0))
        a = TIMES.clamp(low, high)
        torch.testing.assert_close(schedule.alpha(schedule.inverse(a)), a, rtol=0, atol=1e-12)

    def test_inverse_of_alpha_is_exact_up_to_what_alpha_can_hold(self, schedule):
        """alpha is a float64: t comes back as well as one unit in alpha's last place determines it."""
        t, a = TIMES, schedule.alpha(TIMES)
        unit = 2.0**-52 * a
        bound = 1e-12 + torch.maximum((schedule.inverse(a + unit) - t).abs(), (schedule.inverse(a - unit) - t).abs())
        assert bool(((schedule.inverse(a) - t).abs() <= bound).all())
        inner = t[(t > 1e-2) & (t < 1 - 1e-3)]
        torch.testing.assert_close(schedule.inverse(schedule.alpha(inner)), inner, rtol=0, atol=1e-12)

    def test_the_ends(self, schedule):
        assert 1 - 1e-3 < float(schedule.alpha(0.0)) <= 1
        assert 0 <= float(schedule.alpha(1.0)) <= 1.001e-3
        assert float(schedule.inverse(0.0)) == 1
        assert float(schedule.inverse(1.0)) == 0
        assert float(schedule.inverse(schedule.alpha(1.0))) == pytest.approx(1, abs=1e-12)
        assert float(schedule.inverse(schedule.alpha(0.0))) == pytest.approx(0, abs=1e-12)

    def test_alpha_decreases(self, schedule):
        assert bool((schedule.alpha(torch.linspace(0, 1, 501)).diff() < 0).all())

    def test_alpha_prime_is_the_derivative(self, schedule):
        t = torch.linspace(0.05, 0.95, 91, dtype=torch.float64).requires_grad_()
        (slope,) = torch.autograd.grad(schedule.alpha(t).sum(), t)
        torch.testing.assert_close(schedule.alpha_prime(t.detach()), slope, rtol=1e-12, atol=1e-300)

    def test_weight_is_alpha_prime_over_one_minus_alpha(self, schedule):
        t = torch.linspace(0.1, 1, 91, dtype=torch.float64)
        torch.testing.assert_close(
            schedule.weight(t), schedule.alpha_prime(t) / (1 - schedule.alpha(t)), rtol=1e-11, atol=1e-12
        )

    def test_float64_whatever_comes_in(self, schedule):
        for t in (0.5, torch.tensor(0.5), torch.tensor([0.25, 0.5], dtype=torch.float32)):
            assert schedule.alpha(t).dtype == schedule.inverse(t).dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Polynomial(0), "k"),
        (lambda: Polynomial(-1), "k"),
        (lambda: Geometric(0, 1), "sigma_min"),
        (lambda: Geometric(2, 1), "sigma_min"),
        (lambda: LogLinear(1), "eps"),
        (lambda: LogLinear(-0.1), "eps"),
    ],
)
def test_bad_parameters_are_named(make, name):
    with pytest.raises(ValueError, match=name):
        make()
