"""On an accelerator: the tokens of the CPU, nothing on two devices, and as few waits as were promised."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import unmask
from tests import fake_device
from tests.small_models import small, small_llama
from unmask import guides, plan, predict
from unmask.devices import download, upload
from unmask.evaluate.judge.causal import causal_nats
from unmask.evaluate.likelihood import conditional
from unmask.networks.causal import Causal
from unmask.networks.ddit import DDiT
from unmask.networks.insertion import InsertionDDiT
from unmask.networks.llama_blocks import BlockLlama
from unmask.networks.uniform import UniformDDiT
from unmask.samplers import decoding, published, remasking, uniform
from unmask.samplers.law import CoupledByLaw

pytestmark = pytest.mark.skipif(not fake_device.available(), reason="this torch cannot make a device of Python")

MASK, LENGTH = 11, 6
BEFORE, AFTER = 3, 4  # a run's own waits: checking the canvas, and reading the end


def network(kind: type = DDiT, **changes: Any) -> Any:
    """Learned positions, because without them every position of an empty canvas looks alike, and rankings tie."""
    sizes = {"width": 8, "layers": 2, "heads": 2, "length": LENGTH, "learned_positions": True}
    return small(kind, std=0.2, vocab_size=MASK, mask_id=MASK, **(sizes | changes))


def causal(**changes: Any) -> Any:
    return network(Causal, conditioning="none", adaln=False, **changes)


def no_ones(canvas: Tensor) -> Tensor:
    return -(canvas == 1).sum(1).double()


def ragged() -> Tensor:
    canvas = torch.full((3, LENGTH), MASK)
    canvas[1, :4], canvas[2, 2:4] = 3, 2
    return canvas


PLANS: dict[str, dict[str, Any]] = {
    "first hitting": {},
    "temperature": {"temperature": 0.7},
    "top k": {"top_k": 3},
    "top p": {"top_p": 0.8, "min_p": 0.01},
    "penalty": {"presence_penalty": 1.0, "logit_bias": {1: 2.0}},
    "inverse": {"draw": unmask.draw.inverse_cdf},
    "gumbel": {"draw": unmask.draw.gumbel(torch.float64)},
    "parallel": {"steps": 4},
    "ragged": {"canvas": ragged(), "num": None},
    "ragged steps": {"canvas": ragged(), "num": None, "steps": 3},
    "ancestral": {"plan": plan.ancestral, "steps": 5},
    "blocks": {"plan": plan.Blocks(3)},
    "extrapolate": {"plan": plan.ancestral, "steps": 5, "predict": predict.extrapolate},
    "correct": {"steps": 4, "predict": predict.correct},
    "allowed": {"allowed": {2: torch.arange(MASK) < 3}},
}
NETWORKS: dict[str, tuple[dict[str, Any], float]] = {
    "time": ({"conditioning": "time"}, 0),
    "ratio": ({"conditioning": "ratio"}, 0),
    "convolution": ({"convolution": 3}, 0),
    "self-conditioned": ({"self_conditioning": True}, 0),
    "visible": ({"attention": "visible"}, 1),  # how many are visible
    "block": ({"attention": "block", "block": 3}, 1),
    "adapters": ({"adapters": 2, "adaln": False}, 1),
    "any order": ({"attention": "order", "adaln": False}, 1),
}
OTHERS: dict[str, tuple[dict[str, Any], float]] = {
    "ahead": ({"ahead": 3}, 1),
    "confidence": ({"sampler": decoding.confidence(), "steps": 4}, 1),
    "margin": ({"sampler": decoding.margin(), "steps": 4}, 1),
    "entropy bounded": ({"sampler": decoding.entropy_bounded(0.01)}, 1),
    "blocks of llada": ({"sampler": decoding.llada(3), "steps": 4}, 1),
    "remasking": ({"sampler": remasking.remdm_confidence(0.5), "steps": 6}, 1),
    "law": ({"sampler": CoupledByLaw(), "steps": 20}, 1),
    "published": ({"sampler": published.Coupled(), "steps": 8}, 9),
    "stop": ({"stop": (2, 5)}, 1),
    "classifier": ({"guide": guides.classifier(no_ones)}, 14),
    "classifier as needed": ({"guide": guides.classifier(no_ones, at_once=4)}, 20),
    "particles": ({"guide": guides.classifier(no_ones), "particles": 2}, 14),
}


def compared(model: Any, options: dict[str, Any], *, float64: bool = True) -> float:
    """Sample on the CPU and on the device; the most waits between two calls, without those of the beginning and end."""
    options = {"num": 3, "seed": 3} | options
    steps: list[Any] = []
    expected = unmask.sample(model, **options, callback=steps.append)
    with fake_device.present(float64=float64) as waits:
        there = copy.deepcopy(model).to(fake_device.NAME)
        waits.clear()
        seen = []
        actual = unmask.sample(there, **options, callback=lambda step: seen.append((waits.total(), step)))
        total = waits.total()
        assert torch.equal(actual.tokens.cpu(), expected.tokens)
        assert actual.tokens.device.type == (fake_device.NAME if float64 else "cpu")
        for (_, step), before in zip(seen, steps, strict=True):
            check_step(step, before, actual.tokens.device)
    assert actual.calls == expected.calls > 1
    first, last = seen[0][0], seen[-1][0]
    assert total - last <= AFTER, waits
    per_call = (last - first) / (actual.calls - 1)
    assert first <= BEFORE + per_call + 1, waits
    return per_call


def check_step(step: Any, expected: Any, device: torch.device) -> None:
    """The rule: tokens and probabilities are on the canvas's device, everything else on the CPU."""
    for name, value in vars(step).items():
        if isinstance(value, Tensor):
            assert value.device == (device if name in ("tokens", "probabilities") else torch.device("cpu")), name
            torch.testing.assert_close(value.cpu(), getattr(expected, name), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("at_once", [None, 4])
@pytest.mark.parametrize("there", [fake_device.NAME, "cpu"])
def test_a_classifier_may_answer_on_another_device(there: str, at_once: int | None) -> None:
    model, options = network(), {"num": 2, "seed": 3}
    expected = unmask.sample(model, guide=guides.classifier(no_ones, at_once=at_once), **options).tokens
    with fake_device.present(float64=there == "cpu"):  # without float64 its canvases are on the CPU
        guide = guides.classifier(lambda canvas: no_ones(canvas).float().to(there), at_once=at_once)
        model = copy.deepcopy(model).to(fake_device.NAME)
        assert torch.equal(unmask.sample(model, guide=guide, **options).tokens.cpu(), expected)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_never_waits(name: str) -> None:
    assert compared(network(), PLANS[name]) == 0


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_waits_as_often_as_promised(name: str) -> None:
    changes, most = NETWORKS[name]
    assert compared(network(**changes), {}) <= most


@pytest.mark.parametrize("options", [{}, {"convolution": 3}])
def test_a_left_to_right_cache_waits_once_per_call(options: dict[str, Any]) -> None:
    assert compared(causal(**options), {}) <= 1


def test_the_cache_of_a_llama_in_blocks_waits_once_per_call() -> None:
    llama = small_llama(causal=False)
    model = BlockLlama(replace(llama.config, block=3)).eval()
    model.load_state_dict(llama.state_dict())
    assert compared(model, {"length": LENGTH}) <= 1


@pytest.mark.parametrize("kind", ["left to right", "block", "any order"])
def test_a_cache_that_looks_ahead_waits_for_its_size_and_for_the_tokens(kind: str) -> None:
    model = causal() if kind == "left to right" else network(**NETWORKS[kind][0])
    assert compared(model, {"ahead": 3}) <= 2


@pytest.mark.parametrize(
    "options", [{"sampler": uniform.Uniformised(0.5)}, {"steps": 4}, {"steps": 4, "sampler": uniform.psi(0.3)}]
)
def test_the_samplers_of_uniform_state_wait_once_per_call(options: dict[str, Any]) -> None:
    assert compared(network(UniformDDiT, conditioning="time"), {"num": 2, "length": LENGTH} | options) <= 1


def test_the_sampler_of_insertion_waits_once_per_call() -> None:
    assert compared(network(InsertionDDiT, insertion=True, learned_positions=False), {}) <= 1


@pytest.mark.parametrize("name", OTHERS)
def test_every_sampler_waits_as_often_as_promised(name: str) -> None:
    options, most = OTHERS[name]
    assert compared(network(), options) <= most


@pytest.mark.parametrize("name", ["ragged steps", "top p", "penalty", "extrapolate", "correct"])
def test_without_float64_the_cpu_draws(name: str) -> None:
    assert compared(network(conditioning="time"), PLANS[name], float64=False) == 1


@pytest.mark.parametrize("name", ["ahead", "margin", "remasking", "published", "stop", "classifier as needed"])
def test_without_float64_every_sampler_works(name: str) -> None:
    assert compared(network(), OTHERS[name][0], float64=False) == 1


def test_without_float64_a_cache_waits_for_its_size_and_for_the_logits() -> None:
    assert compared(network(attention="block", block=3), {}, float64=False) == 2
    assert compared(causal(), {}, float64=False) == 2


@pytest.fixture
def there() -> Iterator[Any]:
    with fake_device.present() as waits:
        yield waits


def test_a_device_that_mixes_or_waits_is_seen(there: Any) -> None:
    """The tests above can fail: the fake device refuses what CUDA refuses, and counts what waits."""
    x = torch.arange(4.0).to(fake_device.NAME)
    there.clear()
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.arange(4.0)
    assert not there
    x[torch.tensor([0, 1])]
    x[x > 1]
    float(x.sum())
    assert there.total() == 3


def test_copies_wait_once_on_the_way_back_and_never_on_the_way_there(there: Any) -> None:
    ids, p = (
        upload(torch.arange(3), torch.device("fake", 0)),
        upload(torch.rand(2, 2).double(), torch.device("fake", 0)),
    )
    assert not there
    back = download(ids, p)
    assert there.total() == 1
    assert [one.dtype for one in back] == [torch.int64, torch.float64]
    assert torch.equal(back[0], torch.arange(3))
    assert torch.equal(back[1], p.cpu())


class Wrapped:
    """A denoiser that is no module."""

    def __init__(self, network: Any, device: str) -> None:
        self.network, self.device = network, device
        self.vocab_size, self.mask_id = network.vocab_size, network.mask_id

    def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        return self.network(tokens, time, rows)  # type: ignore[no-any-return]


def test_a_denoiser_that_is_no_module_says_its_device(there: Any) -> None:
    model = network()
    expected = unmask.sample(model, num=2, length=LENGTH).tokens
    wrapped = Wrapped(copy.deepcopy(model).to(fake_device.NAME), fake_device.NAME)
    actual = unmask.sample(wrapped, num=2, length=LENGTH).tokens
    assert actual.device.type == fake_device.NAME
    assert torch.equal(actual.cpu(), expected)


def test_where_may_be_on_the_cpu_when_the_tokens_are_not(there: Any) -> None:
    model, x0 = network(), torch.arange(2 * LENGTH).view(2, LENGTH) % MASK
    where, n = torch.arange(LENGTH).expand(2, -1) > 1, torch.tensor([2, 3])
    remote = copy.deepcopy(model).to(fake_device.NAME)
    for by in (unmask.objective.nelbo_by_count, unmask.objective.nelbo_by_time):
        value = n if by is unmask.objective.nelbo_by_count else torch.tensor([0.3, 0.6])
        expected = by(model, x0, value, generator=torch.Generator().manual_seed(0), where=where)
        at = x0.to(fake_device.NAME)
        actual = by(remote, at, value.to(fake_device.NAME), generator=torch.Generator().manual_seed(0), where=where)
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("float64", [True, False])
@pytest.mark.parametrize(
    ("by", "kind", "more"),
    [
        ("count", DDiT, {}),
        ("time", DDiT, {}),
        ("order", DDiT, {}),
        ("order", DDiT, {"attention": "order", "adaln": False}),
        ("time", UniformDDiT, {}),
        ("time", InsertionDDiT, {"insertion": True, "learned_positions": False}),
    ],
)
def test_the_bound_is_that_of_the_cpu(by: str, kind: type, more: dict[str, Any], float64: bool) -> None:
    model, x0 = network(kind, **more), torch.arange(2 * LENGTH).view(2, LENGTH) % (MASK - 2)
    expected = unmask.nelbo(model, x0, by=by, seed=1).nats
    with fake_device.present(float64=float64):
        actual = unmask.nelbo(copy.deepcopy(model).to(fake_device.NAME), x0, by=by, seed=1).nats
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("float64", [True, False])
def test_conditional_bounds_and_judges_are_those_of_the_cpu(float64: bool) -> None:
    x, asked = torch.arange(3 * LENGTH).view(3, LENGTH) % MASK, torch.arange(LENGTH).expand(3, -1) > 3

    def values(masked: Any, left_to_right: Any, device: str) -> list[Tensor]:
        random = [torch.Generator().manual_seed(i) for i in range(3)]
        bound = conditional.conditional_nelbo(masked, x, asked, generators=random, passes=4).nats
        exact = conditional.left_to_right_nats(left_to_right, x, asked)
        judged = causal_nats(left_to_right.next_logits, [x[0], x[1, :4]], LENGTH, 1, 2, device)
        return [bound, *exact, conditional.is_greedy(masked, x, asked), *judged]

    models = network(), causal()
    expected = values(*models, "cpu")
    with fake_device.present(float64=float64):
        actual = values(*(copy.deepcopy(model).to(fake_device.NAME) for model in models), fake_device.NAME)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
