"""Texts on an accelerator: a proposal's Steps are partly on its device."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests import fake_device
from tests.small_models import TOKENIZERS, network
from unmask import Model

pytestmark = pytest.mark.skipif(not fake_device.available(), reason="this torch cannot make a device of Python")


def filled(model: Model, proposal: Model) -> Tensor:
    return model.infill("God ____ the", proposal=proposal, seed=3, particles=3).tokens.cpu()


def test_a_proposal_on_a_device_fills_as_one_on_the_cpu() -> None:
    tokenizer = TOKENIZERS["bytes"]
    model, proposal = (Model(network(tokenizer, causal=causal), tokenizer, name="a") for causal in (True, False))
    expected = filled(model, proposal)
    with fake_device.present():
        there = [replace(one, denoiser=copy.deepcopy(one.denoiser).to(fake_device.NAME)) for one in (model, proposal)]
        assert torch.equal(filled(*there), expected)
        assert torch.equal(filled(model, there[1]), expected)
