"""Attention over what is visible: who sees whom, and what a pass costs."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import FALSE_ALARM, chi_square, frequencies
from tests.networks.test_ddit import BATCH, LENGTH, TOLERANCE, V, canvas, network, reference
from unmask import objective, sample


def seen_by(tokens: Tensor) -> Tensor:
    """The rule as the text gives it, pair by pair: bool [B, L, L]."""
    sees = torch.zeros(*tokens.shape, tokens.shape[1], dtype=torch.bool)
    for b, row in enumerate(tokens.tolist()):
        for i in range(len(row)):
            for j, other in enumerate(row):
                sees[b, i, j] = i == j or other != V
    return sees


def test_it_is_the_papers_network_with_another_rule_of_attention() -> None:
    model, tokens = network(attention="visible"), canvas(V)
    sees = seen_by(tokens)
    expected = reference(model.state_dict(), tokens, torch.zeros(BATCH, dtype=torch.float64), 3, V, sees)
    torch.testing.assert_close(model(tokens).double(), expected, **TOLERANCE)
    changed = tokens.clone()
    changed[0, int((tokens[0] != V).nonzero()[0])] += 1
    assert not torch.allclose(model(changed % V).double(), expected, **TOLERANCE)


@pytest.mark.parametrize("convolution", [0, 3, 5])
def test_who_depends_on_whom(convolution: int) -> None:
    """Changing or masking a token changes exactly the answers of those that may see it, directly or through others."""
    model, tokens = network(attention="visible", convolution=convolution), canvas(V)
    sees, before = seen_by(tokens), model(tokens)
    for b in range(BATCH):
        for position in range(LENGTH):
            changed = tokens.clone()
            changed[b, position] = min(set(range(V)) - set(tokens[b].tolist()))  # the same token again could go unseen
            moved = (model(changed) - before)[b].abs().amax(-1) > 1e-6
            if tokens[b, position] != V:
                assert torch.equal(moved, sees[b, :, position])
            else:  # a masked position that is filled becomes visible to later ones
                assert bool(moved[position])
                after = seen_by(changed)[b, :, position]
                assert torch.equal(moved | (torch.arange(LENGTH) == position), after)


def widths(model: Any) -> list[int]:
    """The number of entries of every pass from now on."""
    sizes: list[int] = []
    model.blocks[0].norm1.register_forward_hook(lambda _, inputs, __: sizes.append(inputs[0].shape[1]))
    return sizes


@pytest.mark.parametrize("convolution", [0, 3])
def test_a_pass_costs_the_visible_and_the_asked_rows(convolution: int) -> None:
    """Any single row has the answer of the full pass, from as many entries as tokens are visible and one more."""
    model, tokens = network(attention="visible", convolution=convolution), canvas(V)
    tokens[2] = V  # an empty canvas beside others
    full = model(tokens)
    for position in range(LENGTH):
        run: Any = model.for_sampling()
        sizes = widths(run.network)
        logits = run(tokens, rows=torch.full((BATCH, 1), position))
        torch.testing.assert_close(logits[:, 0], full[:, position], **TOLERANCE)
        assert set(sizes) == {int((tokens != V).sum(1).max()) + 1}


def test_the_distribution_of_a_sampler_is_the_mixture_over_orders() -> None:
    """20,000 sequences of 3 tokens from 3 against the mean over the 6 orders of their chain rules, enumerated.

    A chi-square test with a false-alarm rate of 1e-6; a network whose tokens were rotated fails it.
    """
    model = network(attention="visible", convolution=3, vocab_size=3, mask_id=3, seed=5)
    with torch.no_grad():
        model.output_layer.linear.weight.mul_(3)
    every = torch.cartesian_prod(*[torch.arange(3)] * 3)
    law = torch.zeros(27, dtype=torch.float64)
    with torch.inference_mode():
        for order in permutations(range(3)):
            law += (-objective.along_order(model, every, torch.tensor(order).expand(27, 3))).exp() / 6
    assert abs(float(law.sum()) - 1) < 1e-9
    tokens = sample(model, num=20_000, length=3, seed=1).tokens
    assert chi_square(frequencies(tokens, 3), law) > FALSE_ALARM
    assert chi_square(frequencies((tokens + 1) % 3, 3), law) < FALSE_ALARM
