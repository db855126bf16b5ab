"""The recipe of stories in any order: it starts as its teacher, which then teaches the sequences from left to right."""

from __future__ import annotations

import torch
from recipes.stories_anyorder import SPREAD, Taught, taught_by

from tests.helpers import generator
from tests.recipes.test_stories_loss import LENGTH, teacher
from tests.small_models import scrambled
from unmask import objective
from unmask.masking import Masking, all_tokens

CLOSE = {"atol": 1e-4, "rtol": 1e-4, "check_dtype": False}


def masking(when: torch.Tensor) -> Masking:
    return all_tokens(when, (torch.arange(LENGTH) > 0).expand_as(when))


def test_it_starts_as_its_teacher() -> None:
    x0, nats = teacher().rows(0, "train", 0, 5, LENGTH)
    x0, nats = x0[~(x0[:, 1:] == teacher().eos).any(1)], nats[~(x0[:, 1:] == teacher().eos).any(1)]
    network = taught_by(teacher()).eval()
    left_to_right = torch.arange(LENGTH).expand_as(x0)
    assert len(x0)
    torch.testing.assert_close(objective.along_order(network, x0, left_to_right), nats.sum(1), **CLOSE)


def test_its_distributions_are_those_of_the_teacher() -> None:
    x0, _ = teacher().rows(0, "train", 0, 5, LENGTH)
    x0[0, 3] = teacher().eos  # a new story, which sees nothing of the one before
    p = Taught(teacher()).probabilities(x0).double()
    torch.testing.assert_close(p.sum(-1), torch.ones(5, LENGTH - 1, dtype=torch.float64))
    own = -p.gather(2, x0[:, 1:, None]).squeeze(-1).log()
    torch.testing.assert_close(own, teacher().nats(x0)[:, 1:], **CLOSE)


def test_a_share_is_taught_from_left_to_right_and_the_rest_along_its_order() -> None:
    network, random = scrambled(taught_by(teacher()).eval()), generator(3)
    x0, when = teacher().rows(0, "train", 0, 200, LENGTH)[0], torch.rand(200, LENGTH, generator=random).double()
    loss = Taught(teacher(), share=0.25)
    losses = loss(network, x0, masking(when))
    taught = (when[:, 1] * SPREAD).frac() < 0.25
    assert 20 < int(taught.sum()) < 90
    random_order = when[~taught].index_fill(1, torch.tensor([0]), -1).argsort(1)
    torch.testing.assert_close(losses[~taught], objective.along_order(network, x0[~taught], random_order), **CLOSE)
    log_p = network.logits(network.chain(x0[taught], torch.arange(LENGTH))[:, 1:]).log_softmax(-1)
    torch.testing.assert_close(losses[taught], -(loss.probabilities(x0[taught]) * log_p).sum((1, 2)), **CLOSE)
