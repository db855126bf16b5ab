"""What several test files share: known joints, and the tests of fit they are judged by."""

from __future__ import annotations

import sys
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from unmask.networks.oracles.enumerated import EnumeratedOracle, HiddenMarkovOracle
from unmask.noise import Noise, Streams

FALSE_ALARM = 1e-6
"""The rate at which a statistical test with a fixed seed was allowed to fail when that seed was first drawn."""


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def accelerate_launch(*arguments: str) -> list[str]:
    """The command line that runs ``python -m`` with these arguments on two processes."""
    launch = "-m accelerate.commands.launch --cpu --num_processes 2 --num_machines 1 --mixed_precision no"
    launch += " --dynamo_backend no --num_cpu_threads_per_process 1 -m"
    return [sys.executable, *launch.split(), *arguments]


def noise(seed: int, rows: int) -> Noise:
    """The noise of one position in each of several sequences."""
    return Streams.of(seed, rows).at("token", 1)[:, 0]


def joint(vocab: int, length: int, *, seed: int = 0, sharpness: float = 3.0) -> Tensor:
    """A joint distribution with strong dependence between all positions."""
    weights = torch.rand([vocab] * length, dtype=torch.float64, generator=generator(seed)) ** sharpness
    return weights / weights.sum()


def oracle(vocab: int = 3, length: int = 4, *, seed: int = 0, **options: int) -> EnumeratedOracle:
    return EnumeratedOracle(joint(vocab, length, seed=seed), **options)


def hidden_markov(vocab: int = 11, states: int = 4, **options: int) -> HiddenMarkovOracle:
    """A hidden Markov model with random tables, for sequences of any length."""
    g = generator(0)

    def table(*shape: int) -> Tensor:
        weights = torch.rand(shape, generator=g, dtype=torch.float64) ** 4
        return weights / weights.sum(-1, keepdim=True)

    return HiddenMarkovOracle(table(states), table(states, states), table(states, vocab), **options)


class Counting:
    """A denoiser that writes down how it is called: tokens, time and rows of every call."""

    def __init__(self, model: Any) -> None:
        self.model, self.vocab_size, self.mask_id = model, model.vocab_size, model.mask_id
        self.calls: list[tuple[Tensor, Tensor | None, Tensor | None]] = []

    def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        self.calls.append((tokens.clone(), time, rows))
        return self.model(tokens, time=time, rows=rows)


def codes(tokens: Tensor, vocab: int) -> Tensor:
    """Each sequence as one number, its index in the flattened joint."""
    place = vocab ** torch.arange(tokens.shape[1] - 1, -1, -1)
    return (tokens * place).sum(1)


def frequencies(tokens: Tensor, vocab: int) -> Tensor:
    return torch.bincount(codes(tokens, vocab), minlength=vocab ** tokens.shape[1])


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    """The p-value of the counts under the probabilities; cells expecting fewer than 5 are pooled."""
    expected = probabilities.flatten().double() * counts.sum()
    assert bool((counts.flatten()[expected == 0] == 0).all()), "an outcome of probability zero occurred"
    large = expected >= 5
    observed, wanted = counts.flatten()[large].double(), expected[large]
    rest = float(expected[~large].sum())
    if rest > 0:
        observed = torch.cat([observed, counts.flatten()[~large].sum().double().reshape(1)])
        wanted = torch.cat([wanted, torch.tensor([rest], dtype=torch.float64)])
    wanted = wanted * observed.sum() / wanted.sum()
    return float(stats.chisquare(observed.numpy(), wanted.numpy()).pvalue) if len(wanted) > 1 else 1.0


def same_law(first: Tensor, second: Tensor, vocab: int) -> float:
    """The p-value of a test of homogeneity of two samples; outcomes seen fewer than 10 times are pooled."""
    both = torch.stack([frequencies(tokens, vocab) for tokens in (first, second)])
    rare = both.sum(0) < 10
    both = torch.cat([both[:, ~rare], both[:, rare].sum(1, keepdim=True)], 1)
    both = both[:, both.sum(0) > 0]
    return float(stats.chi2_contingency(both.numpy()).pvalue) if both.shape[1] > 1 else 1.0


def total_variation(p: Tensor, q: Tensor) -> float:
    return float((p.flatten() - q.flatten()).abs().sum() / 2)


def random_orders(num: int, orders: int, length: int, *, generator: torch.Generator) -> Tensor:
    """Uniform orders of ``length`` positions, ``orders`` for each of ``num`` sequences: int64 [num, orders, length]."""
    return torch.rand(num, orders, length, dtype=torch.float64, generator=generator).argsort(2)
