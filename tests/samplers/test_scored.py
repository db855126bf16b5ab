"""The probability of a given text: the chain rule, whatever the network and however many tokens a call."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.networks import test_causal, test_ddit
from tests.networks.test_ddit import V
from unmask import EnumeratedOracle, Linear, sample
from unmask.draw import Pick
from unmask.network import answer, inference
from unmask.noise import Streams
from unmask.protocol import LooksAhead, for_sampling
from unmask.sampler import Task, apply
from unmask.samplers.scored import WINDOW, Scored

TEXT = (3, 1, 4, 1, 0, 2)


def scores(model: Any, sampler: Scored) -> list[float]:
    """By the loop's own parts: ``sample`` does not accept a sampler for a left-to-right model."""
    network, task = for_sampling(model), Task(model.mask_id, Streams.of(0, 1), Pick(), Linear(), None)
    state = sampler.begin(torch.full((1, len(sampler.tokens)), model.mask_id), task)
    found, calls = [], 0
    while bool(((ask := sampler.ask(state)).rows >= 0).any()):
        with inference(network):
            step = sampler.fill(state, ask, answer(network, state.x, ask, [None]))
        apply(step, state.x, model.mask_id)
        found += step.probabilities[0].log().tolist()
        calls += 1
    assert state.x.tolist() == [list(sampler.tokens)] and calls == int(state.calls)
    return found


@pytest.mark.parametrize("window", [1, 2, 4, 64])
@pytest.mark.parametrize("kind", ["bidirectional", "order", "left-to-right"])
def test_each_token_given_those_before_it(kind: str, window: int) -> None:
    if kind == "left-to-right":
        made: Any = test_causal.network(vocab_size=V, mask_id=V)
    else:
        made = test_ddit.network(attention=kind)
    when = torch.arange(len(TEXT)).unsqueeze(0)
    truth = []
    for i, token in enumerate(TEXT):
        shown = torch.tensor([[*TEXT[:i], *[V] * (len(TEXT) - i)]])
        more = {"when": when} if kind == "order" else {}
        logits = made(shown, rows=torch.tensor([[i]]), **more).detach().double()
        truth.append(float(logits[0, 0].log_softmax(-1)[token]))
    assert scores(made, Scored(TEXT, window)) == pytest.approx(truth, abs=1e-5)


def test_of_a_known_joint_the_sum_is_its_logarithm() -> None:
    joint = torch.rand(2, 2, 2, generator=torch.Generator().manual_seed(0)).double()
    joint /= joint.sum()
    oracle = EnumeratedOracle(joint)
    for text in itertools.product((0, 1), repeat=3):
        assert sum(scores(oracle, Scored(text, 1))) == pytest.approx(float(joint[text].log()), abs=1e-9)


def test_networks_that_look_ahead_score_many_tokens_a_call() -> None:
    made = test_ddit.network(attention="order").for_sampling()
    assert isinstance(made, LooksAhead) and Scored.of(made, TEXT).window == WINDOW
    assert Scored.of(test_ddit.network(), TEXT).window == 1
    with pytest.raises(ValueError, match="empty canvas of 6 positions"):
        sample(test_ddit.network(), length=5, sampler=Scored(TEXT))
