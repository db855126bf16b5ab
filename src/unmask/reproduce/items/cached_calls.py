"""Figure 3b and the appendix on the expected NFE: network calls under the cache, by formula and by simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import unmask
from unmask import plan
from unmask.noise import Streams
from unmask.reproduce.item import Claim, Drawing, ItemResult, Settings, Table
from unmask.samplers import published
from unmask.theory import expected_nfe

TITLE = "Network calls under the cache against N, for several batch sizes"
PAPER = "Figure 3b, Sec. 4.1 and the appendix on the expected NFE"


def run(settings: Settings) -> ItemResult:
    length = settings.pick(full=1024, fast=1024, tiny=32)
    batches = settings.pick(full=(1, 2, 4, 8, 16), fast=(1, 2, 8), tiny=(1, 2))
    steps = settings.pick(
        full=(64, 128, 256, 512, 1024, 2048, 4096, 10_000, 50_000, 100_000),
        fast=(64, 256, 1024, 4096, 10_000, 50_000),
        tiny=(8, 64),
    )
    runs = settings.pick(full=200, fast=20, tiny=40)
    rows: list[tuple[Any, ...]] = []
    for B in batches:
        for N in steps:
            shared, own = simulated(length, B, N, runs, settings.seed)
            expected = expected_nfe(N, length, B)
            error = max(float(shared.std(ddof=1) / np.sqrt(runs)), 1 / runs)  # a rare event may not have been seen
            rows.append((B, N, expected, float(shared.mean()), error, float(own.mean())))
    columns = ("B", "N", "formula", "simulated", "standard error", "calls of unmask.sample")
    sizes = (8, 4, 6) if settings.size == "tiny" else (24, 8, 30)
    real, predicted, spread = coupled(*sizes, runs=settings.pick(full=200, fast=60, tiny=40), seed=settings.seed)
    worst = max(abs(row[2] - row[3]) / row[4] for row in rows)
    largest = [row for row in rows if row[1] == steps[-1]]
    claims = (
        Claim(
            "E-NFE = N(1-(1-1/N)^(BL))",
            "-",
            f"simulation within {worst:.1f} standard errors, {len(rows)} cells",
            f"L = {length}, B = {batches}",
            worst < 5.0,
        ),
        Claim(
            "the same of the published sampler itself",
            f"{predicted:.2f}",
            f"{real:.2f} +- {spread:.2f}",
            f"coupled float64 steps, L = {sizes[0]}, B = {sizes[1]}, N = {sizes[2]}",
            abs(real - predicted) < 5 * spread,
        ),
        Claim(
            "for N -> infinity the calls are not bounded by L but by BL",
            "BL",
            ", ".join(f"B = {row[0]}: {row[2] / length:.2f} L" for row in largest),
            f"N = {steps[-1]:,}",
            all(row[2] > 0.9 * row[0] * length or row[1] < 20 * row[0] * length for row in largest),
        ),
    )
    notes = (
        "Rows of a batch have their own plans in unmask.sample: its calls are the longest row's, at most L for any B.",
    )
    return ItemResult({"calls": Table(columns, tuple(rows))}, claims, {"": drawing(rows, length)}, notes)


def drawing(rows: list[tuple[Any, ...]], length: int) -> Drawing:
    batches = sorted({row[0] for row in rows})

    def draw(sheet: Any) -> None:
        axes = sheet.subplots()
        grid = np.unique(np.logspace(np.log10(rows[0][1]), np.log10(rows[-1][1]), 60).astype(int))
        for i, B in enumerate(batches):
            axes.loglog(grid, [expected_nfe(int(N), length, B) for N in grid], color=f"C{i}", label=f"B = {B}")
            cells = [row for row in rows if row[0] == B]
            axes.loglog([row[1] for row in cells], [row[3] for row in cells], "o", color=f"C{i}")
        last = [row for row in rows if row[0] == batches[-1]]
        axes.loglog(
            [row[1] for row in last], [row[5] for row in last], "k--", lw=1.2, label=f"unmask, B = {batches[-1]}"
        )
        axes.set(
            xlabel="steps N",
            ylabel="network calls of a batch",
            title=f"L = {length}: formula (lines), simulation (dots)",
        )
        axes.legend()

    return draw


def simulated(length: int, batch: int, steps: int, runs: int, seed: int) -> tuple[Any, Any]:
    """Calls of `runs` batches: steps of the grid in which any row changes, and the longest row's own steps."""
    canvas = torch.zeros(batch, length, dtype=torch.int64)
    shared, own = [], []
    for r in range(runs):
        planned = plan.ancestral(
            canvas, mask_id=0, streams=Streams(tuple((seed, r * batch + b) for b in range(batch))), steps=steps
        )
        shared.append(len(torch.unique(planned.call_time[planned.call_time > 0])))
        own.append(int(planned.calls.max()))
    return np.array(shared, dtype=np.float64), np.array(own, dtype=np.float64)


def coupled(length: int, batch: int, steps: int, *, runs: int, seed: int) -> tuple[float, float, float]:
    """Mean calls of the published sampler in float64 on a small chain, the formula, and the mean's error."""
    chain = torch.tensor([[0.8, 0.2], [0.3, 0.7]], dtype=torch.float64)
    model = unmask.MarkovOracle(torch.tensor([0.6, 0.4], dtype=torch.float64), chain)
    calls = [
        unmask.sample(
            model, sampler=published.Coupled("float64"), steps=steps, num=batch, length=length, seed=seed + r
        ).calls
        for r in range(runs)
    ]
    return float(np.mean(calls)), expected_nfe(steps, length, batch), float(np.std(calls, ddof=1) / np.sqrt(runs))
