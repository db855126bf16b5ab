"""Figure 3b and the appendix on the expected NFE: network calls under the cache, by formula and by simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import unmask
from reproduction.item import Drawing, ItemResult, Settings, Table, Tables
from reproduction.keep import kept
from reproduction.verdict import Claim, Number, claim
from unmask import plan
from unmask.noise import Streams
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
    runs = settings.pick(full=20, fast=20, tiny=40)
    rows: list[tuple[Any, ...]] = []
    for B in batches:
        for N in steps:
            path = settings.cells and Path(settings.cells) / f"calls-{length}-{B}-{N}-{runs}-{settings.seed}.pt"
            made = kept(path or None, lambda B=B, N=N: simulated(length, B, N, runs, settings.seed))  # type: ignore[misc]
            shared, own = made["shared"].numpy(), made["own"].numpy()
            expected = expected_nfe(N, length, B)
            error = max(float(shared.std(ddof=1) / np.sqrt(runs)), 1 / runs)  # a rare event may not have occurred
            rows.append((B, N, expected, float(shared.mean()), error, float(own.mean())))
    columns = ("B", "N", "formula", "simulated", "standard error", "calls of unmask.sample")
    sizes = settings.pick(full=(24, 8, 200), fast=(24, 8, 200), tiny=(8, 4, 12))
    real, spread = coupled(*sizes, runs=(trials := settings.pick(full=100, fast=60, tiny=40)), seed=settings.seed)
    published_ = (*sizes, trials, expected_nfe(sizes[2], sizes[0], sizes[1]), real, spread)
    tables = {
        "calls": Table(columns, tuple(rows)),
        "the published sampler": Table(("L", "B", "N", "runs", "formula", "counted", "standard error"), (published_,)),
        "sizes": Table(("L", "runs"), ((length, runs),)),
    }
    notes = (
        "Rows of a batch have their own plans in unmask.sample: its calls are the longest row's, at most L for any B.",
    )
    return ItemResult(tables, {"": drawing(rows, length)}, notes)


def claims(tables: Tables) -> list[Claim]:
    size, real = tables["sizes"].records()[0], tables["the published sampler"].records()[0]
    rows = tables["calls"].records()
    last = max(row["N"] for row in rows)

    def relative(row: dict[str, Any], found: str, n: int) -> Number:
        what = f"B = {row['B']}, N = {row['N']:,}: simulated by formula"
        return Number(what, row[found] / row["formula"], row["standard error"] / row["formula"], n)

    return [
        claim(
            "E-NFE = N(1-(1-1/N)^(BL)), within 2%",
            "-",
            f"L = {size['L']}, {len(rows)} cells of B and N, {size['runs']} plans of each",
            *(relative(row, "simulated", size["runs"]).within(0.98, 1.02) for row in rows),
        ),
        claim(
            "the same of the published sampler itself, within 5%",
            f"{real['formula']:.2f}",
            f"coupled float64 steps, L = {real['L']}, B = {real['B']}, N = {real['N']}, {real['runs']} runs",
            relative(real, "counted", real["runs"]).within(0.95, 1.05),
        ),
        claim(
            "for N -> infinity the calls are not bounded by L but by BL",
            "BL",
            f"N = {last:,}, L = {size['L']}, {size['runs']} plans of each B",
            *(
                Number(f"B = {row['B']}: calls by L", row["simulated"] / size["L"], row["standard error"] / size["L"],
                       size["runs"]).within(1, row["B"])
                for row in rows
                if row["N"] == last and row["B"] > 1
            ),
        ),
    ]  # fmt: skip


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


def simulated(length: int, batch: int, steps: int, runs: int, seed: int) -> dict[str, Tensor]:
    """Calls of `runs` batches: steps of the grid in which any row changes, and the steps of the longest row."""
    canvas = torch.zeros(batch, length, dtype=torch.int64)
    shared, own = [], []
    for r in range(runs):
        planned = plan.ancestral(
            canvas, mask_id=0, streams=Streams(tuple((seed, r * batch + b) for b in range(batch))), steps=steps
        )
        shared.append(len(torch.unique(planned.call_time[planned.call_time > 0])))
        own.append(int(planned.calls.max()))
    return {"shared": torch.tensor(shared, dtype=torch.float64), "own": torch.tensor(own, dtype=torch.float64)}


def coupled(length: int, batch: int, steps: int, *, runs: int, seed: int) -> tuple[float, float]:
    """Mean calls of the published sampler in float64 on a small chain, and the mean's error."""
    chain = torch.tensor([[0.8, 0.2], [0.3, 0.7]], dtype=torch.float64)
    model = unmask.MarkovOracle(torch.tensor([0.6, 0.4], dtype=torch.float64), chain)
    sampler = published.Coupled("float64")
    calls = [
        unmask.sample(model, sampler=sampler, steps=steps, num=batch, length=length, seed=seed + r).calls
        for r in range(runs)
    ]
    return float(np.mean(calls)), float(np.std(calls, ddof=1) / np.sqrt(runs))
