"""Simulated published samplers: exact sampling with rejection gives what coupled low-precision steps give."""

import math

import pytest
import torch

from tests.helpers import FALSE_ALARM, chi_square, frequencies, joint, noise, oracle
from unmask import Cosine, draw, sample
from unmask.samplers.law import FLOAT32, CoupledByLaw, accepted


def by_law(model, *, law="grid", maximum=FLOAT32, **options):
    return sample(model, sampler=CoupledByLaw(law, maximum), **options)


def test_nothing_is_refused_without_a_maximum():
    """The oracle's joint, for another schedule too; false-alarm rate 1e-6 each, fixed seed."""
    model = oracle(vocab=3, length=3)
    for schedule in (None, Cosine()):
        made = by_law(model, steps=10_000, num=1500, length=3, maximum=math.inf, schedule=schedule, seed=2)
        assert chi_square(frequencies(made.tokens, 3), joint(3, 3)) > FALSE_ALARM
        assert bool((made.nfe <= 3).all()) and bool((made.ncs == 3).all())


def stepwise(model, steps, num, pick):
    """The published sampler in its plainest form: token and mask in one categorical, everywhere, in every step."""
    x = torch.full((num, model.length), model.mask_id)
    for k in range(steps, 0, -1):
        mu = model(x).exp()
        law = torch.cat([mu / k, torch.full((*x.shape, 1), 1 - 1 / k, dtype=torch.float64)], -1).flatten(0, 1)
        drawn = pick(law.log(), noise(k, len(law))).view_as(x)
        x = torch.where((x == model.mask_id) & (drawn < model.vocab_size), drawn, x)
    return x


def on_grid(bits):
    """Gumbel-max with uniforms on a grid of this many bits, without 0: float32 has 24 bits."""

    def pick(logits, noise):
        u = (1 + (noise.uniform(logits.shape[1]) * (2**bits - 1)).floor()) / 2**bits
        return (logits - torch.log(-torch.log(u))).argmax(-1)

    return pick


@pytest.mark.parametrize("law", ["grid", "truncated"])
def test_refusals_are_the_steps_themselves(law):
    """Two-sample chi-square over 27 outcomes against a step-by-step run; false-alarm rate 1e-6, fixed seeds.

    The error is large here (the joint itself is rejected), so that the two do not agree merely by being exact.
    """
    bits, steps, num = 10, 1000, 2000
    maximum = -math.log(-math.log(1 - 2.0**-bits))
    model = oracle(vocab=3, length=3)
    pick = on_grid(bits) if law == "grid" else draw.truncated(maximum)
    made = by_law(model, steps=steps, num=2 * num, length=3, law=law, maximum=maximum, seed=1)
    real = frequencies(stepwise(model, steps, num, pick), 3).double()
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


def test_steps_say_what_happened_and_what_is_given_stays():
    model = oracle(vocab=3, length=4)
    canvas = torch.tensor([[model.mask_id, 2, model.mask_id, 0], [1, 1, 1, 1], [model.mask_id] * 4])
    seen = []
    made = by_law(model, steps=50, canvas=canvas, maximum=2.0, seed=4, callback=seen.append)
    assert made.tokens[0, [1, 3]].tolist() == [2, 0] and made.tokens[1].tolist() == [1] * 4
    assert made.nfe[1] == 0 and bool((made.ncs[[0, 2]] > torch.tensor([2, 4])).any())  # some were refused
    again = canvas.clone()
    for i, step in enumerate(seen, 1):
        assert step.calls == i
        for row, sequence in enumerate(step.sequences.tolist()):
            real = step.positions[row] >= 0
            assert bool((again[sequence, step.positions[row][real]] == model.mask_id).all())
            again[sequence, step.positions[row][real]] = step.tokens[row][real]
            assert bool((step.probabilities[row][real] > 0).all()) and bool((step.tau[row][real] < 1).all())
    assert torch.equal(again, made.tokens)


def test_a_sequence_does_not_depend_on_its_neighbours():
    model = oracle(vocab=3, length=4)
    whole = by_law(model, steps=200, num=5, length=4, maximum=3.0, seed=6)
    parts = by_law(model, steps=200, num=5, length=4, maximum=3.0, seed=6, batch=2)
    assert torch.equal(whole.tokens, parts.tokens) and torch.equal(whole.nfe, parts.nfe)


@pytest.mark.parametrize(("wrong", "says"), [({"steps": 0}, "steps"), ({"steps": 3, "batch": 0}, "batch")])
def test_wrong_values_are_named(wrong, says):
    with pytest.raises(ValueError, match=says):
        by_law(oracle(vocab=3, length=3), num=1, length=3, **wrong)
