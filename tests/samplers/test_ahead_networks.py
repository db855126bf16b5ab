"""On networks, looking ahead gives the tokens of one call per token, except where two ids of a race nearly tie."""

from dataclasses import dataclass

import pytest
import torch

import unmask
from tests.small_models import TOKENIZERS, network
from unmask import sample
from unmask.processes import process_of
from unmask.protocol import LooksAhead, for_sampling

CLOSE = 1e-4
"""Differences of log race values that rounding may turn over: logits in float32, rows of another shape."""


class Margins:
    """The exponential race, writing down how far the winner of each row is ahead of the second."""

    def __init__(self):
        self.calls = []

    def __call__(self, logits, noise):
        values = logits.double() - noise.exponential(logits.shape[-1]).log()
        first, second = values.topk(2).values.unbind(1)
        self.calls.append(first - second)
        return values.argmax(-1)


def one_by_one(model, **options):
    """A Sample with one call per token, and for each sequence its positions in order with their margins."""
    race = Margins()
    made = sample(model, draw=race, **options)
    found = [[] for _ in made.tokens]
    for step, margins in zip(made.trace, race.calls, strict=True):
        for row, i in enumerate(step.sequences.tolist()):
            found[i].append((int(step.positions[row, 0]), float(margins[row])))
    return made, found


def unexplained(expected, order, tokens):
    """The sequences that first differ at a token whose race was not close, and how many differ at all."""
    wrong, differ = [], 0
    for i, steps in enumerate(order):
        first = next((margin for position, margin in steps if expected[i, position] != tokens[i, position]), None)
        differ += first is not None
        if first is not None and first > CLOSE:
            wrong.append((i, first))
    return wrong, differ


NETWORKS = {
    "kjv-anyorder": {"num": 24, "length": 40},
    "kjv-ar": {"num": 16, "length": 32},
    "kjv": {"num": 8, "length": 24},
}


@pytest.fixture(scope="module", params=NETWORKS)
def trained(request):
    model, options = unmask.load(request.param).denoiser, NETWORKS[request.param] | {"seed": 5}
    return model, options, *one_by_one(model, **options)


@pytest.mark.parametrize("window", [1, 3, 8, 32, "auto"])
def test_trained_models_give_the_same_tokens(trained, window):
    model, options, expected, order = trained
    made = sample(model, ahead=window, **options)
    wrong, differ = unexplained(expected.tokens, order, made.tokens)
    assert not wrong
    near = sum(min(margin for _, margin in steps) < CLOSE for steps in order)
    assert differ <= near
    assert bool((made.nfe <= expected.nfe).all())
    if window == 8 and not process_of(model).exact:
        assert float(made.nfe.double().mean()) < 0.45 * options["length"]


def test_the_draw_that_measures_margins_is_the_default_one(trained):
    model, options, expected, _ = trained
    assert torch.equal(sample(model, **options).tokens, expected.tokens)


SMALL = {
    "in any order": {"attention": "order", "layers": 2},
    "with neighbours": {"attention": "order", "neighbours": 2, "layers": 2},
    "left to right": {"causal": True, "layers": 2},
    "over what is visible": {"attention": "visible"},
    "in blocks": {"attention": "block", "block": 8, "layers": 2},
    "plain": {},
}


def stirred(name):
    """A small network whose blocks do something: its tokens depend on each other."""
    made, random = network(TOKENIZERS["bpe"], **SMALL[name]), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in made.parameters():
            weights.add_(0.3 * torch.randn(weights.shape, generator=random))
    return made


@pytest.mark.parametrize("name", SMALL)
def test_hundreds_of_sequences_of_small_networks(name):
    model = stirred(name)
    assert isinstance(for_sampling(model), LooksAhead) == (name not in ("plain", "over what is visible"))
    options = {"num": 300, "length": 24, "seed": 2}
    expected, order = one_by_one(model, **options)
    for window in (3, 16):
        made = sample(model, ahead=window, **options)
        wrong, _ = unexplained(expected.tokens, order, made.tokens)
        assert not wrong
        corrected = sum(int(step.corrected.sum()) for step in made.trace)
        assert corrected > 300, "the guesses of a network whose tokens depend on each other are often wrong"


@pytest.mark.parametrize("name", ["in any order", "plain"])
def test_prompts_infills_and_batches(name):
    model = stirred(name)
    x = sample(model, num=40, length=24, seed=1).tokens
    holes = torch.rand(40, 24, generator=torch.Generator().manual_seed(0)) < torch.linspace(0.05, 1, 40).unsqueeze(1)
    options = {"canvas": torch.where(holes, model.mask_id, x), "seed": 7}
    expected, order = one_by_one(model, **options)
    for window, batch in ((4, None), (9, 7), ("auto", 3)):
        made = sample(model, ahead=window, batch=batch, **options)
        wrong, _ = unexplained(expected.tokens, order, made.tokens)
        assert not wrong


@dataclass
class Plain:
    """A network without its cache, its logits moved by at most ``off``."""

    model: object
    off: float = 0.0

    @property
    def vocab_size(self):
        return self.model.vocab_size

    @property
    def mask_id(self):
        return self.model.mask_id

    def __call__(self, tokens, time=None, rows=None):
        logits = self.model(tokens, rows=rows)
        return logits + self.off * torch.sin(1e3 * logits) if self.off else logits


def test_a_network_that_is_a_little_off_differs_where_the_race_was_close_and_the_check_sees_it():
    """Logits moved by at most d turn a race over only where its margin is below 2 d."""
    model, options = network(TOKENIZERS["bpe"], attention="order"), {"num": 300, "length": 24, "seed": 3}
    expected, order = one_by_one(Plain(model), **options)
    wrong, differ = unexplained(expected.tokens, order, sample(Plain(model, 0.02), **options).tokens)
    assert differ >= 5 and wrong, "differences beyond rounding are not explained by it"
    assert all(margin < 0.04 + 1e-6 for _, margin in wrong)
