"""The loss of recipes/stories.py: the teacher's distribution in the place of one draw from it."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from recipes.corpora.stories import Teacher
from recipes.stories import Taught, sees_right
from torch import Tensor

from tests.small_models import small
from unmask import objective
from unmask.checkpoints import llama2c
from unmask.masking import Masking
from unmask.networks.ddit import DDiT
from unmask.networks.llama import Llama, LlamaConfig
from unmask.processes import process_of

V, LENGTH, BLOCK = 6, 8, 4
SIZES = {"vocab_size": V, "mask_id": V, "length": LENGTH, "width": 16, "layers": 2, "heads": 2}
CLOSE = {"atol": 1e-5, "rtol": 1e-5, "check_dtype": False}


@cache
def teacher() -> Teacher:
    torch.manual_seed(0)
    network = Llama(LlamaConfig(9, 9, LENGTH, 16, 2, 2, 2, 24, theta=10_000.0, eps=1e-5, tied=True, causal=True))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, 0.4)
    return Teacher(network.eval(), torch.tensor([7, 3, 8, 5, 4, llama2c.BOS]))


@cache
def network() -> DDiT:
    return small(DDiT, attention="block", block=BLOCK, adaln=False, adapters=3, start=V - 1, **SIZES)


def masking(masked: Tensor) -> Masking:
    """Every block a process of its own, of weight 1."""
    ones = torch.ones(len(masked), LENGTH // BLOCK, dtype=torch.float64)
    return Masking(masked, ones, ones)


def test_its_distributions_are_those_of_the_teacher() -> None:
    x0, nats = teacher().rows(0, "train", 0, 5, LENGTH)
    x0[0, 3] = teacher().eos  # a new story, which sees nothing of the one before
    p = Taught(teacher()).probabilities(x0).double()
    torch.testing.assert_close(p.sum(-1), torch.ones(5, LENGTH, dtype=torch.float64))
    own = -p.gather(2, x0.unsqueeze(-1)).squeeze(-1).log()
    torch.testing.assert_close(own[:, 1:], teacher().nats(x0)[:, 1:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(own[1:, 1:], nats[1:, 1:], atol=1e-5, rtol=1e-5)


def test_who_sees_something_to_the_right() -> None:
    masked = torch.tensor([[1, 0, 1, 1, 1, 1, 1, 0]]).bool()
    wanted = [[True, False, False, False, True, True, True, False]]
    assert sees_right(masked, BLOCK).tolist() == wanted


@pytest.mark.parametrize("hidden", [(7,), (6, 7), (4, 6, 7), (0, 1, 2, 3)])
def test_without_a_token_to_the_right_a_term_is_the_mean_over_the_token(hidden: tuple[int, ...]) -> None:
    x0, masked = story(), at(hidden)
    log_p = process_of(network()).logits(network(), x0, masking(masked)).log_softmax(-1)
    p = Taught(teacher()).probabilities(x0)[masked]
    means = [-(p[i] * log_p[i]).sum() for i in range(len(hidden))]
    if 0 in hidden:  # nothing comes before it: the first token is given to the teacher
        means[0] = -log_p[0, x0[0, 0]]
    if hidden[0] == 4:  # 5 is visible
        means[0] = -log_p[0, x0[0, 4]]
    torch.testing.assert_close(loss_of(x0, masked), torch.stack(means).sum().unsqueeze(0), **CLOSE)


def test_the_mean_over_the_token_is_that_of_the_bounds_own_term() -> None:
    x0, masked = story(), at((7,))
    every = x0.repeat(V, 1)
    every[:, 7] = torch.arange(V)
    terms = objective.cross_entropy(network(), every, masking(masked.repeat(V, 1)))[:, 1]
    p = Taught(teacher()).probabilities(x0)[0, 7]
    torch.testing.assert_close(loss_of(x0, masked), (p * terms).sum().unsqueeze(0), **CLOSE)


def test_with_tokens_to_the_right_it_is_the_bound() -> None:
    x0, masked = story(), at((1, 2, 5))
    bound = masking(masked).weighted(objective.cross_entropy(network(), x0, masking(masked)))
    torch.testing.assert_close(loss_of(x0, masked), bound, **CLOSE)


def story() -> Tensor:
    return teacher().rows(0, "train", 0, 1, LENGTH)[0]


def at(hidden: tuple[int, ...]) -> Tensor:
    masked = torch.zeros(1, LENGTH, dtype=torch.bool)
    masked[0, list(hidden)] = True
    return masked


def loss_of(x0: Tensor, masked: Tensor) -> Tensor:
    return Taught(teacher())(network(), x0, masking(masked))
