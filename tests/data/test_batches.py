"""The global batch as a pure function of (seed, step)."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from unmask.data.batches import generator, global_batch, share


def epoch_order(seed: int, epoch: int, num: int) -> torch.Tensor:
    """The whole order of one epoch: a batch as large as it."""
    return global_batch(num, num, seed, epoch)


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 50), st.integers(0, 2**63))
def test_an_epoch_is_a_permutation(num: int, epoch: int, seed: int) -> None:
    assert sorted(epoch_order(seed, epoch, num).tolist()) == list(range(num))


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 100), st.integers(0, 9))
def test_batches_in_a_row_are_epochs_in_a_row(num: int, batch: int, seed: int) -> None:
    steps = 3 * num // batch + 2
    seen = torch.cat([global_batch(num, batch, seed, step) for step in range(steps)])
    epochs = torch.cat([epoch_order(seed, epoch, num) for epoch in range(len(seen) // num + 1)])
    assert torch.equal(seen, epochs[: len(seen)])


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(epoch_order(seed, epoch, 50).tolist()) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


@pytest.mark.parametrize("num", [2, 3, 4, 5])
def test_orders_are_uniform_over_permutations(num: int) -> None:
    """Chi-square over all num! orders of 12,000 epochs, false alarm 1e-6 each."""
    counts = Counter(tuple(epoch_order(11, epoch, num).tolist()) for epoch in range(12_000))
    assert chisquare([counts[p] for p in permutations(range(num))]).pvalue > 1e-6


def test_places_are_uniform_and_neighbours_independent() -> None:
    """Chi-square of the first index and the first two indices' quarters, 20,000 orders of 1,000; false alarm 1e-6."""
    first, second = np.array([global_batch(1000, 2, epoch, 0).tolist() for epoch in range(20_000)]).T
    assert chisquare(np.bincount(first // 10, minlength=100)).pvalue > 1e-6
    joint = np.bincount(4 * (first // 250) + second // 250, minlength=16)
    same = np.arange(16) % 5 == 0
    expected = np.where(same, 250 * 249, 250 * 250) / (1000 * 999) * 20_000
    assert chisquare(joint, expected).pvalue > 1e-6


def test_a_caller_cannot_spoil_the_order() -> None:
    before = epoch_order(0, 0, 20)
    epoch_order(0, 0, 20).zero_()
    global_batch(20, 5, 0, 0).zero_()
    assert torch.equal(epoch_order(0, 0, 20), before)


def test_the_order_is_the_same_for_ever() -> None:
    """Pinned: a change would send every resumed run through other data."""
    assert global_batch(1000, 8, 0, 0).tolist() == PINNED_BATCH
    assert torch.randint(1000, (4,), generator=generator(0, 5, "mask")).tolist() == PINNED_DRAWS


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_shares_in_order_of_rank_are_the_batch(world: int) -> None:
    batch = global_batch(100, 16, 1, 3)
    assert torch.equal(torch.cat([share(batch, rank, world) for rank in range(world)]), batch)
    masks = torch.rand(16, 5, generator=generator(1, 3, "mask"))
    assert torch.equal(torch.cat([share(masks, rank, world) for rank in range(world)]), masks)


def test_purposes_steps_and_seeds_have_their_own_numbers() -> None:
    draws = {
        tuple(torch.rand(4, generator=generator(seed, step, purpose)).tolist())
        for seed in range(5)
        for step in range(200)
        for purpose in ("mask", "time", "dropout")
    }
    assert len(draws) == 5 * 200 * 3


def test_no_two_steps_share_the_32_bits_that_torch_looks_at() -> None:
    seeds = {generator(0, step, "mask").initial_seed() & 0xFFFFFFFF for step in range(100_000)}
    assert len(seeds) == 100_000, "a hash would lose about one"


def test_consecutive_steps_are_independent() -> None:
    """The first uniforms of 20,000 consecutive steps: chi-square on pairs, false alarm 1e-6."""
    u = torch.cat([torch.rand(1, generator=generator(0, step, "time")) for step in range(20_000)]).numpy()
    pairs = (u[:-1:2] * 8).astype(int) * 8 + (u[1::2] * 8).astype(int)
    assert chisquare(np.bincount(pairs, minlength=64)).pvalue > 1e-6


def test_numpy_integers_mean_the_same() -> None:
    assert torch.equal(global_batch(50, 7, np.int64(3), 2), global_batch(50, 7, 3, 2))
    assert generator(np.int64(3), np.int64(2), "mask").initial_seed() == generator(3, 2, "mask").initial_seed()


def test_wrong_arguments_are_named() -> None:
    for call, says in (
        (lambda: global_batch(0, 1, 0, 0), "num_sequences=0"),
        (lambda: global_batch(1, 0, 0, 0), "batch_size=0"),
        (lambda: global_batch(1, 1, 0, -1), "step=-1"),
        (lambda: generator(0, -1, "mask"), "step=-1"),
        (lambda: share(torch.arange(4), 2, 2), "rank=2"),
        (lambda: share(torch.arange(5), 0, 2), "global batch of 5"),
    ):
        with pytest.raises(ValueError, match=says):
            call()


PINNED_BATCH = [619, 34, 934, 328, 92, 371, 823, 558]
PINNED_DRAWS = [469, 981, 156, 184]
