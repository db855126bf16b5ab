"""A joint distribution of three tokens, its optimal uniform-state network, and what the tests of both compute."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask.networks.oracles.uniform import UniformOracle
from unmask.processes.uniform import Uniform

V, L = 3, 3
ROWS = torch.tensor(list(itertools.product(range(V), repeat=L)))  # every sequence, in the order of the joint's entries


def joint() -> Tensor:
    """p(x) of every sequence, far from independent."""
    weights = torch.rand(V**L, generator=torch.Generator().manual_seed(1), dtype=torch.float64).pow(3)
    return weights / weights.sum()


def oracle() -> UniformOracle:
    return UniformOracle(unmask.EnumeratedOracle(joint().view([V] * L)))


class AtOneTime:
    """A network that does not read the time: another one's at t = 0.3."""

    vocab_size = mask_id = V

    def __init__(self, network: Any, process: Uniform | None = None) -> None:
        self.network, self.process = network, process or Uniform(reads_time=False)

    def __call__(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.network(tokens, torch.full((len(tokens),), 0.3, dtype=torch.float64), rows)


def frequencies(tokens: Tensor) -> Tensor:
    """How often each sequence occurs."""
    index = (tokens * V ** torch.arange(L - 1, -1, -1)).sum(1)
    return torch.bincount(index, minlength=V**L).double()


def chi_square(tokens: Tensor, law: Tensor) -> float:
    expected = len(tokens) * law
    return float(((frequencies(tokens) - expected) ** 2 / expected).sum())
