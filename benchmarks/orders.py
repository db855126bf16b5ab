"""What each order costs in calls and in accuracy: python -m benchmarks.orders prints docs/orders.md's table

Samples of a short Markov chain whose joint is known. Total variation over all its outcomes, and -log p under the truth,
which is the joint's entropy for exact samples and less for an order that seeks the likely. No clock is involved.
"""

from __future__ import annotations

from typing import Any

import torch

import unmask
from benchmarks.bias import distance, shown
from unmask import plan
from unmask.samplers import decoding, remasking

ROWS, LENGTH = 10_000, 6
INITIAL = torch.tensor([0.7, 0.3], dtype=torch.float64)
TRANSITION = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)

Run = tuple[str, dict[str, Any]]


def runs() -> list[Run]:
    """The name of each order and what it passes to ``unmask.sample``."""
    found: list[Run] = [("first-hitting (Alg. 1)", {})]
    found += [("parallel (Alg. 2)", {"plan": plan.parallel, "steps": steps}) for steps in (3, 2)]
    found += [("plan.left_to_right", {"plan": plan.left_to_right, "steps": steps}) for steps in (6, 3)]
    ranked = {
        "confidence(), MaskGIT": decoding.confidence(),
        "llada()": decoding.llada(),
        "llada(2), blocks of 2": decoding.llada(2),
        "margin()": decoding.margin(),
        "entropy()": decoding.entropy(),
        "dream()": decoding.dream(),
    }
    found += [(name, {"sampler": how, "steps": steps}) for name, how in ranked.items() for steps in (6, 3)]
    found += [(f"entropy_bounded({gamma})", {"sampler": decoding.entropy_bounded(gamma)}) for gamma in (0.1, 0.4, 0.8)]
    again = {
        "remdm_cap(0.0), ancestral": remasking.remdm_cap(0.0),
        "remdm_cap(0.1)": remasking.remdm_cap(0.1),
        "remdm_rescale(0.2)": remasking.remdm_rescale(0.2),
        "remdm_confidence()": remasking.remdm_confidence(),
    }
    return found + [(name, {"sampler": how, "steps": steps}) for name, how in again.items() for steps in (6, 24)]


def row(name: str, options: dict[str, Any]) -> str:
    """A row of the table."""
    model = unmask.MarkovOracle(INITIAL, TRANSITION)
    made = unmask.sample(model, num=ROWS, length=LENGTH, seed=1, **options)
    nats = -model.log_likelihood(made.tokens)
    calls, drawn = float(made.nfe.double().mean()), float(made.ncs.double().mean())
    cells = [name, str(options.get("steps", "-")), f"{calls:.2f}", f"{drawn:.1f}"]
    return f"| {' | '.join(cells)} | {distance(made.tokens, truth()):.3f} | {shown(nats, '.3f', '.3f')} |"


def truth() -> torch.Tensor:
    every = torch.cartesian_prod(*[torch.arange(2)] * LENGTH)
    return unmask.MarkovOracle(INITIAL, TRANSITION).log_likelihood(every).exp()


def main() -> None:
    print(f"The joint has {-float(torch.xlogy(truth(), truth()).sum()):.3f} nats.\n")
    print("| order | steps | calls | rows drawn | total variation | -log p, nats |\n|---|---|---|---|---|---|")
    for name, options in runs():
        print(row(name, options), flush=True)


if __name__ == "__main__":
    main()
