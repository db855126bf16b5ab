"""One model, one N, two samplers: as published in float32, and exact. Entropy and perplexity.

N coupled float32 steps are simulated (``samplers.law``), with as many network calls as there are steps in which
something happens: so the demo takes seconds, even at N = 100,000.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask.evaluate.judge.diversity import sequence_entropy
from unmask.samplers.law import CoupledByLaw

VOCABULARY, STATES = 50_257, 6
Watch = Callable[[Tensor, int, Callable[[Callable[[unmask.Step], None]], unmask.Sample]], unmask.Sample]
EXPLANATION = (
    "A float32 Gumbel never exceeds 16.64, so in the published sampler a token of small probability loses to the "
    "mask. The text becomes more likely and less diverse, and its perplexity falls. Perplexity alone cannot tell "
    "this from a better model. unmask plans which position is unmasked when, and draws tokens in float64."
)


@dataclass(frozen=True)
class Row:
    """The result of one sampler."""

    sampler: str
    entropy: float  # nats, the mean over the sequences
    perplexity: float  # corpus perplexity under the judge


def of_the_box(model: unmask.Model, judge: unmask.Model, watch: Watch, *, num: int, steps: int) -> list[Row]:
    """The trained model at V = 4,096: with this vocabulary the error appears near N = 10,000."""

    def nats(tokens: Tensor) -> Tensor:
        return unmask.objective.left_to_right(judge.denoiser, tokens).double()

    return _both(model.denoiser, nats, watch, num, model.length or 0, steps)


def of_the_oracle(watch: Watch, *, num: int, length: int, steps: int) -> list[Row]:
    """A hidden Markov model whose topics follow Zipf's law over 50,257 tokens: its optimal masked network is exact."""
    model = oracle()
    return _both(model, lambda tokens: -model.log_likelihood(tokens), watch, num, length, steps)


def oracle(seed: int = 0) -> unmask.HiddenMarkovOracle:
    generator = torch.Generator().manual_seed(seed)
    zipf = 1 / torch.arange(1, VOCABULARY + 1, dtype=torch.float64)
    emission = torch.stack([zipf[torch.randperm(VOCABULARY, generator=generator)] for _ in range(STATES)])
    transition = torch.full((STATES, STATES), 0.2 / (STATES - 1), dtype=torch.float64).fill_diagonal_(0.8)
    initial = torch.full((STATES,), 1 / STATES, dtype=torch.float64)
    return unmask.HiddenMarkovOracle(initial, transition, emission / emission.sum(1, keepdim=True))


def table(rows: list[Row], steps: int) -> str:
    lines = [f"{'sampler, N = ' + format(steps, ','):<36}{'entropy':>9}{'perplexity':>12}"]
    lines += [f"{row.sampler:<36}{row.entropy:>9.2f}{row.perplexity:>12.1f}" for row in rows]
    return "\n".join(lines)


def _both(model: Any, nats: Callable[[Tensor], Tensor], watch: Watch, num: int, length: int, steps: int) -> list[Row]:
    canvas = torch.full((num, length), model.mask_id)
    rows = []
    for name, how in (
        ("as published: coupled, float32", {"sampler": CoupledByLaw()}),
        ("exact: planned, float64", {"plan": unmask.plan.ancestral}),
    ):

        def run(show: Callable[[unmask.Step], None], how: Any = how) -> unmask.Sample:
            return unmask.sample(model, canvas=canvas, steps=steps, seed=1, callback=show, **how)

        made = watch(canvas, model.mask_id, run)
        perplexity = math.exp(float(nats(made.tokens).sum()) / made.tokens.numel())
        rows.append(Row(name, float(sequence_entropy(made.tokens).mean()), perplexity))
    return rows
