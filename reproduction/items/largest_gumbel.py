"""Table 1: the largest Gumbel of each precision, from theory and from the machine's floats."""

from __future__ import annotations

import torch

from reproduction.item import ItemResult, Settings, Table, Tables
from reproduction.verdict import LEVEL, Claim, Number, claim
from unmask.theory import largest_below_one, maximum_gumbel

TITLE = "The largest Gumbel of each floating-point type"
PAPER = "Table 1"
PRINTED = {"float32": 16.6355, "float64": 36.7368}


def run(settings: Settings) -> ItemResult:
    rows = []
    for name in ("bfloat16", "float16", "float32", "float64"):
        dtype = getattr(torch, name)
        below = torch.nextafter(torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype))
        # log in half precision is itself rounded; only what the uniform allows matters here.
        gumbel = -torch.log(-torch.log(below.double()))
        rows.append(
            (
                name,
                f"{largest_below_one(name):.17g}",
                f"{float(below):.17g}",
                f"{maximum_gumbel(name):.4f}",
                f"{float(gumbel):.4f}",
                PRINTED.get(name),
            )
        )
    numbers = settings.pick(full=400_000_000, fast=400_000_000, tiny=200_000_000)
    most = largest_drawn(numbers, settings.seed)
    table = Table(
        ("type", "1 - 2^-bits", "largest float below 1", "M", "M of that float", "the paper's M"), tuple(rows)
    )
    drawn = Table(
        ("numbers of torch.rand", "the largest", "steps of 2^-24 below 1"), ((numbers, most, (1 - most) * 2**24),)
    )
    return ItemResult({"largest Gumbels": table, "largest drawn": drawn})


def claims(tables: Tables) -> list[Claim]:
    rows, drawn = tables["largest Gumbels"].records(), tables["largest drawn"].records()[0]
    found = [row for row in rows if row["the paper's M"] is not None]
    numbers = [
        Number(f"{row['type']}, {column}", float(row[column])).within(
            row["the paper's M"] - 6e-5, row["the paper's M"] + 6e-5
        )
        for row in found
        for column in ("M", "M of that float")
    ]
    miss = (1 - 2**-24) ** drawn["numbers of torch.rand"]
    below: float | None = drawn["steps of 2^-24 below 1"]
    if below is not None and below > 1 and miss > LEVEL:
        below = None  # too few draws to say that it is out of reach
    steps = Number("steps of 2^-24 that the largest is below 1", below).within(1, 1)
    return [
        claim("the largest Gumbel is 16.6355 in float32 and 36.7368 in float64", "16.6355, 36.7368",
              "closed form and this machine's floats", *numbers),
        claim("float32 uniforms reach 1 - 2^-24 and nothing beyond", "0.9999999404",
              f"{drawn['numbers of torch.rand']:,} of torch.rand's, which miss it with probability {miss:.1g}", steps),
    ]  # fmt: skip


def largest_drawn(numbers: int, seed: int) -> float:
    """The largest of this many float32 uniforms of torch."""
    generator, block, most = torch.Generator().manual_seed(seed), 10_000_000, 0.0
    for start in range(0, numbers, block):
        most = max(most, float(torch.rand(min(block, numbers - start), generator=generator).max()))
    return most
