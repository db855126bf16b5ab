"""Lagrange at any order: its first two are the predictors that there are, and its weights are exact on polynomials."""

import pytest
import torch
from reproduction.extrapolation import Extrapolation, lagrange_weights

import unmask
from unmask import plan, predict
from unmask.schedule import Cosine, Linear


def chain():
    moves = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6]], dtype=torch.float64)
    return unmask.MarkovOracle(torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), moves)


@pytest.mark.parametrize("schedule", [Linear(), Cosine()])
@pytest.mark.parametrize(("order", "predictor"), [(1, predict.first_order), (2, predict.extrapolate)])
def test_the_first_two_orders_give_the_tokens_of_the_predictors(order, predictor, schedule):
    options = {"num": 40, "length": 24, "steps": 5, "seed": 3, "schedule": schedule}
    ours = unmask.sample(chain(), sampler=Extrapolation(order), **options)
    theirs = unmask.sample(chain(), plan=plan.parallel, predict=predictor, **options)
    assert torch.equal(ours.tokens, theirs.tokens) and ours.calls == theirs.calls


def test_the_third_order_gives_others():
    options = {"num": 40, "length": 24, "steps": 5, "seed": 3}
    two, three = (unmask.sample(chain(), sampler=Extrapolation(order), **options).tokens for order in (2, 3))
    assert not torch.equal(two, three)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_polynomials_below_the_order_are_continued_exactly(order):
    times = torch.tensor([[0.3, 0.5, 0.6, 0.9][:order]], dtype=torch.float64)
    tau = torch.tensor([0.1], dtype=torch.float64)
    weights = lagrange_weights(times, tau)
    for power in range(order):
        assert float((weights * times**power).sum()) == pytest.approx(0.1**power, abs=1e-12)


def test_predictions_that_are_missing_or_of_one_time_do_not_count():
    times = torch.tensor(
        [[0.3, 0.5, torch.nan], [0.3, 0.3, torch.nan], [0.3, torch.nan, torch.nan]], dtype=torch.float64
    )
    weights = lagrange_weights(times, torch.full((3,), 0.2, dtype=torch.float64))
    expected = [[1.5, -0.5, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))


def test_there_is_no_order_zero():
    with pytest.raises(ValueError, match="order"):
        Extrapolation(0)
