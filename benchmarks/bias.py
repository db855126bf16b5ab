"""How far each sampler is from a joint that we know: python -m benchmarks.bias prints the tables of docs/bias.md.

Total variation over all outcomes of a short Markov chain, and -log p under the truth of a long hidden Markov model's
samples, for parallel decoding and its two second-order variants. Seeds are fixed and no clock is involved, so a row is
the same wherever it is computed (tests/test_tables.py computes some).
"""

from __future__ import annotations

import math

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


def variation(switch: float, steps: int) -> str:
    """A row of the first table."""
    table = torch.tensor([[1 - switch, switch], [switch, 1 - switch]], dtype=torch.float64)
    model = unmask.MarkovOracle(torch.tensor([0.5, 0.5], dtype=torch.float64), table)
    truth = model.log_likelihood(torch.cartesian_prod(*[torch.arange(2)] * SHORT)).exp()
    made = [
        unmask.sample(model, num=OUTCOMES, length=SHORT, plan=plan.parallel, steps=steps, predict=how, seed=1)
        for how in PREDICTORS.values()
    ]
    made.append(unmask.sample(model, num=OUTCOMES, length=SHORT, seed=1))
    return f"| {switch} | {steps} | {' | '.join(f'{distance(one.tokens, truth):.3f}' for one in made)} |"


def nats(model: unmask.HiddenMarkovOracle, tokens: torch.Tensor) -> torch.Tensor:
    return -model.log_likelihood(tokens) / tokens.shape[1]


def shown(values: torch.Tensor, form: str = ".4f", error: str = ".4f") -> str:
    return f"{float(values.mean()):{form}} ± {float(values.std()) / math.sqrt(len(values)):{error}}"


def judged(steps: int) -> str:
    """A row of the second table. One seed is one noise: sequence i of two predictors is a pair."""
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
    return f"| {steps} | {shown(first)} | {' | '.join(shown(other - first, '+.4f') for other in others)} |"


def main() -> None:
    print(f"| switches with | N | {' | '.join(PREDICTORS)} | exact |\n|---|---|---|---|---|---|")
    for switch in CHAIN:
        for steps in (1, 2, 4, 6, 8):
            print(variation(switch, steps), flush=True)
    model = hidden_markov()
    own = shown(nats(model, model.sample(4 * SEQUENCES, LONG, generator=torch.Generator().manual_seed(9))))
    print(f"\nThe truth's own samples: {own} nats per token.\n")
    names = list(PREDICTORS)
    print(f"| N of {LONG} | {names[0]} | {' | '.join(f'{name}, less that' for name in names[1:])} |\n|---|---|---|---|")
    for steps in STEPS:
        print(judged(steps), flush=True)


if __name__ == "__main__":
    main()
