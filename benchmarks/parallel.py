"""What decoding several tokens per call costs a model, from its entropy profile on held-out data.

    python -m benchmarks.parallel kjv --output docs/results/profile-kjv.json     a quarter of an hour on one core

Their errors are the spread of the paired losses over the sequences. "optimal" sizes are chosen for the profile that
they are judged by, noise included, so that their loss is too small on average. "chosen on others" are the best sizes
for seven eighths of the sequences, judged on the rest: too large on average. The best sizes are between the two.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask import theory
from unmask.evaluate.data import found
from unmask.evaluate.likelihood.profile import EntropyProfile, entropy_by_count

STEPS = (4, 8, 16, 32, 64, 128)
FOLDS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="kjv")
    parser.add_argument("--data", help="the corpus that the model was trained on by default")
    parser.add_argument("--sequences", type=int, help="all held-out ones by default")
    parser.add_argument("--orders", type=int, default=1, help="for each sequence, with one pass for every count")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    result = measured(chosen)
    if chosen.output:
        chosen.output.write_text(json.dumps(result) + "\n")
    print(table(result["costs"]))


def measured(chosen: argparse.Namespace) -> dict[str, Any]:
    model = unmask.load(chosen.model)
    data = chosen.data or chosen.model.split("-")[0]
    with found(data, model) as file:
        num = min(chosen.sequences or len(file), len(file))
        tokens = file.sequences(torch.arange(num) * len(file) // num)
    values = entropy_by_count(model.denoiser, tokens, passes=chosen.orders * tokens.shape[1], schedule=model.schedule)
    profile = EntropyProfile.of(values)
    steps = [n for n in STEPS if n <= len(profile.nats)]
    command = f"python -m benchmarks.parallel {chosen.model}" + "".join(
        f" --{name} {value}"
        for name, default in (("data", None), ("sequences", None), ("orders", 1), ("output", None))
        if (value := getattr(chosen, name)) != default
    )
    return {
        "command": command,
        "model": chosen.model,
        "data": f"{data}, held out",
        "passes": tokens.numel() * chosen.orders,
        "profile": asdict(profile),
        "costs": costs(values, steps),
    }


def costs(values: Tensor, steps: Sequence[int]) -> list[dict[str, Any]]:
    """The losses in so many steps, from h(n) of each sequence, [B, L], with their standard errors."""
    rows, fold = [], torch.arange(len(values)) % FOLDS
    for cost in theory.parallel_costs(EntropyProfile.of(values).nats, steps):
        found = {"equal": _losses(values, theory.equal_sizes(values.shape[1], cost.steps))}
        found["optimal"] = _losses(values, cost.sizes)
        found["others"] = torch.zeros_like(found["equal"])
        for k in range(FOLDS):
            sizes = theory.optimal_sizes(values[fold != k].mean(0).numpy(), cost.steps)
            found["others"][fold == k] = _losses(values[fold == k], sizes)
        means = {name: float(losses.mean()) for name, losses in found.items()}
        errors = {f"{name}_error": float(losses.std()) / math.sqrt(len(losses)) for name, losses in found.items()}
        rows.append({"steps": cost.steps, **means, **errors, "sizes": cost.sizes})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| calls N | equal sizes | optimal sizes | chosen on others |", "|---|---|---|---|"]
    for row in rows:
        cells = [f"{row[name]:.2f} ± {row[f'{name}_error']:.2f}" for name in ("equal", "optimal", "others")]
        lines.append(f"| {row['steps']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _losses(values: Tensor, sizes: Sequence[int]) -> Tensor:
    return torch.tensor([theory.parallel_loss(row.numpy(), sizes) for row in values], dtype=torch.float64)


if __name__ == "__main__":
    main()
