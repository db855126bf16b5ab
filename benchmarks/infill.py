"""Blanks filled in three ways, compared with the truth: how many particles does a gap need?

    python -m benchmarks.infill [--number 64] [--output docs/results/infill.json]

A row of the corpus ``stories`` is a draw from a known distribution p. Hide some of its tokens: the hidden ones are then
an exact draw from p(gap | rest). A gap is filled, and p itself says how likely the result is. If the fillings had the
right distribution, the mean of -log p(row) would be that of the original rows; what it has more is the error, in nats
per gap.

The ways: ``stories`` from left to right with K particles, where one particle takes nothing after the gap into account;
``stories-masked``, which sees both sides, alone (K = 1); and K fillings by it, one of which ``stories`` chooses.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from recipes.corpora import stories
from torch import Tensor

import unmask
from unmask.guides import only
from unmask.model import Model
from unmask.text import particles as weighed
from unmask.text.requests import TextSample

BEFORE, AFTER = 48, 24  # tokens
GAPS = (2, 8)
PARTICLES = (1, 8, 32, 128)
PROPOSED = (1, 4, 16)

Fill = Callable[[Tensor, int, int], Tensor]
"""(row [L] with mask_id in its gap, K, seed) -> the row, filled."""


def in_turn(model: Any) -> Fill:
    """By particles that go from left to right."""

    def fill(row: Tensor, particles: int, seed: int) -> Tensor:
        canvas, given = weighed.opened(row.tolist(), model.mask_id, model.vocab_size)
        guide, each = only(given), {"particles": particles, "seed": seed}
        return unmask.sample(model, canvas=torch.tensor([canvas]), guide=guide, **each).tokens[0]

    return fill


def proposed(model: Model, proposal: Model) -> Fill:
    """By a network that sees both sides; the model chooses among K fillings."""

    def fill(row: Tensor, particles: int, seed: int) -> Tensor:
        drawn = unmask.sample(proposal.denoiser, canvas=row.repeat(particles, 1), seed=seed)
        texts = TextSample(**vars(drawn), text=[""] * particles)
        return weighed.among(model, texts, particles, seed).tokens[0]

    return fill


def rows(number: int) -> Iterator[dict[str, Any]]:
    model, masked, truth = unmask.load("stories"), unmask.load("stories-masked"), stories.law()
    ways = {"from left to right": (in_turn(model.denoiser), PARTICLES), "proposed": (proposed(model, masked), PROPOSED)}
    for gap in GAPS:
        length = BEFORE + gap + AFTER
        original, nats = truth.rows(0, "infill", 0, number, length)
        hidden = original.clone()
        hidden[:, BEFORE : BEFORE + gap] = masked.denoiser.mask_id
        for way, (fill, counts) in ways.items():
            for particles in counts:
                made = torch.stack([fill(row, particles, i) for i, row in enumerate(hidden)])
                more = truth.nats(made).sum(1) - nats.sum(1)
                same = (made == original)[:, BEFORE : BEFORE + gap].all(1)
                yield {
                    "gap": gap,
                    "way": way,
                    "particles": particles,
                    "number": number,
                    "excess_nats": float(more.mean()),
                    "error": float(more.std()) / number**0.5,
                    "same": float(same.double().mean()),
                }


def shown(row: dict[str, Any]) -> str:
    excess = f"{row['excess_nats']:.2f} ± {row['error']:.2f}"
    return f"| {row['gap']} | {row['way']} | {row['particles']} | {excess} | {row['same']:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=64)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    print("| hidden tokens | way | particles | nats above the original | same tokens |\n|---|---|---|---|---|")
    found = []
    for row in rows(chosen.number):
        found.append(row)
        print(shown(row), flush=True)
    if chosen.output is not None:
        chosen.output.write_text(json.dumps({"rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
