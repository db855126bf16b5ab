"""How far each sampler is from a joint that we know.

    python -m benchmarks.bias --output docs/results/bias.json      two minutes

Total variation over all outcomes of a short Markov chain, and -log p under the truth of a long hidden Markov model's
samples, for parallel decoding and its two second-order variants. Seeds are fixed and no clock is involved, so a row is
the same wherever it is computed (tests/benchmarks/test_orders.py computes some).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch

import unmask
from unmask import plan, predict

PREDICTORS = {
    "first order (Alg. 2)": predict.first_order,
    "extrapolate (Alg. 3)": predict.extrapolate,
    "correct (Alg. 4)": predict.correct,
}
CHAIN, OUTCOMES, SHORT = (0.3, 0.1), 40_000, 8
STEPS, SEQUENCES, LONG = (4, 8, 16, 32, 48, 64), 6_000, 64


def hidden_markov(states: int = 8, vocab: int = 40) -> unmask.HiddenMarkovOracle:
    g = torch.Generator().manual_seed(0)

    def table(*shape: int) -> torch.Tensor:
        weights = torch.rand(shape, generator=g, dtype=torch.float64) ** 8
        return weights / weights.sum(-1, keepdim=True)

    return unmask.HiddenMarkovOracle(table(states), table(states, states), table(states, vocab))


def distance(tokens: torch.Tensor, truth: torch.Tensor) -> float:
    """Total variation between the frequencies of binary sequences and their law."""
    place = 2 ** torch.arange(tokens.shape[1] - 1, -1, -1)
    counts = torch.bincount((tokens * place).sum(1), minlength=len(truth))
    return float((counts / len(tokens) - truth).abs().sum() / 2)


def variation(switch: float, steps: int) -> dict[str, Any]:
    """The distances of one chain at one number of steps, and that of exact samples."""
    table = torch.tensor([[1 - switch, switch], [switch, 1 - switch]], dtype=torch.float64)
    model = unmask.MarkovOracle(torch.tensor([0.5, 0.5], dtype=torch.float64), table)
    truth = model.log_likelihood(torch.cartesian_prod(*[torch.arange(2)] * SHORT)).exp()
    row: dict[str, Any] = {"switch": switch, "steps": steps}
    for name, how in PREDICTORS.items():
        sample = unmask.sample(model, num=OUTCOMES, length=SHORT, plan=plan.parallel, steps=steps, predict=how, seed=1)
        row[name] = distance(sample.tokens, truth)
    return row | {"exact": distance(unmask.sample(model, num=OUTCOMES, length=SHORT, seed=1).tokens, truth)}


def nats(model: unmask.HiddenMarkovOracle, tokens: torch.Tensor) -> torch.Tensor:
    return -model.log_likelihood(tokens) / tokens.shape[1]


def mean(values: torch.Tensor) -> list[float]:
    """The mean and its standard error."""
    return [float(values.mean()), float(values.std()) / math.sqrt(len(values))]


def judged(steps: int) -> dict[str, Any]:
    """Nats per token by first order, and what the others have more. One seed is one noise: samples are pairs."""
    model = hidden_markov()
    first, *others = (
        nats(
            model,
            unmask.sample(
                model, num=SEQUENCES, length=LONG, plan=plan.parallel, steps=steps, predict=how, seed=2
            ).tokens,
        )
        for how in PREDICTORS.values()
    )
    name, *names = PREDICTORS
    pairs = zip(names, others, strict=True)
    return {"steps": steps, name: mean(first)} | {name: mean(other - first) for name, other in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    output = parser.parse_args().output
    model = hidden_markov()
    truth = nats(model, model.sample(4 * SEQUENCES, LONG, generator=torch.Generator().manual_seed(9)))
    result = {
        "variation": [variation(switch, steps) for switch in CHAIN for steps in (1, 2, 4, 6, 8)],
        "truth": mean(truth),
        "judged": [judged(steps) for steps in STEPS],
    }
    text = json.dumps(result, indent=1)
    print(text)
    if output:
        output.write_text(text + "\n")


if __name__ == "__main__":
    main()
