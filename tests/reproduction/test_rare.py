"""Numbers that cannot win are not drawn, and nothing else changes: the distribution is that of the full race."""

import math

import numpy as np
import pytest
import torch
from reproduction.rare import CoupledRare, _placed, races

import unmask
from unmask.noise import generator
from unmask.samplers import published

N = 1000


def steps(J, N):
    leave = torch.full((J,), 1 / N, dtype=torch.float64)
    return leave, 1 - leave


@pytest.mark.parametrize("precision", ["float32", "float64", "float64-truncated"])
def test_winners_are_those_of_the_whole_race(precision):
    """Steps so short that every number matters: 40,000 races of each kind, chi-square of 6 outcomes (40: 1e-7)."""
    mu = torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05]], dtype=torch.float64)
    leave, stay = steps(40_000, 3)
    left, ids = races(mu, leave, stay, generator(0, 1), precision)
    weights = torch.cat([mu / 3, torch.tensor([[2 / 3]], dtype=torch.float64)], 1).expand(40_000, -1)
    all_drawn = published.race(precision)(weights, published.TorchRand(torch.tensor([7]), places=40_000))
    ours = torch.bincount(torch.where(left, ids, 5).flatten(), minlength=6).double()
    theirs = torch.bincount(all_drawn, minlength=6).double()
    assert float(((ours - theirs) ** 2 / (ours + theirs)).sum()) < 40
    assert int(ours[5]) < 40_000 and bool((ids[~left] == 0).all())


@pytest.mark.parametrize(("precision", "part"), [("float64", 1.0), ("float64-truncated", 0.0498), ("float32", 0.1578)])
def test_a_flat_position_is_left_as_theory_says(precision, part):
    """V = 50,257, N = 1,000, 12,000,000 races (all their numbers would be 6e11): five errors of Poisson counts."""
    V, runs, hits = 50_257, 24, 0
    mu = torch.full((1, V), 1 / V, dtype=torch.float64)
    for i in range(runs):
        hits += int(races(mu, *steps(500_000, N), generator(i, 2), precision)[0].sum())
    expected = part * runs * 500_000 / N
    assert abs(hits - expected) < 5 * math.sqrt(expected)


def test_the_tokens_of_rare_numbers_are_distinct_and_uniform():
    number = torch.tensor([3, 1, 40, 3, 2] * 400)
    cell, ids = _placed(number, 50, generator(0, 3))
    assert torch.equal(torch.bincount(cell), number)
    assert len(torch.unique(cell * 50 + ids)) == len(ids)
    counts = torch.bincount(ids, minlength=50).double()
    expected = len(ids) / 50
    assert float(((counts - expected) ** 2 / expected).sum()) < 110  # 49 degrees: once in 1e6; sets are smoother still


def oracle():
    weights = torch.tensor([0.30, 0.02, 0.11, 0.07, 0.05, 0.21, 0.08, 0.16], dtype=torch.float64)
    return unmask.EnumeratedOracle(weights.view(2, 2, 2))


@pytest.mark.parametrize("law", [published.ancestral_law, published.tweedie_law])
def test_in_many_float64_steps_it_gives_the_joint(law):
    """Chi-square with 7 degrees: 40.5 once in a million."""
    num = 4000
    made = unmask.sample(oracle(), sampler=CoupledRare("float64", law), steps=400, num=num, length=3, seed=1)
    found = torch.bincount((made.tokens * torch.tensor([4, 2, 1])).sum(1), minlength=8).double()
    expected = oracle().log_likelihood(torch.cartesian_prod(*[torch.arange(2)] * 3)).exp() * num
    assert float(((found - expected) ** 2 / expected).sum()) < 40.5


def test_it_makes_the_calls_and_counts_the_draws_of_the_published_sampler():
    """A call per change, and all rows of all steps counted as drawn; both means within five errors of the published."""

    def run(sampler, seed):
        return unmask.sample(oracle(), sampler=sampler, steps=10, num=1, length=3, seed=seed)

    ours, theirs = (
        [run(sampler, i) for i in range(400)] for sampler in (CoupledRare("float64"), published.Coupled("float64"))
    )
    for what in (lambda one: one.calls, lambda one: int(one.ncs[0])):
        a, b = (np.array([what(one) for one in part], dtype=float) for part in (ours, theirs))
        assert abs(a.mean() - b.mean()) < 5 * math.sqrt((a.var() + b.var()) / 400) + 1e-9


def test_a_sequence_does_not_depend_on_its_batch():
    together = unmask.sample(oracle(), sampler=CoupledRare(), steps=50, num=5, length=3, seed=[9, 8, 7, 6, 5]).tokens
    alone = [
        unmask.sample(oracle(), sampler=CoupledRare(), steps=50, length=3, seed=seed).tokens for seed in (9, 8, 7, 6, 5)
    ]
    assert torch.equal(together, torch.cat(alone))


def test_a_precision_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="float16"):
        CoupledRare("float16")
