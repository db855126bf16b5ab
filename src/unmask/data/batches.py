"""The global batch of a step: a pure function of (seed, step).

The sequences of a step, and all of its random numbers, depend only on the seed and the step's number. So a run resumes
from one integer, and each of W processes computes the same global batch and takes its share of it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask import noise as streams


def global_batch(num_sequences: int, batch_size: int, seed: int, step: int) -> Tensor:
    """int64 indices [batch_size] of step ``step``: epoch after epoch, each in its own order, nothing left out.

    An epoch may end inside a batch; within an epoch no sequence occurs twice.
    """
    _at_least(1, num_sequences=num_sequences, batch_size=batch_size)
    _at_least(0, step=step)
    # Python's integers do not overflow; step * batch_size in int64 might.
    epoch, position = divmod(int(step) * int(batch_size), int(num_sequences))
    parts = []
    missing = batch_size
    while missing:
        count = min(missing, num_sequences - position)
        parts.append(_order(int(seed), epoch, int(num_sequences))[position : position + count])
        missing, epoch, position = missing - count, epoch + 1, 0
    return torch.from_numpy(np.concatenate(parts))


def share(batch: Tensor, rank: int, world: int) -> Tensor:
    """The contiguous part of a global batch (indices, masks, times) that belongs to one of ``world`` processes.

    The shares in order of rank make up the batch, so gradients averaged over processes equal those of one process.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank={rank}: it must be in 0..world-1={world - 1}")
    if len(batch) % world:
        raise ValueError(f"a global batch of {len(batch)} cannot be shared equally by world={world} processes")
    size = len(batch) // world
    return batch[rank * size : (rank + 1) * size]


def generator(seed: int, step: int, purpose: str) -> torch.Generator:
    """The random numbers for one purpose ("mask", "time", "dropout", ...) in one step, independent of all others."""
    _at_least(0, step=step)
    return streams.generator(step, "generator", seed, purpose)


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, num: int) -> NDArray[np.int64]:
    """The indices sorted by their hashes, which are distinct: a uniform permutation.

    Not by numpy's generator, whose stream may change between versions. The order of an epoch is cached: 8 bytes per
    sequence, and about a second for ten million of them. Computing the permutation element by element would need no
    memory, but a millisecond in every step.
    """
    key = np.uint64(streams.word("order", seed, epoch))
    return np.argsort(_mix(key + np.arange(num, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit words that mixes all bits."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def _at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name}={value}: it must be at least {least}")
