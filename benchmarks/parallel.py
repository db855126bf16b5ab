"""What decoding several tokens per call costs a model, from its entropy profile on held-out data.

    python -m benchmarks.parallel kjv --output docs/results/profile-kjv.json     a quarter of an hour on one core
    python -m benchmarks.parallel --show docs/results/profile-kjv.json           the table of a stored profile

The nats lost are exact for a given profile. Their error is the spread of the paired losses over the sequences. Optimal
sizes are chosen on the sequences that they are judged by; "other half" chooses on one half and judges on the other.
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
from unmask.evaluate.likelihood.profile import Profile, by_count

STEPS = (4, 8, 16, 32, 64, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="kjv")
    parser.add_argument("--data", help="the corpus that the model was trained on by default")
    parser.add_argument("--sequences", type=int, help="all held-out ones by default")
    parser.add_argument("--passes", type=int, help="for each sequence; one for every count by default")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--show", type=Path, help="print the table of this file and measure nothing")
    chosen = parser.parse_args()
    result = json.loads(chosen.show.read_text()) if chosen.show else measured(chosen)
    if chosen.output:
        chosen.output.write_text(json.dumps(result) + "\n")
    print(table(result["costs"]))


def measured(chosen: argparse.Namespace) -> dict[str, Any]:
    model = unmask.load(chosen.model)
    data = chosen.data or chosen.model.split("-")[0]
    with found(data, model) as file:
        num = min(chosen.sequences or len(file), len(file))
        tokens = file.sequences(torch.arange(num) * len(file) // num)
    values = by_count(model.denoiser, tokens, passes=chosen.passes, schedule=model.schedule)
    profile = Profile.of(values)
    steps = [n for n in STEPS if n <= len(profile.nats)]
    command = f"python -m benchmarks.parallel {chosen.model}" + "".join(
        f" --{name} {value}"
        for name in ("data", "sequences", "passes", "output")
        if (value := getattr(chosen, name)) is not None
    )
    return {
        "command": command, "model": chosen.model, "data": f"{data}, held out",
        "passes": len(tokens) * (chosen.passes or tokens.shape[1]),
        "profile": asdict(profile), "costs": costs(values, steps),
    }  # fmt: skip


def costs(values: Tensor, steps: Sequence[int]) -> list[dict[str, Any]]:
    """The losses in so many steps, with errors where every sequence has seen every count."""
    rows = []
    halves = [Profile.of(values[half::2]).nats for half in (0, 1)]
    for cost in theory.parallel_costs(Profile.of(values).nats, steps):
        length = values.shape[1]
        crossed = [theory.parallel_loss(halves[1 - i], theory.optimal_sizes(halves[i], cost.steps)) for i in (0, 1)]
        rows.append(
            asdict(cost)
            | {
                "equal_error": _error(values, theory.equal_sizes(length, cost.steps)),
                "optimal_error": _error(values, cost.sizes),
                "other_half": sum(crossed) / 2,
            }
        )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| calls N | equal sizes | optimal sizes | other half |", "|---|---|---|---|"]
    for row in rows:
        equal, optimal = (f"{row[name]:.2f} ± {row[f'{name}_error']:.2f}" for name in ("equal", "optimal"))
        lines.append(f"| {row['steps']} | {equal} | {optimal} | {row['other_half']:.2f} |")
    return "\n".join(lines)


def _error(values: Tensor, sizes: Sequence[int]) -> float:
    if bool(values.isnan().any()):
        return math.nan
    losses = torch.tensor([theory.parallel_loss(row.numpy(), sizes) for row in values])
    return float(losses.std()) / math.sqrt(len(losses))


if __name__ == "__main__":
    main()
