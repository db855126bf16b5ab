"""What makes sampling fast, against the plain network: the same logits to 1e-5, the same samples of a seed."""

from __future__ import annotations

import copy
import threading
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import unmask
from tests.networks.test_ddit import TOLERANCE, network
from unmask import plan, predict
from unmask.draw import Faults, refuse
from unmask.network import logits_at, logits_of, suppress_mask
from unmask.networks.cache.rows import MLP_ROWS, AskedRows, InPieces, gelu
from unmask.networks.ddit import DDiT
from unmask.networks.layers import Block

V, LENGTH = 11, 9
SHAPES = [
    {},
    {"convolution": 3, "mask_id": 4},
    {"tie_embeddings": True, "adaln": False},
    {"layers": 1},
    {"attention": "visible", "convolution": 3},
    {"conditioning": "ratio", "convolution": 3},
    {"norm": "rms", "mlp": "swiglu", "hidden": 24},
    {"learned_positions": True, "convolution": 3},
    {"reads_left": True, "adaln": False},
    {"norm": "rms", "mlp": "swiglu", "adaln": False, "convolution": 3},
]


class Plain:
    """A network in its plain form: no rows, nothing folded or kept."""

    def __init__(self, model: DDiT) -> None:
        self.model, self.vocab_size, self.mask_id = model, model.vocab_size, model.mask_id

    def __call__(self, tokens: Tensor, time: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self.model(tokens, time)


def canvases(mask_id: int, count: int = 12, batch: int = 3) -> list[Tensor]:
    """Canvases as a run shows them, and as it does not: filled, masked again, changed, and of fewer sequences."""
    random, made = torch.Generator().manual_seed(3), [torch.full((batch, LENGTH), mask_id)]
    for _ in range(count):
        x = made[-1].clone()
        at = torch.randint(LENGTH, (len(x), 2), generator=random)
        new = torch.randint(V, (len(x), 2), generator=random)
        made.append(x.scatter(1, at, torch.where(torch.rand(len(x), 2, generator=random) < 0.3, mask_id, new)))
    return [*made, made[-1][:2], made[-2], made[0][:1]]


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_the_network_for_sampling_answers_as_the_plain_one(changes: dict[str, Any]) -> None:
    model = network(**changes)
    fast, plain = model.for_sampling(), Plain(model)
    random = torch.Generator().manual_seed(0)
    for x in canvases(model.mask_id):
        for asked in (1, 2, 6):
            rows = torch.randint(LENGTH, (len(x), asked), generator=random)
            with torch.inference_mode():
                found = fast(x, rows=rows)
            torch.testing.assert_close(found, logits_at(plain, x, None, rows), **TOLERANCE)


@pytest.mark.parametrize("changes", SHAPES, ids=str)
@pytest.mark.parametrize("how", [predict.first_order, predict.extrapolate, predict.correct], ids=("1", "3", "4"))
def test_the_samples_of_a_seed_are_those_of_the_plain_network(how: Any, changes: dict[str, Any]) -> None:
    model = network(**changes)
    for options in ({}, {"plan": plan.ancestral, "steps": 5}):
        given: dict[str, Any] = {"num": 3, "length": LENGTH, "seed": 5, "predict": how, **options}
        assert torch.equal(unmask.sample(model, **given).tokens, unmask.sample(Plain(model), **given).tokens)


def test_only_what_changed_is_projected_by_the_first_block(monkeypatch: pytest.MonkeyPatch) -> None:
    fast: Any = network().for_sampling()
    project, projected = Block.project, []

    def counting(self: Any, h: Tensor, *given: Any) -> Any:
        if self is fast.network.blocks[0]:
            projected.append(h.shape[0] * h.shape[1])
        return project(self, h, *given)

    monkeypatch.setattr(Block, "project", counting)
    unmask.sample(fast, num=2, length=LENGTH)
    assert projected == [2 * LENGTH] + [2] * (LENGTH - 1)  # the mask once, then each new token


def test_what_is_kept_is_each_thread_s_own_and_no_copy_s() -> None:
    fast: Any = network().for_sampling()
    x = canvases(fast.mask_id)[-4]
    rows = torch.arange(LENGTH).expand_as(x)
    with torch.inference_mode():
        expected = fast(x, rows=rows)
    again, other = copy.deepcopy(fast), []
    assert fast.first.tokens is not None and again.first.tokens is None
    thread = threading.Thread(target=lambda: other.append(fast.first.tokens))
    thread.start()
    thread.join()
    assert other == [None]
    with torch.inference_mode():
        torch.testing.assert_close(again(x, rows=rows), expected, **TOLERANCE)


def test_a_network_for_sampling_is_not_copied_again_and_shares_no_weights() -> None:
    for changes in ({}, {"adaln": False}):
        model = network(**changes)
        fast: Any = model.for_sampling()
        assert isinstance(fast, AskedRows)
        again: Any = fast.for_sampling()
        mine = {tensor.data_ptr() for tensor in fast.parameters()}
        assert mine == {tensor.data_ptr() for tensor in again.parameters()} and again.first is not fast.first
        theirs = {tensor.data_ptr() for tensor in model.parameters()}
        assert not theirs & {tensor.data_ptr() for tensor in fast.parameters()}


def test_an_mlp_in_pieces_is_the_mlp() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(2, MLP_ROWS, 24, generator=random)[:, 100:] * 4
    mlp = nn.Sequential(nn.Linear(24, 48), nn.GELU(approximate="tanh"), nn.Linear(48, 24)).requires_grad_(False)
    with torch.inference_mode():
        for part in (x, x[:, :3], x[:, :0], x[0]):
            torch.testing.assert_close(InPieces(*mlp)(part), mlp(part), **TOLERANCE)
        torch.testing.assert_close(gelu(x), functional.gelu(x, approximate="tanh"), **TOLERANCE)
        far = torch.tensor([-1e4, -30.0, 0.0, 30.0, 1e4])
        assert gelu(far).tolist() == [0.0, 0.0, 0.0, 30.0, 1e4]


@pytest.mark.parametrize("changes", [{}, {"self_conditioning": True}, {"attention": "order"}], ids=str)
def test_pads_are_left_out_and_the_mask_needs_no_copy(changes: dict[str, Any]) -> None:
    model: Any = network(mask_id=4, **changes).for_sampling()
    x, rows = canvases(4)[0], torch.tensor([[0, 5], [1, 0], [8, 7]])
    real = torch.tensor([[True, True], [True, False], [False, False]])
    with torch.inference_mode():
        expected = logits_at(model.for_sampling(), x, None, rows)
        found = logits_of(model.for_sampling(), x, None, rows, real)
        torch.testing.assert_close(found, expected[real], **TOLERANCE)
        assert logits_of(model.for_sampling(), x, None, rows, torch.ones_like(real)).shape == (6, V)
    assert bool((expected[..., 4] == -torch.inf).all()) and suppress_mask(model, expected) is expected


class TestFaults:
    """On an accelerator the host does not look at every call's numbers; here a CPU plays one."""

    def test_they_are_noted_and_raised_later(self) -> None:
        faults = Faults()
        with faults.collected():
            refuse(torch.tensor(False), "nothing")
            refuse(torch.tensor(True), "wrong")
            refuse(torch.tensor(False), "wrong")
        with pytest.raises(ValueError, match="wrong"):
            faults.check()
        with pytest.raises(ValueError, match="now"):
            refuse(torch.tensor(True), "now")

    def test_a_run_that_defers_them_makes_the_same_samples_and_refuses_all_the_same(self) -> None:
        class Broken:
            vocab_size, mask_id, after = 3, 3, 2

            def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
                assert rows is not None
                self.after -= 1
                return torch.full((*rows.shape, 3), torch.nan if self.after < 0 else 0.0)

        model = network()
        expected = unmask.sample(model, num=2, length=LENGTH, seed=1).tokens
        with accelerated():
            assert torch.equal(unmask.sample(model, num=2, length=LENGTH, seed=1).tokens, expected)
            with pytest.raises(ValueError, match="no distribution"):
                unmask.sample(Broken(), num=2, length=6)
            calls, broken = [], Broken()
            broken.after = 10**6
            assert unmask.sample(broken, num=1, length=6, callback=calls.append).calls == 6 == len(calls)


def accelerated() -> AbstractContextManager[Any]:
    """As if the canvas were on an accelerator."""
    return patch("unmask.sampling.waits", lambda device: True)
