"""The predictors' parts. That they are Algorithms 3 and 4 is in test_paper.py."""

import pytest
import torch

from tests.helpers import frequencies, generator, oracle, total_variation
from unmask import plan, predict, sample
from unmask.networks.oracles.enumerated import MarkovOracle
from unmask.predict import Prediction, lagrange, log_mean


def test_log_mean_is_normalised_in_float64_whatever_comes_in():
    """Equation 4: a bfloat16 softmax over 50,257 ids does not sum to 1; ours does."""
    logits = torch.randn(2, 50_257, generator=generator(0)).bfloat16()
    mu = log_mean(logits).exp()
    assert mu.dtype == torch.float64
    torch.testing.assert_close(mu.sum(-1), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_log_mean_refuses_what_is_no_distribution(bad):
    with pytest.raises(ValueError, match="no distribution"):
        log_mean(torch.tensor([[0.0, bad]]))
    with pytest.raises(ValueError, match="no distribution"):
        log_mean(torch.full((1, 2), -torch.inf))


class TestLagrange:
    mu = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    last = torch.tensor([[0.4, 0.2, 0.4]], dtype=torch.float64)

    def at(self, tau):
        now = Prediction(self.mu.log(), torch.tensor([0.6], dtype=torch.float64))
        before = Prediction(self.last.log(), torch.tensor([0.8], dtype=torch.float64))
        weights = lagrange(now, before, torch.tensor([tau], dtype=torch.float64)).exp()
        return weights

    def test_passes_through_both_predictions(self):
        torch.testing.assert_close(self.at(0.6), self.mu)
        torch.testing.assert_close(self.at(0.8), self.last)

    def test_is_the_paper_s_formula_between_and_beyond(self):
        for tau in (0.7, 0.55, 0.5):
            expected = (tau - 0.8) / (0.6 - 0.8) * self.mu + (tau - 0.6) / (0.8 - 0.6) * self.last
            torch.testing.assert_close(self.at(tau), expected.clamp(min=0))
            assert float(expected.sum()) == pytest.approx(1)

    def test_what_falls_below_zero_is_put_at_zero(self):
        weights = self.at(0.3)
        assert float(weights[0, 2]) == 0
        assert bool((weights[0, :2] > 0).all())

    def test_one_time_twice_keeps_the_newer_prediction(self):
        now = Prediction(self.mu.log(), torch.tensor([0.5], dtype=torch.float64))
        before = Prediction(self.last.log(), torch.tensor([0.5], dtype=torch.float64))
        torch.testing.assert_close(lagrange(now, before, torch.tensor([0.4], dtype=torch.float64)).exp(), self.mu)

    def test_the_first_call_has_nothing_to_extrapolate(self):
        now = Prediction(self.mu.log(), torch.tensor([0.5], dtype=torch.float64))
        assert torch.equal(lagrange(now, None, torch.tensor([0.1], dtype=torch.float64)), self.mu.log())


def test_auto_is_the_paper_s_rule():
    assert predict.auto(128) is predict.extrapolate
    assert predict.auto(129) is predict.correct


def test_correction_costs_no_calls_and_carries_over_what_the_network_was_shown():
    model = oracle(3, 6, seed=2)
    plain = sample(model, num=40, length=6, plan=plan.parallel, steps=3, seed=1)
    ours = sample(model, num=40, length=6, plan=plan.parallel, steps=3, predict=predict.correct, seed=1)
    assert torch.equal(ours.nfe, plain.nfe)
    shown = torch.full((40, 6), model.mask_id)
    carried = 0
    for step in ours.trace:
        before = shown.clone()
        for b in range(40):
            if step.hidden is not None:
                shown[b, [p for p in step.hidden[b].tolist() if p >= 0]] = model.mask_id
            for position, token, drawn in zip(
                step.positions[b].tolist(), step.tokens[b].tolist(), step.drawn[b].tolist(), strict=True
            ):
                if position >= 0:
                    assert shown[b, position] == model.mask_id, "filled once per state"
                    assert drawn == (before[b, position] == model.mask_id)
                    if not drawn:
                        assert token == before[b, position]
                        carried += 1
                    shown[b, position] = token
    assert torch.equal(shown, ours.tokens)
    assert carried > 0
    assert int(ours.ncs.sum()) == sum(int(step.drawn.sum()) for step in ours.trace)


@pytest.mark.parametrize(("name", "switch", "steps"), [("extrapolate", 0.3, 2), ("correct", 0.1, 6)])
def test_the_second_order_reduces_the_bias_of_parallel_decoding(name, switch, steps):
    """Total variation to a Markov chain's joint over 8 positions, where each variant is at its best.

    Extrapolation with few steps, correction with many, as in the paper. Over 8,000 samples a distance has a standard
    error below 0.006; the differences are 0.09 and 0.03.
    """
    chain = torch.tensor([[1 - switch, switch], [switch, 1 - switch]], dtype=torch.float64)
    model = MarkovOracle(torch.tensor([0.5, 0.5], dtype=torch.float64), chain)
    truth = model.log_likelihood(torch.cartesian_prod(*[torch.arange(2)] * 8)).exp()

    def distance(how):
        tokens = sample(model, num=8000, length=8, plan=plan.parallel, steps=steps, predict=how, seed=3).tokens
        return total_variation(frequencies(tokens, 2) / 8000, truth)

    assert distance(getattr(predict, name)) < distance(predict.first_order) - 0.01
