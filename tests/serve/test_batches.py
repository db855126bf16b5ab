"""Sequence i of seed s is the same in any batch: a trained network with 4,096 ids, alone and through the server.

What a network answers moves in its last bits with the shape of its batch. The exponential race turns that into another
token only where the two best clocks ring within about 1e-5 of each other, so a changed sequence is a near-tie.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

import unmask
from tests.serve.served import Asked, running
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Served

SEED, BATCHES = 21, (1, 7, 64)


@cache
def kjv() -> unmask.Model:
    return unmask.load("kjv")


def alone(num: int, length: int, batch: int) -> Tensor:
    return kjv().sample(num, length=length, seed=SEED, batch=batch).tokens


def served(num: int, length: int, batch: int) -> Tensor:
    body = {"model": "kjv", "number": num, "length": length, "seed": SEED}
    with running(Limits(max_batch=batch, max_number=num)) as engine:
        return torch.tensor([done.tokens for done in Asked(engine, {"kjv": Served(kjv())}, body).answer()])


def different(num: int, length: int) -> dict[str, list[int]]:
    """Which sequences are not those of batch 1."""
    one = alone(num, length, 1)
    made = {f"batch {batch}": alone(num, length, batch) for batch in BATCHES[1:]}
    made |= {f"server, at most {batch} at a time": served(num, length, batch) for batch in BATCHES}
    return {how: (tokens != one).any(1).nonzero().flatten().tolist() for how, tokens in made.items()}


def test_a_short_sequence_is_the_same_in_any_batch() -> None:
    assert kjv().denoiser.vocab_size == 4096
    assert not any(different(24, 8).values())


@pytest.mark.slow
def test_two_hundred_sequences_are_the_same_in_any_batch() -> None:
    """Six runs of 6,400 tokens, about three minutes of one core; half of it is one sequence at a time, twice."""
    found = different(200, 32)
    print(found)
    assert not any(found.values()), found
