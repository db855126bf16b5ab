from itertools import combinations

import pytest
import torch

from tests.helpers import FALSE_ALARM, chi_square, generator
from unmask.forward import mask_by_count, mask_by_time, reversal
from unmask.schedule import Cosine, Linear

MASK = 9


def test_masking_by_time_has_the_distribution_of_equation_1():
    """Each position is masked with 1 - alpha_t, independently: all 2^3 patterns. False alarm 1e-6."""
    x0 = torch.tensor([[1, 2, 3]]).expand(40_000, 3)
    t = torch.full((40_000,), 0.3)
    xt = mask_by_time(x0, t, schedule=Cosine(), mask_id=MASK, generator=generator(1))
    alpha = float(Cosine().alpha(0.3))
    pattern = ((xt == MASK) * torch.tensor([4, 2, 1])).sum(1)
    law = torch.tensor([alpha ** (3 - k.bit_count()) * (1 - alpha) ** k.bit_count() for k in range(8)])
    assert chi_square(torch.bincount(pattern, minlength=8), law) > FALSE_ALARM
    assert bool(((xt == x0) | (xt == MASK)).all())


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_masking_by_count_is_uniform_over_subsets(n):
    """Exactly n masked, every subset alike. False alarm 1e-6."""
    x0 = torch.arange(5).expand(20_000, 5)
    xn = mask_by_count(x0, torch.full((20_000,), n), mask_id=MASK, generator=generator(2))
    masked = xn == MASK
    assert bool((masked.sum(1) == n).all())
    pattern = (masked * 2 ** torch.arange(5)).sum(1)
    subsets = [sum(2**i for i in chosen) for chosen in combinations(range(5), n)]
    law = torch.zeros(32)
    law[subsets] = 1 / len(subsets)
    assert chi_square(torch.bincount(pattern, minlength=32), law) > FALSE_ALARM


def test_each_row_has_its_own_count():
    x0 = torch.zeros(6, 5, dtype=torch.int64)
    n = torch.arange(6)
    assert (mask_by_count(x0, n, mask_id=MASK, generator=generator(3)) == MASK).sum(1).tolist() == n.tolist()


@pytest.mark.parametrize("by", ["time", "count"])
def test_positions_outside_where_stay_visible(by):
    x0 = torch.ones(500, 6, dtype=torch.int64)
    where = torch.tensor([True, False] * 3).expand(500, 6)
    if by == "time":
        t = torch.full((500,), 0.9)
        x = mask_by_time(x0, t, schedule=Linear(), mask_id=MASK, generator=generator(4), where=where)
    else:
        x = mask_by_count(x0, torch.full((500,), 3), mask_id=MASK, generator=generator(4), where=where)
        assert bool((x[:, ::2] == MASK).all())
    assert bool((x[:, 1::2] == 1).all())
    assert bool((x[:, ::2] == MASK).any())


@pytest.mark.parametrize("n", [-1, 4])
def test_a_count_that_cannot_be_is_refused(n):
    with pytest.raises(ValueError, match=r"n must be between 0 and"):
        mask_by_count(torch.zeros(1, 3, dtype=torch.int64), torch.tensor([n]), mask_id=MASK, generator=generator(0))


@pytest.mark.parametrize("mask_id", [3, 1])
def test_the_reversal_is_bayes_rule_on_the_forward_process(mask_id):
    """Equation 2 against q(x_s | x_t, x_0) = q(x_t | x_s) q(x_s | x_0) / q(x_t | x_0), every case."""
    schedule, s, t, x0 = Cosine(), 0.375, 0.75, 0
    alpha_s, alpha_t = float(schedule.alpha(s)), float(schedule.alpha(t))
    width = max(3, mask_id + 1)
    for xt in (mask_id, x0):
        expected = torch.zeros(width, dtype=torch.float64)
        for xs, at_s in ((x0, alpha_s), (mask_id, 1 - alpha_s)):
            visible = alpha_t / alpha_s if xs == x0 else 0.0
            onward = visible if xt == x0 else 1 - visible
            at_t = alpha_t if xt == x0 else 1 - alpha_t
            expected[xs] = onward * at_s / at_t
        mu = torch.nn.functional.one_hot(torch.tensor([[x0]]), 3).double()
        times = torch.tensor([s, t], dtype=torch.float64)
        q = reversal(torch.tensor([[xt]]), mu, times[:1], times[1:], schedule=schedule, mask_id=mask_id)
        torch.testing.assert_close(q[0, 0], expected, rtol=1e-12, atol=1e-15)


def test_the_reversal_runs_backwards_only():
    late, early = torch.tensor([0.9]), torch.tensor([0.1])
    with pytest.raises(ValueError, match="s must not be later"):
        reversal(torch.tensor([[1]]), torch.ones(1, 1, 1), late, early, schedule=Linear(), mask_id=1)
