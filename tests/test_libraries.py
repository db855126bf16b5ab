"""Where this project keeps code of its own beside a library's: what the library does not do."""

import asyncio
import pickle

import httpx
import pytest
import torch
from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
from torch import Tensor, nn

from tests.checkpoints import checkpoints
from tests.checkpoints.test_contents import lightning
from unmask.checkpoints.contents import look
from unmask.training import optimizer
from unmask.training.optimizer import Muon

needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch before 2.9 has no Muon")


def moved(make, start, gradients):
    """How far an optimiser moves a matrix."""
    weight = nn.Parameter(start.clone())
    made = make([weight])
    for gradient in gradients:
        weight.grad = gradient.clone()
        made.step()
    return weight.detach() - start


def ours(parameters, parts=1):
    made = Muon([{"params": parameters, "parts": parts}], lr=0.1, weight_decay=0.1)
    optimizer.start(made)
    return made


def theirs(parameters):
    return torch.optim.Muon(parameters, lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")


@needs_muon
@pytest.mark.parametrize("shape", [(16, 24), (24, 16)])
def test_torchs_muon_takes_our_steps_but_for_bfloat16(shape, monkeypatch):
    start, *gradients = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    expected = moved(ours, start, gradients)
    off = (moved(theirs, start, gradients) - expected).norm() / expected.norm()
    assert 1e-3 < off < 0.1  # it iterates in bfloat16, whatever the weights are
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)
    torch.testing.assert_close(moved(theirs, start, gradients), expected, rtol=1e-4, atol=1e-5)


@needs_muon
def test_torchs_muon_takes_queries_keys_and_values_for_one_matrix(monkeypatch):
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)
    start, gradient = torch.randn(2, 24, 8, generator=torch.Generator().manual_seed(1))
    stacked = moved(lambda parameters: ours(parameters, parts=3), start, [gradient])
    apart = [moved(theirs, *pair) for pair in zip(start.chunk(3), [[g] for g in gradient.chunk(3)], strict=True)]
    torch.testing.assert_close(torch.cat(apart), stacked, rtol=1e-4, atol=1e-5)
    assert (moved(theirs, start, [gradient]) - stacked).norm() > 0.1 * stacked.norm()


def test_starlettes_host_check_refuses_ipv6_by_its_address_and_answers_in_plain_text():
    app = Starlette()
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "::1"])

    async def asked(host):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.get("/", headers={"Host": host})

    assert asyncio.run(asked("localhost:80")).status_code == 404  # let through to the application
    refused = asyncio.run(asked("[::1]:80"))
    assert refused.status_code == 400 and refused.text == "Invalid host header"


def test_weights_only_refuses_lightnings_checkpoints(tmp_path, monkeypatch):
    """Their settings are OmegaConf's and their tokenizer transformers'. Both need not be installed here."""
    weights = checkpoints.state(20)
    path = lightning(tmp_path / "last.ckpt", weights, {}, monkeypatch)
    with pytest.raises(pickle.UnpicklingError, match="omegaconf"):
        torch.load(path, weights_only=True)
    assert torch.equal(look(path).read()["backbone.blocks.1.norm2.weight"], weights["blocks.1.norm2.weight"])
