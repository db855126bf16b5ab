"""Matrices in few bits: what they stand for, their products, and networks that use them."""

import copy

import pytest
import torch
from torch import nn

from tests.helpers import generator
from unmask.networks import stored


@pytest.fixture(params=[False, True], ids=["float32", "bfloat16"])
def products(request, monkeypatch):
    """The type of the products: that of a machine without and of one with units for bfloat16."""
    monkeypatch.setattr(stored, "has_bfloat16", lambda kind: request.param)
    return torch.bfloat16 if request.param else torch.float32


def matrix(outputs=600, inputs=96, seed=0):
    return torch.randn(outputs, inputs, generator=generator(seed))


def read_int4(kept: stored.Groups) -> torch.Tensor:
    """W [outputs, inputs] read out number by number, from the layout that the class describes."""
    blocks, groups, half, columns = kept.halves.shape
    w = torch.empty(blocks * columns, groups * 2 * half)
    for block in range(blocks):
        for group in range(groups):
            for i in range(2 * half):
                bits = kept.halves[block, group, i % half].int()
                q = bits & 15 if i < half else bits >> 4
                scale, least = kept.scale[block, group, 0].float(), kept.least[block, group, 0].float()
                w[block * columns : (block + 1) * columns, group * 2 * half + i] = least + q * scale
    return w[: kept.shape[0]]


def test_int8_is_at_most_half_a_step_away():
    w = matrix()
    w[3] = 0
    given = w.clone()
    kept = stored.int8(w)
    assert torch.equal(w, given)
    assert kept.weight.dtype == torch.int8
    steps = w.abs().amax(1, keepdim=True) / 127
    assert bool(((kept.dense() - w).abs() <= steps * 0.5001).all())
    assert bool((kept.dense()[3] == 0).all())


@pytest.mark.parametrize("outputs", [600, 256, 7])
def test_int4_is_at_most_half_a_step_away_and_means_what_its_layout_says(outputs):
    w = matrix(outputs)
    kept = stored.int4(w)
    groups = w.view(outputs, -1, stored.GROUP)
    steps = (groups.amax(2) - groups.amin(2)) / 15
    # scale and offset are rounded to float16: its eps of their size, at most 15 times
    slack = 2**-10 * groups.abs().amax(2)
    away = (kept.dense() - w).abs().view_as(groups).amax(2)
    assert bool((away <= steps / 2 + 2 * slack).all())
    torch.testing.assert_close(kept.dense(), read_int4(kept), rtol=0, atol=1e-6)
    bits = 8 * sum(tensor.numel() * tensor.element_size() for tensor in kept.buffers())
    assert bits == 5 * 96 * -(-outputs // min(256, outputs)) * min(256, outputs)


def test_int4_needs_whole_groups():
    with pytest.raises(ValueError, match="multiple of 32 inputs, got 40"):
        stored.int4(matrix(8, 40))


@pytest.mark.parametrize("make", [stored.int8, stored.int4, lambda w: stored.Rows(w.bfloat16())])
def test_a_product_is_that_of_the_dense_matrix(make, products):
    kept, x = make(matrix(1300)), torch.randn(2, 5, 96, generator=generator(1))
    want = x.double() @ kept.dense().double().t()
    # A product in bfloat16 rounds its inputs and its outputs to 8 bits.
    close = 1e-5 if products == torch.float32 else 0.02
    made = kept.times(x)
    assert made.dtype == torch.float32
    assert float((made - want).abs().max() / want.abs().max()) < close
    torch.testing.assert_close(kept.take(torch.tensor([[0, 1299]])), kept.dense()[[0, 1299]].unsqueeze(0))


def test_float16_is_never_multiplied_in_fewer_digits(products):
    kept = stored.Rows(matrix().half())
    x = torch.randn(3, 96, generator=generator(1))
    torch.testing.assert_close(kept.times(x), x @ matrix().half().float().t())


@pytest.mark.parametrize("make", [stored.int8, stored.int4, lambda w: stored.Rows(w.bfloat16())])
def test_scaling_the_outputs_scales_the_rows(make):
    kept, factor = make(matrix()), torch.linspace(-1, 2, 600)
    want = kept.dense() * factor.unsqueeze(1)
    linear = stored.StoredLinear(copy.deepcopy(kept))
    stored.scale_outputs(linear, factor)
    torch.testing.assert_close(linear.weight, want, rtol=0, atol=8e-3)  # float16 rounds the scales of int4 again
    plain = nn.Linear(96, 600).requires_grad_(False)
    want = plain.weight * factor.unsqueeze(1)
    stored.scale_outputs(plain, factor)
    torch.testing.assert_close(plain.weight, want)


def test_buffers_move_and_keep_their_types():
    kept = stored.int8(matrix())
    kept.double().half()
    assert (kept.weight.dtype, kept.scale.dtype) == (torch.int8, torch.float32)
    assert stored.int8(matrix()).to("meta").weight.device.type == "meta"


def test_what_a_stored_matrix_cannot_do_is_refused():
    linear = stored.StoredLinear(stored.int8(matrix()))
    with pytest.raises(ValueError, match="give no gradients"):
        linear(torch.ones(1, 96, requires_grad=True))
    with pytest.raises(ValueError, match="cannot be saved"):
        linear.state_dict()


def test_the_buffer_of_one_thread_is_not_that_of_another():
    from concurrent.futures import ThreadPoolExecutor

    kept, x = [stored.int8(matrix(2000, 64, seed)) for seed in range(4)], torch.randn(3, 64, generator=generator(9))
    want = [one.times(x) for one in kept]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for one, expected in zip(pool.map(lambda one: one.times(x), kept), want, strict=True):
                assert torch.equal(one, expected)
