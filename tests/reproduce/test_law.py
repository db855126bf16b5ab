"""Coupled low-precision steps by their law: exact sampling with refusals gives what the steps themselves give."""

import math

import pytest
import torch

from tests.helpers import FALSE_ALARM, chi_square, frequencies, joint, oracle
from unmask import draw
from unmask.reproduce.law import accepted, coupled_by_law


def test_nothing_is_refused_without_a_maximum():
    """The oracle's joint; false-alarm rate 1e-6, fixed seed."""
    model = oracle(vocab=3, length=3)
    made = coupled_by_law(model, steps=10_000, num=3000, length=3, maximum=math.inf, seed=2, batch=3000)
    assert chi_square(frequencies(made.tokens, 3), joint(3, 3)) > FALSE_ALARM
    assert bool((made.ncs == 3).all())


def stepwise(model, steps, num, pick):
    """The published sampler in its plainest form: token and mask in one categorical, everywhere, in every step."""
    x = torch.full((num, model.length), model.mask_id)
    generator = torch.Generator().manual_seed(5)
    for k in range(steps, 0, -1):
        mu = model(x).exp()
        law = torch.cat([mu / k, torch.full((*x.shape, 1), 1 - 1 / k, dtype=torch.float64)], -1).flatten(0, 1)
        drawn = pick(law.log(), [generator] * len(law)).view_as(x)
        x = torch.where((x == model.mask_id) & (drawn < model.vocab_size), drawn, x)
    return x


def on_grid(bits):
    """Gumbel-max with uniforms on a grid of so many bits, 0 left out: what float32 is on 24 bits."""

    def pick(logits, generators):
        u = torch.randint(1, 2**bits, logits.shape, generator=generators[0]).double() / 2**bits
        return (logits - torch.log(-torch.log(u))).argmax(-1)

    return pick


@pytest.mark.parametrize("law", ["grid", "truncated"])
def test_refusals_are_the_steps_themselves(law):
    """Two-sample chi-square over 27 outcomes against a step-by-step run; false-alarm rate 1e-6, fixed seeds.

    The fault is strong here (the joint itself is told apart), so that the two laws are not alike by being exact.
    """
    bits, steps, num = 10, 1000, 2000
    maximum = -math.log(-math.log(1 - 2.0**-bits))
    model = oracle(vocab=3, length=3)
    pick = on_grid(bits) if law == "grid" else draw.truncated(maximum)
    real = frequencies(stepwise(model, steps, num, pick), 3).double()
    made = coupled_by_law(model, steps=steps, num=2 * num, length=3, law=law, maximum=maximum, seed=1, batch=2 * num)
    ours = frequencies(made.tokens, 3).double()
    pooled = (real + ours) / (3 * num)
    both = torch.cat([(real - num * pooled) ** 2 / (num * pooled), (ours - 2 * num * pooled) ** 2 / (2 * num * pooled)])
    assert float(both[pooled.repeat(2) > 0].sum()) < 84  # 26 degrees of freedom: beyond it once in 1e7
    assert chi_square(ours.long(), joint(3, 3)) < FALSE_ALARM


def test_what_is_left_of_the_rate():
    c = torch.tensor([0.0, 1e-9, 1.0, 50.0, 1e4], dtype=torch.float64)
    grid = accepted(c, "grid")
    assert grid[:2].tolist() == pytest.approx([1, 1]) and float(grid[2]) == pytest.approx(1 / (math.e - 1))
    assert bool((grid >= accepted(c, "truncated")).all()) and bool((grid.diff() <= 0).all())
    with pytest.raises(ValueError, match="law"):
        accepted(c, "exact")


def test_a_sequence_does_not_depend_on_its_batch():
    model = oracle(vocab=3, length=4)
    one = coupled_by_law(model, steps=500, num=6, length=4, maximum=4.0, seed=3, batch=6)
    other = coupled_by_law(model, steps=500, num=6, length=4, maximum=4.0, seed=3, batch=2)
    assert torch.equal(one.tokens, other.tokens) and torch.equal(one.nfe, other.nfe)
