"""What each order costs in calls and in accuracy.

    python -m benchmarks.orders --output docs/results/orders.json      half a minute

Samples of a short Markov chain whose joint is known. Total variation over all its outcomes, and -log p under the truth,
which is the joint's entropy for exact samples and less for an order that seeks the likely. No clock is involved.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import unmask
from benchmarks.bias import distance, mean
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


def row(name: str, options: dict[str, Any]) -> dict[str, Any]:
    model = unmask.MarkovOracle(INITIAL, TRANSITION)
    sample = unmask.sample(model, num=ROWS, length=LENGTH, seed=1, **options)
    return {
        "order": name,
        "steps": options.get("steps"),
        "calls": float(sample.nfe.double().mean()),
        "draws": float(sample.ncs.double().mean()),
        "variation": distance(sample.tokens, truth()),
        "nats": mean(-model.log_likelihood(sample.tokens)),
    }


def truth() -> torch.Tensor:
    every = torch.cartesian_prod(*[torch.arange(2)] * LENGTH)
    return unmask.MarkovOracle(INITIAL, TRANSITION).log_likelihood(every).exp()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    output = parser.parse_args().output
    entropy = -float(torch.xlogy(truth(), truth()).sum())
    text = json.dumps({"entropy": entropy, "rows": [row(name, options) for name, options in runs()]}, indent=1)
    print(text)
    if output:
        output.write_text(text + "\n")


if __name__ == "__main__":
    main()
