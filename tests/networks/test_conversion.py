"""A left-to-right network as the start of others: where both are asked the same, they answer the same."""

from dataclasses import replace

import pytest
import torch

from tests.helpers import generator
from unmask.networks.causal import Causal
from unmask.networks.config import TransformerConfig, preset
from unmask.networks.conversion import converted
from unmask.protocol import for_sampling

VOCAB, LENGTH = 11, 8
QWEN = {"head": 20, "qkv_bias": True, "head_norm": True, "eps": 1e-2}  # what Qwen's shapes add, 2 heads at width 64
SHAPES = pytest.mark.parametrize("changes", [{}, QWEN], ids=["plain", "Qwen"])


def left_to_right(**changes):
    shape = preset(
        "tiny", VOCAB, LENGTH, kind=TransformerConfig, adaln=False, mlp="swiglu", norm="rms", dropout=0.0, **changes
    )
    network = Causal(shape).eval()
    g = generator(4)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=g) + (parameter.ndim == 1))
    return network


def tokens(seed=0):
    return torch.randint(0, VOCAB, (3, LENGTH), generator=generator(seed))


@torch.no_grad()
def in_turn(network, x, **how):
    """Logits [B, L, V] of each position with those to its right masked."""
    rows = []
    for at in range(LENGTH):
        canvas = torch.where(torch.arange(LENGTH) < at, x, network.mask_id)
        rows.append(network(canvas, rows=torch.full((len(x), 1), at), **how))
    return torch.cat(rows, 1)


@SHAPES
@pytest.mark.parametrize("block", [1, 2, 8])
def test_blocks_of_any_size_filled_from_left_to_right_are_the_given_network(block, changes):
    given, x = left_to_right(**changes), tokens()
    made = converted(given, "blocks", block=block).eval()
    want = given(x)
    torch.testing.assert_close(in_turn(made, x), want, rtol=0, atol=1e-5)
    rows = torch.arange(LENGTH).expand_as(x)
    if block == 1:  # in which every mask of a position is asked from left to right
        with torch.no_grad():
            where = torch.ones_like(x, dtype=torch.bool)
            masked = made.packed(torch.full_like(x, made.mask_id), None, where, clean=x)
        torch.testing.assert_close(masked.view_as(want), want, rtol=0, atol=1e-5)
    assert rows.shape == x.shape


@SHAPES
@pytest.mark.parametrize("neighbours", [0, 2])
def test_any_order_from_left_to_right_is_the_given_network(neighbours, changes):
    given, x = left_to_right(**changes), tokens()
    made = converted(given, "any-order", neighbours=neighbours).eval()
    when = torch.arange(LENGTH)
    with torch.no_grad():
        chain = made.logits(made.chain(x, when))
    torch.testing.assert_close(chain, given(x), rtol=0, atol=1e-5)
    torch.testing.assert_close(in_turn(made, x, when=when), given(x), rtol=0, atol=1e-5)


@SHAPES
def test_masked_is_the_given_network_until_its_attention_opens(changes):
    given, x = left_to_right(**changes), tokens()
    made = converted(given, "masked").train()
    made.opens = 0.0
    with torch.no_grad():
        torch.testing.assert_close(made(x), given(x), rtol=0, atol=1e-5)
        made.opens = 1.0
        assert not torch.allclose(made(x), given(x), atol=1e-2)
        torch.testing.assert_close(made(x), made.eval()(x))


def test_attention_opens_to_the_part_that_is_asked_for():
    made, seen = converted(left_to_right(), "masked").train(), []
    made.opens = 0.3
    torch.manual_seed(0)
    for _ in range(400):
        mask = made.entries(tokens()).mask
        assert bool(mask[0, 0].tril().logical_or(~torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()).all())
        seen.append(mask[0, 0].triu(1).sum())
    pairs = LENGTH * (LENGTH - 1) / 2
    rate, error = float(torch.stack(seen).float().mean() / pairs), (0.3 * 0.7 / pairs / 400) ** 0.5
    assert abs(rate - 0.3) < 5 * error  # a false alarm in 2 million
    made.eval()
    assert made.entries(tokens()).mask is None


@SHAPES
@pytest.mark.parametrize("to", ["masked", "blocks", "any-order", None])
def test_the_copies_for_sampling_give_the_same(to, changes):
    """The caches and the rows of the last block have the shapes of the heads, their biases and their norms."""
    given, x = left_to_right(**changes), tokens()
    made = given if to is None else converted(given, to, block=4).eval()
    with torch.no_grad():
        for parameter in made.parameters():  # so that what was added also counts
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator(7)))
    order = {"when": torch.arange(LENGTH)} if to == "any-order" else {}  # which a cache knows from its calls
    want, got = in_turn(made, x, **order), in_turn(for_sampling(made), x)
    assert float(want.std()) > 0.1
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4)


def test_what_cannot_be_converted_is_refused():
    network = left_to_right(convolution=3)
    with pytest.raises(ValueError, match="with convolution=3 cannot become masked"):
        converted(network, "masked")


def test_the_given_network_is_not_changed():
    given = left_to_right()
    before = {name: tensor.clone() for name, tensor in given.state_dict().items()}
    made = converted(given, "blocks", block=2)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in given.state_dict().items())
    assert given.config == replace(given.config)
