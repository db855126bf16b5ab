"""How far each sampler is from a joint that we know: python -m benchmarks.bias > docs/bias_table.md

Total variation over all outcomes of a short Markov chain, and -log p under the truth of a long hidden Markov model's
samples, for parallel decoding and its two second-order variants. No clock is involved.
"""

from __future__ import annotations

import math

import torch

import unmask
from unmask import plan, predict

PREDICTORS = {"first order": predict.first_order, "extrapolate": predict.extrapolate, "correct": predict.correct}


def chain(switch: float) -> unmask.MarkovOracle:
    table = torch.tensor([[1 - switch, switch], [switch, 1 - switch]], dtype=torch.float64)
    return unmask.MarkovOracle(torch.tensor([0.5, 0.5], dtype=torch.float64), table)


def hidden_markov(states: int = 8, vocab: int = 40) -> unmask.HiddenMarkovOracle:
    g = torch.Generator().manual_seed(0)

    def table(*shape: int) -> torch.Tensor:
        weights = torch.rand(shape, generator=g, dtype=torch.float64) ** 8
        return weights / weights.sum(-1, keepdim=True)

    return unmask.HiddenMarkovOracle(table(states), table(states, states), table(states, vocab))


def distance(tokens: torch.Tensor, truth: torch.Tensor) -> float:
    place = 2 ** torch.arange(tokens.shape[1] - 1, -1, -1)
    counts = torch.bincount((tokens * place).sum(1), minlength=len(truth))
    return float((counts / len(tokens) - truth).abs().sum() / 2)


def total_variation_table(rows: int = 40_000, length: int = 8) -> None:
    print(f"| joint | N | {' | '.join(PREDICTORS)} | exact, {rows:,} samples |")
    print("|---|---|" + "---|" * (len(PREDICTORS) + 1))
    every = torch.cartesian_prod(*[torch.arange(2)] * length)
    for switch in (0.3, 0.1):
        model = chain(switch)
        truth = model.log_likelihood(every).exp()
        floor = distance(unmask.sample(model, num=rows, length=length, seed=1).tokens, truth)
        for steps in (1, 2, 4, 6, 8):
            cells = []
            for how in PREDICTORS.values():
                options = {"plan": plan.parallel, "steps": steps, "predict": how, "seed": 1}
                tokens = unmask.sample(model, num=rows, length=length, **options).tokens
                cells.append(f"{distance(tokens, truth):.3f}")
            print(f"| chain, switches with {switch} | {steps} | {' | '.join(cells)} | {floor:.3f} |")


def judged_table(rows: int = 2_000, length: int = 64) -> None:
    model = hidden_markov()
    exact = model.sample(4 * rows, length, generator=torch.Generator().manual_seed(9))
    nats = -model.log_likelihood(exact) / length
    error = float(nats.std()) / math.sqrt(len(nats))
    print(f"\n-log p per token under the truth; its own samples have {float(nats.mean()):.4f} ± {error:.4f} nats.\n")
    print(f"| N of {length} | {' | '.join(PREDICTORS)} | ± |")
    print("|---|" + "---|" * (len(PREDICTORS) + 1))
    for steps in (4, 8, 16, 32, 48, 64):
        options = {"num": rows, "length": length, "plan": plan.parallel, "steps": steps, "seed": 2}
        found = [
            -model.log_likelihood(unmask.sample(model, predict=how, **options).tokens) / length
            for how in PREDICTORS.values()
        ]
        # The same seed is the same noise: sequence i of two predictors is a pair, and so are their differences.
        gaps = [nats - found[0] for nats in found]
        cells = [f"{float(found[0].mean()):.4f}"]
        cells += [
            f"{float(nats.mean()):.4f} ({float(gap.mean()):+.4f} ± {float(gap.std()) / math.sqrt(rows):.4f})"
            for nats, gap in zip(found[1:], gaps[1:], strict=True)
        ]
        error = max(float(nats.std()) for nats in found) / math.sqrt(rows)
        print(f"| {steps} | {' | '.join(cells)} | {error:.4f} |", flush=True)


if __name__ == "__main__":
    total_variation_table()
    judged_table()
