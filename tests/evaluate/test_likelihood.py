import math

import pytest
import torch

import unmask
from tests.helpers import generator, oracle
from unmask.models.oracle import HiddenMarkovOracle


@pytest.mark.parametrize("by", ["count", "time"])
def test_the_bound_of_an_oracle_is_minus_log_p(by):
    """Within 5 of its own standard errors, over 40 sequences together. False alarm below 1e-6."""
    model = oracle(3, 4)
    x0 = model.sample(40, generator=generator(0))
    bound = unmask.nelbo(model, x0, by=by, passes=200, generator=generator(1))
    off = (bound.nats + model.log_likelihood(x0)).sum() / bound.errors.square().sum().sqrt()
    assert abs(float(off)) < 5
    assert bound.nats_per_token == pytest.approx(float(bound.nats.mean()) / 4)
    assert bound.perplexity == pytest.approx(math.exp(bound.nats_per_token))


def test_stratification_makes_the_error_smaller_than_it_says():
    table = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]], dtype=torch.float64)
    model = HiddenMarkovOracle(torch.full((3,), 1 / 3, dtype=torch.float64), table, table)
    x0 = model.sample(1, 16, generator=generator(0)).expand(200, 16)
    bound = unmask.nelbo(model, x0, passes=16, generator=generator(1))
    assert float(bound.nats.std()) < float(bound.errors.mean())


def test_one_pass_has_no_error_to_report():
    model = oracle(2, 3)
    assert unmask.nelbo(model, torch.zeros(2, 3, dtype=torch.int64), passes=1).errors.tolist() == [math.inf] * 2


def test_the_batch_changes_nothing_but_memory():
    model = oracle(3, 4)
    x0 = model.sample(10, generator=generator(0))
    assert unmask.nelbo(model, x0, batch=10).nats.shape == unmask.nelbo(model, x0, batch=3).nats.shape == (10,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "tokens"}, "by must be"),
        ({"passes": 0}, "passes"),
        ({"tokens": torch.full((1, 4), 3)}, "must be complete"),
        ({"tokens": torch.zeros(4, dtype=torch.int64)}, "tokens must be int64"),
    ],
)
def test_bad_input_is_named(options, message):
    tokens = options.pop("tokens", torch.zeros(1, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=message):
        unmask.nelbo(oracle(3, 4), tokens, **options)
