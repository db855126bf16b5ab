"""What ``benchmarks.ahead`` needs: chains that answer a whole window in one pass, and rejection sampling."""

import pytest
import torch
from benchmarks.rejection import Rejection

from benchmarks import ahead_oracles
from tests.helpers import FALSE_ALARM, chi_square, frequencies, oracle
from tests.samplers.test_ahead import INTERFACES, ORACLES, OrderCausal, ragged
from unmask import sample
from unmask.networks.oracles.enumerated import HiddenMarkovOracle, MarkovOracle


@pytest.mark.parametrize("length", [1, 5, 24])
def test_the_chains_of_the_benchmark_answer_as_the_oracles_do(length):
    plain, hidden = ahead_oracles.tables(), ahead_oracles.hidden_tables()
    for model, exact in (
        (ahead_oracles.Chain(*plain, length), MarkovOracle(*plain)),
        (ahead_oracles.HiddenChain(*hidden, length), HiddenMarkovOracle(*hidden)),
    ):
        expected = sample(exact, num=4, length=length, seed=3).tokens
        for window in (1, 4, length):
            assert torch.equal(sample(model, num=4, length=length, seed=3, ahead=window).tokens, expected)


@pytest.mark.parametrize("interface", INTERFACES.values(), ids=INTERFACES)
class TestTheRejectionSamplerItIsComparedWith:
    @pytest.mark.parametrize("window", [1, 2, 4])
    def test_its_joint_is_the_models(self, window, interface):
        model, num = oracle(3, 4, seed=1), 4_000 if interface is OrderCausal else 16_000
        tokens = sample(interface(model), num=num, seed=1, length=4, sampler=Rejection(window)).tokens
        assert chi_square(frequencies(tokens, 3), model.joint) > FALSE_ALARM

    def test_a_prompt_stays_and_a_round_is_two_calls(self, interface):
        model, length = ORACLES["markov"]
        canvas = ragged(model, length)
        made = sample(interface(model), canvas=canvas, sampler=Rejection(5), seed=3)
        visible = canvas != model.mask_id
        assert torch.equal(made.tokens[visible], canvas[visible])
        assert bool((made.nfe % 2 == 0).all()) and bool((made.nfe <= 2 * (~visible).sum(1)).all())
        alone = sample(interface(model), canvas=canvas, sampler=Rejection(5), seed=3, batch=2)
        assert torch.equal(alone.tokens, made.tokens)
