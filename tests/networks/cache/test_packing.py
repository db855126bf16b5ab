"""Packed weights give the plain network's outputs, are not shared, and are not used where they cannot be made."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import unmask
from tests.small_models import small
from unmask.checkpoints.mdlm_ar import Given
from unmask.networks.any_order import OneStream
from unmask.networks.cache import packing
from unmask.networks.cache.any_order import OneStreamCached
from unmask.networks.cache.in_turn import LeftToRightCached
from unmask.networks.causal import Causal
from unmask.networks.config import TransformerConfig, blocks_of
from unmask.networks.ddit import DDiT

needs_onednn = pytest.mark.skipif(not packing.available(torch.zeros(1)), reason="this torch has no oneDNN")


SIZES = {"vocab_size": 40, "mask_id": 40, "length": 12, "width": 32, "heads": 4, "layers": 3}
network = partial(small, OneStream, **SIZES, attention="order")
plain_network = partial(small, DDiT, **SIZES)


def cached(made: OneStream) -> OneStreamCached:
    run = made.for_sampling()
    assert isinstance(run, OneStreamCached)
    return run


@needs_onednn
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 16, 100])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_packed_product_is_the_plain_one(rows: int, with_bias: bool) -> None:
    torch.manual_seed(rows)
    x, weight, bias = torch.randn(2, rows, 48), torch.randn(70, 48) / 7, torch.randn(70) if with_bias else None
    with torch.inference_mode():
        made = packing.Packed(weight, bias)(x)
    straight = functional.linear(x, weight, bias)
    torch.testing.assert_close(made, straight, atol=1e-5, rtol=1e-5)


@needs_onednn
@pytest.mark.parametrize(
    "options", [{}, {"tie_embeddings": True}, {"neighbours": 2}, {"adaln": False, "norm_bias": True}, {"mask_id": 5}]
)
def test_a_packed_run_has_the_networks_logits(monkeypatch: pytest.MonkeyPatch, options: dict[str, object]) -> None:
    monkeypatch.setattr(packing, "LEAST", 0)
    made = network(**options)
    run = cached(made)
    assert not any(isinstance(module, nn.Linear) for module in run.network.blocks.modules())  # type: ignore[attr-defined]
    random = torch.Generator().manual_seed(1)
    tokens = torch.full((2, 12), made.mask_id)
    for at in torch.randperm(12, generator=random).tolist():
        with torch.inference_mode():
            rows = torch.full((2, 1), at)
            logits = run(tokens, rows=rows)
            torch.testing.assert_close(logits, made(tokens, rows=rows, when=run.when), atol=1e-5, rtol=1e-5)
        new = torch.randint(40, (2,), generator=random)
        tokens[:, at] = torch.where(new == made.mask_id, 0, new)


@needs_onednn
def test_a_packed_run_keeps_no_second_copy_and_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LEAST", 0)
    made = network(adaln=False, norm_bias=True)
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    run = cached(made)
    kept = sum(parameter.numel() for parameter in run.network.parameters())
    assert kept < sum(parameter.numel() for parameter in made.parameters()) / 2  # embedding, norms and biases
    tokens, rows = torch.full((1, 12), made.mask_id), torch.zeros(1, 1, dtype=torch.int64)
    answer = run(tokens, rows=rows)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    assert torch.equal(run.for_sampling()(tokens, rows=rows), answer)  # what was packed stays as it was
    assert torch.equal(copy.deepcopy(run).for_sampling()(tokens, rows=rows), answer)
    assert made.state_dict().keys() == before.keys()


def test_samples_do_not_depend_on_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = network()
    monkeypatch.setattr(packing, "LEAST", 0)
    fast = unmask.sample(made, num=3, seed=7).tokens
    monkeypatch.setattr(packing, "available", lambda weight: False)
    assert torch.equal(unmask.sample(made, num=3, seed=7).tokens, fast)


@needs_onednn
def test_left_to_right_packs_for_several_sequences_and_leaves_its_own_weights_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "LEAST", 0)
    plain = plain_network(adaln=False)
    made = Causal(blocks_of(plain.config, TransformerConfig))
    made.load_state_dict(plain.state_dict())
    before, calls, run = copy.deepcopy(made.eval().state_dict()), [], LeftToRightCached.run

    def noted(self: Any, ready: packing.Ready, *given: Any) -> Tensor:
        logits = run(self, ready, *given)
        calls.append((ready, logits))
        return logits

    monkeypatch.setattr(LeftToRightCached, "run", noted)
    canvas = torch.full((3, 12), made.mask_id)
    canvas[:, :4] = torch.arange(4)
    tokens = unmask.sample(made, canvas=canvas).tokens
    assert len({id(ready.network) for ready, _ in calls}) == 1  # packed once
    assert all(isinstance(ready.logits, packing.Packed) for ready, _ in calls)
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.state_dict().items())
    expected = made(tokens)[:, 4:]
    torch.testing.assert_close(torch.cat([logits for _, logits in calls], 1), expected, atol=1e-5, rtol=1e-5)
    del calls[:]
    assert torch.equal(unmask.sample(made, canvas=canvas[:1]).tokens, tokens[:1])  # a row alone gains nothing
    assert not any(isinstance(ready.logits, packing.Packed) for ready, _ in calls)


@needs_onednn
@pytest.mark.parametrize("adaln", [False, True])  # with it a run has a folded copy
def test_packing_keeps_what_a_network_has_beside_its_weights(monkeypatch: pytest.MonkeyPatch, adaln: bool) -> None:
    monkeypatch.setattr(packing, "LEAST", 0)
    plain = plain_network(adaln=adaln)
    made = Given(blocks_of(plain.config, TransformerConfig), first=23)
    made.load_state_dict(plain.state_dict())
    assert unmask.sample(made.eval(), num=3).tokens[:, 0].tolist() == [23] * 3
    run: Any = made.for_sampling()
    several = run.several().network
    assert run.causal_network.first == several.first == 23
    assert several.vocab_embed.embedding is run.causal_network.vocab_embed.embedding
