"""One model, one N, two samplers: as published in float32, and exact. Calls, seconds, entropy, perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask.evaluate.judge.diversity import sequence_entropy
from unmask.samplers import published

VOCABULARY, STATES, STEPS = 50_257, 6, 1_000
EXPLANATION = (
    "A float32 Gumbel never exceeds 16.64, so in the published sampler a token of small probability loses to the\n"
    "mask: what is left is likelier text of less variety, which a low perplexity praises. Perplexity alone cannot\n"
    "tell it from a better model. unmask plans which position is unmasked when, and draws tokens in float64."
)


@dataclass(frozen=True)
class Row:
    """What one sampler did."""

    sampler: str
    calls: int
    seconds: float
    entropy: float  # nats, the mean over the sequences
    perplexity: float  # corpus perplexity under the judge
    judge: str


def of_the_box(model: unmask.Model, judge: unmask.Model, *, num: int = 2, length: int = 64) -> list[Row]:
    """The trained model at V = 4,096, where N = 1,000 is too few for the fault to show, but not for its cost."""

    def nats(tokens: Tensor) -> Tensor:
        return unmask.objective.left_to_right(judge.denoiser, tokens).double()

    name = f"Perplexity: under the left-to-right model {judge.name}, {num} samples of {length} tokens."
    return _both(model.denoiser, nats, name, num, length)


def of_the_oracle(*, num: int = 2, length: int = 16) -> list[Row]:
    """A hidden Markov model whose topics have Zipf's law over 50,257 tokens: its optimal masked network is exact."""
    model = oracle()
    name = f"Perplexity: under the model itself, {num} samples of {length} tokens."
    return _both(model, lambda tokens: -model.log_likelihood(tokens), name, num, length)


def oracle(seed: int = 0) -> unmask.HiddenMarkovOracle:
    generator = torch.Generator().manual_seed(seed)
    zipf = 1 / torch.arange(1, VOCABULARY + 1, dtype=torch.float64)
    emission = torch.stack([zipf[torch.randperm(VOCABULARY, generator=generator)] for _ in range(STATES)])
    transition = torch.full((STATES, STATES), 0.2 / (STATES - 1), dtype=torch.float64).fill_diagonal_(0.8)
    initial = torch.full((STATES,), 1 / STATES, dtype=torch.float64)
    return unmask.HiddenMarkovOracle(initial, transition, emission / emission.sum(1, keepdim=True))


def table(rows: list[Row]) -> str:
    lines = [f"{'sampler, N = ' + format(STEPS, ','):<36}{'calls':>7}{'seconds':>9}{'entropy':>9}{'perplexity':>12}"]
    lines += [
        f"{row.sampler:<36}{row.calls:>7}{row.seconds:>9.2f}{row.entropy:>9.2f}{row.perplexity:>12.1f}" for row in rows
    ]
    return "\n".join(lines)


def _both(model: Any, nats: Callable[[Tensor], Tensor], judge: str, num: int, length: int) -> list[Row]:
    runs: dict[str, Callable[[], unmask.Sample]] = {
        "as published: coupled, float32": lambda: unmask.sample(
            model, sampler=published.Coupled(), steps=STEPS, num=num, length=length, seed=1
        ),
        "exact: planned, float64": lambda: unmask.sample(
            model, plan=unmask.plan.ancestral, steps=STEPS, num=num, length=length, seed=1
        ),
    }
    rows = []
    for name, run in runs.items():
        made = run()
        perplexity = math.exp(float(nats(made.tokens).sum()) / made.tokens.numel())
        entropy = float(sequence_entropy(made.tokens).mean())
        rows.append(Row(name, made.calls, made.seconds, entropy, perplexity, judge))
    return rows
