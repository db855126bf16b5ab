import copy
import math

import pytest
import torch
from torch import nn

from unmask.networks.ddit import DDiT, preset
from unmask.training import optimizer
from unmask.training.ema import EMA, decay_at, default_decay
from unmask.training.optimizer import Muon, learning_rate, orthogonalized
from unmask.training.pace import StepPlan

OPTIONS = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}


def network() -> DDiT:
    torch.manual_seed(0)
    return DDiT(preset("tiny", 7, 12, convolution=3, width=16))


def test_the_rate_warms_up_linearly_and_stays() -> None:
    rates = [learning_rate(step, peak=3e-4, warmup=4, plan=StepPlan(100)) for step in range(1, 7)]
    assert rates == pytest.approx([0.75e-4, 1.5e-4, 2.25e-4, 3e-4, 3e-4, 3e-4])
    assert learning_rate(1, peak=1.0, warmup=0, plan=StepPlan(1)) == 1.0


def test_the_cosine_ends_at_zero() -> None:
    rates = [learning_rate(step, peak=2.0, warmup=10, plan=StepPlan(110), decay="cosine") for step in (10, 35, 60, 110)]
    assert rates == pytest.approx([2.0, 1 + math.cos(math.pi / 4), 1.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 8), (2, 8, 32)])
def test_newton_schulz_brings_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(shape)
    result = orthogonalized(matrices)
    assert result.shape == matrices.shape and result.dtype == torch.float32
    for matrix, original in zip(result, matrices, strict=True):
        u, _, v = torch.linalg.svd(original, full_matrices=False)
        inside = u.mT @ matrix @ v.mT  # diagonal, because the iteration changes singular values alone
        assert torch.allclose(inside, torch.diag(inside.diagonal()), atol=1e-4)
        assert float(inside.diagonal().min()) > 0.6 and float(inside.diagonal().max()) < 1.3


def test_muon_takes_the_matrices_of_the_blocks_and_adamw_the_rest() -> None:
    model = network()
    names = {parameter: name for name, parameter in model.named_parameters()}
    muon, adamw = optimizer.make(model, muon=True, device=torch.device("cpu"), **OPTIONS)
    stacked, single = ([names[p] for p in group["params"]] for group in muon.param_groups)
    assert stacked == ["blocks.0.attn_qkv.weight", "blocks.1.attn_qkv.weight"]
    kinds = {name.split(".", 2)[2] for name in single}
    assert kinds == {"attn_out.weight", "mlp.0.weight", "mlp.2.weight"}
    rest = [names[p] for group in adamw.param_groups for p in group["params"]]
    assert sorted([*stacked, *single, *rest]) == sorted(names.values())
    assert {"vocab_embed.embedding", "output_layer.linear.weight", "blocks.0.convolution.weight"} <= set(rest)


def test_muon_treats_stacked_matrices_one_by_one() -> None:
    torch.manual_seed(1)
    stacked = nn.Parameter(torch.randn(24, 8))
    apart = [nn.Parameter(part.clone()) for part in stacked.detach().chunk(3)]
    gradient = torch.randn(24, 8)
    one = Muon([{"params": [stacked], "parts": 3}], lr=0.1, weight_decay=0.1)
    other = Muon([{"params": apart}], lr=0.1, weight_decay=0.1)
    for made in (one, other):
        optimizer.start(made)
    for _ in range(2):
        stacked.grad = gradient.clone()
        for part, own in zip(apart, gradient.chunk(3), strict=True):
            part.grad = own.clone()
        one.step()
        other.step()
    assert torch.allclose(stacked, torch.cat(apart), atol=1e-6)


def test_muons_updates_have_the_size_of_adamws() -> None:
    torch.manual_seed(2)
    weight = nn.Parameter(torch.zeros(64, 256))
    made = Muon([{"params": [weight]}], lr=1.0)
    optimizer.start(made)
    weight.grad = torch.randn(64, 256)
    made.step()
    assert float(weight.detach().square().mean().sqrt()) == pytest.approx(0.2, rel=0.2)


def test_a_state_made_in_advance_is_the_one_torch_makes() -> None:
    ours, theirs = network(), network()
    (made,) = optimizer.make(ours, muon=False, device=torch.device("cpu"), **OPTIONS)
    optimizer.start(made)
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2, fused=True, **OPTIONS)
    made.param_groups[0]["lr"] = 1e-2
    for _ in range(3):
        for model, step in ((ours, made), (theirs, reference)):
            model(torch.arange(12).reshape(1, 12) % 7).square().mean().backward()
            step.step()
            step.zero_grad()
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(own, other)
        assert made.state[own].keys() == reference.state[other].keys()


def test_the_average_follows_its_recursion() -> None:
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    average = EMA({"p": parameter}, 0.5)
    expected = parameter.detach().clone()
    for step in range(1, 6):
        with torch.no_grad():
            parameter += step
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * parameter.detach()
    assert torch.allclose(average.shadow["p"], expected)


def test_averaged_weights_are_lent_and_given_back_bit_for_bit() -> None:
    model = network()
    average = EMA(dict(model.named_parameters()), 0.9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    average.update(1)
    own, shadow = copy.deepcopy(model.state_dict()), {name: t.clone() for name, t in average.shadow.items()}
    with pytest.raises(RuntimeError, match="inside"), average.applied():
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, shadow[name])
        raise RuntimeError("inside")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, own[name])
    for name, tensor in average.shadow.items():
        assert torch.equal(tensor, shadow[name])


def test_the_averages_length_suits_the_runs() -> None:
    assert [default_decay(steps) for steps in (1, 100, 10_000, 100_000, 1_000_000)] == [0.0, 0.9, 0.999, 0.9999, 0.9999]
    assert decay_at(1, 0.9999) == 2 / 11 and decay_at(10**6, 0.9999) == 0.9999
    with pytest.raises(ValueError, match="ema"):
        EMA({}, 1.0)
