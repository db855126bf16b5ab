"""The samplers' distributions on known joints: exact ones are shown exact, biased ones biased the right way.

Fixed seeds; every chi-square has a false-alarm rate of 1e-6.
"""

import pytest
import torch

from tests.helpers import FALSE_ALARM, chi_square, frequencies, joint, oracle, total_variation
from unmask import plan, predict, sample
from unmask.networks.oracles.enumerated import EnumeratedOracle
from unmask.schedule import Cosine, Geometric, Linear, LogLinear, Polynomial

SCHEDULES = [Linear(), Cosine(), Polynomial(2), Geometric(), LogLinear()]
ROWS = 6000


def law(model, vocab, **options):
    tokens = sample(model, length=model.length, **{"num": ROWS, "seed": 1} | options).tokens
    return frequencies(tokens, vocab)


class TestExactness:
    @pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
    def test_first_hitting_gives_the_joint(self, schedule):
        model = oracle(3, 4)
        assert chi_square(law(model, 3, schedule=schedule), model.joint) > FALSE_ALARM

    @pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
    def test_ancestral_with_many_steps_gives_the_joint(self, schedule):
        """At N = 10^6 two hits share an interval about once in 10^5 sequences."""
        model = oracle(3, 4)
        counts = law(model, 3, schedule=schedule, plan=plan.ancestral, steps=1_000_000)
        assert chi_square(counts, model.joint) > FALSE_ALARM

    def test_parallel_with_a_step_per_token_gives_the_joint(self):
        model = oracle(3, 4)
        assert chi_square(law(model, 3, plan=plan.parallel, steps=4), model.joint) > FALSE_ALARM

    def test_extrapolation_of_single_tokens_changes_nothing(self):
        model = oracle(3, 4)
        ours, plain = (
            sample(model, num=50, length=4, predict=how, seed=3).tokens
            for how in (predict.extrapolate, predict.first_order)
        )
        assert torch.equal(ours, plain)

    def test_independent_positions_are_sampled_exactly_by_every_sampler(self):
        """Nothing depends on anything: one step is as good as many, and neither second-order variant may hurt."""
        p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
        model = EnumeratedOracle(torch.einsum("i,j,k->ijk", p, p.flip(0), p.roll(1)))
        for planner in (plan.parallel, plan.ancestral):
            for how in (predict.first_order, predict.extrapolate, predict.correct):
                for steps in (1, 2):
                    counts = law(model, 3, plan=planner, predict=how, steps=steps, num=3000)
                    assert chi_square(counts, model.joint) > FALSE_ALARM

    def test_an_infill_has_the_conditional_distribution(self):
        model = oracle(3, 4)
        canvas = torch.tensor([[3, 1, 3, 2]]).expand(ROWS, 4)
        tokens = sample(model, canvas=canvas, seed=2).tokens
        conditional = model.joint[:, 1, :, 2] / model.joint[:, 1, :, 2].sum()
        assert chi_square(frequencies(tokens[:, [0, 2]], 3), conditional) > FALSE_ALARM

    def test_a_mask_id_in_the_middle_of_the_vocabulary(self):
        p = torch.zeros(4, 4, 4, dtype=torch.float64)
        keep = torch.tensor([0, 2, 3])
        p[keep.view(3, 1, 1), keep.view(1, 3, 1), keep] = joint(3, 3)
        model = EnumeratedOracle(p, mask_id=1)
        assert chi_square(law(model, 4), model.joint) > FALSE_ALARM


class TestBias:
    """Parallel decoding treats positions of one group as independent. Distances to the joint over 40,000 samples."""

    rows = 20_000

    def distance(self, model, **options):
        return total_variation(law(model, 3, num=self.rows, **options) / self.rows, model.joint)

    @pytest.mark.parametrize("planner", [plan.parallel, plan.ancestral])
    def test_the_bias_falls_as_the_steps_grow(self, planner):
        model = oracle(3, 4)
        noise = total_variation(law(model, 3, num=self.rows) / self.rows, model.joint)
        steps = [1, 2, 4] if planner is plan.parallel else [1, 4, 32]
        distances = [self.distance(model, plan=planner, steps=n) for n in steps]
        assert distances[0] > distances[1] + noise
        assert distances[1] > distances[2] + noise
        assert distances[0] > 5 * noise
        assert distances[2] < (2 * noise if planner is plan.parallel else 4 * noise)

    def test_one_step_is_the_product_of_the_marginals(self):
        model = oracle(3, 4)
        marginals = [model.joint.sum([k for k in range(4) if k != axis]) for axis in range(4)]
        counts = law(model, 3, plan=plan.parallel, steps=1)
        assert chi_square(counts, torch.einsum("i,j,k,l->ijkl", *marginals)) > FALSE_ALARM
