"""Figure 10: perplexity against entropy, by temperature with an exact draw and by N with a float32 draw."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from reproduction import cells
from reproduction.cells import Cell, How, Row
from reproduction.item import Drawing, ItemResult, Settings, Tables
from reproduction.items.published_steps import MDLM_LAW
from reproduction.pictures import interval
from reproduction.subjects import subjects
from reproduction.verdict import Claim, Number, claim

TITLE = "The trade-off of perplexity and entropy, by temperature and by the float32 fault"
PAPER = "Figure 10, Sec. 6.2"
OURS, LEFT = "first-hitting, L steps, corrected, T from 0.8 to 1", "left to right, T from 0.8 to 1"


def run(settings: Settings) -> ItemResult:
    found, notes = subjects(settings)
    measured = []
    pictures: dict[str, Drawing] = {}
    for subject in found:
        L, known = subject.length, subject.exact is not None
        heats = settings.pick(
            full=(0.8, 0.85, 0.9, 0.95, 1.0) if known else (0.8, 0.9, 1.0), fast=(0.8, 0.9, 1.0), tiny=(0.8, 1.0)
        )
        num = settings.pick(full=500 if known else 32, fast=100, tiny=8)
        ways = [How("parallel", predictor="correct", temperature=T) for T in heats]
        curves = {OURS: [cells.measure(subject, how, L, num, L, settings) for how in ways]}
        few = settings.pick(full=64, fast=64, tiny=8)
        # For an oracle, the left-to-right model is the same model.
        ar = [] if known else [cells.left_to_right(subject, few, L, settings, temperature=T) for T in heats]
        if any(ar):
            curves[LEFT] = [cell for cell in ar if cell is not None]
        of_law = settings.pick(full=300 if known else 32, fast=64, tiny=32)
        fault = [cells.measure(subject, MDLM_LAW, N, of_law, L, settings) for N in settings.pick(
            full=(2048, 10_000, 50_000), fast=(10_000, 50_000), tiny=(1000, 100_000_000)
        )]  # fmt: skip
        measured += [*(cell for curve in curves.values() for cell in curve), *fault]
        pictures[subject.suffix] = drawing(subject.name, curves, fault, L)
    return ItemResult({"cells": cells.table(measured)}, pictures, tuple(notes))


def claims(tables: Tables) -> list[Claim]:
    said = []
    for name in cells.subjects_of(tables["cells"]):
        rows = [row for row in tables["cells"].records() if row["subject"] == name]
        ours = _by_heat([row for row in rows if row["sampler"].startswith("first-hitting, correct")])
        ar = _by_heat([row for row in rows if row["sampler"].startswith("left to right")])
        fault = cells.curve(tables["cells"], name, MDLM_LAW)
        cold, warm = ours[0], ours[-1]
        on = f"{cells.on(warm)} at each temperature, {fault[-1]['sequences']} of float32 by its law"
        said += [
            claim(
                "a lower temperature trades entropy for perplexity",
                "T in [0.8, 1.0]",
                cells.on(warm),
                cells.below(cold, warm, "nats that T = 0.8 is lower").at_least(0.1),
                cells.above(warm, cold, "entropy that it is lower").at_least(0.02),
            ),
            claim(
                "what float32 does in many steps a temperature does at a lower cost",
                "20 times faster",
                on,
                Number(
                    f"times fewer rows are drawn than with N = {fault[-1]['N']:,}",
                    fault[-1]["N"] * warm["L"] / cold["draws of rows"] if cold["draws of rows"] else None,
                ),
            ),
            claim(
                "and its trade-off is slightly better: a higher entropy at the same perplexity",
                "slightly better",
                on,
                *(
                    number.at_least(0)
                    for row in fault
                    if (
                        number := at_the_same(
                            ours, row, "nats per token", "entropy", f"entropy above N = {row['N']:,}'s"
                        )
                    )
                ),
            ),
        ]
        if ar:
            gaps = [at_the_same(ours, row, "entropy", "nats per token", f"nats above {row['sampler']}") for row in ar]
            lag = [number.at_least(0.1) for number in gaps if number]
            says = "the trade-off still lags behind left to right: by 0.1 nats or more at the same entropy"
            said.append(claim(says, "significantly lagging", cells.on(warm), *lag))
    return said


def _by_heat(rows: list[Row]) -> list[Row]:
    def heat(row: Row) -> float:
        return float(row["sampler"].split("T = ")[1]) if "T = " in row["sampler"] else 1.0

    return sorted(rows, key=heat)


def at_the_same(curve: list[Row], row: Row, x: str, y: str, what: str) -> Number | None:
    """How far the curve's y is above a row's at the same x, by interpolation between two of its points.

    The errors of x enter by the slope, and are treated as independent of those of y; they are positively correlated, so
    the true error is smaller.
    """
    errors = {"nats per token": "error", "entropy": "its error"}
    for a, b in pairwise(sorted(curve, key=lambda r: r[x])):
        if a[x] <= row[x] <= b[x] and b[x] > a[x]:
            w = (row[x] - a[x]) / (b[x] - a[x])
            slope = (b[y] - a[y]) / (b[x] - a[x])
            along = [(1 - w) * slope * a[errors[x]], w * slope * b[errors[x]], slope * row[errors[x]]]
            error = math.hypot((1 - w) * a[errors[y]], w * b[errors[y]], row[errors[y]], *along)
            value = (1 - w) * a[y] + w * b[y] - row[y]
            return Number(what, value, error, min(a["sequences"], b["sequences"], row["sequences"]))
    return None


def drawing(name: str, curves: dict[str, list[Cell]], fault: list[Cell], length: int) -> Any:
    def draw(sheet: Any) -> None:
        sheet.set_size_inches(5.6, 4.0)
        axes = sheet.subplots()
        for label, curve in [*curves.items(), ("published float32 (its law), by N", fault)]:
            p, low, high = zip(*(interval(cell, "perplexity") for cell in curve), strict=True)
            e = [interval(cell, "entropy")[0] for cell in curve]
            sides = ([a - b for a, b in zip(p, low, strict=True)], [b - a for a, b in zip(p, high, strict=True)])
            axes.errorbar(e, p, sides, fmt="o-", capsize=2, elinewidth=0.8, label=label)
        for cell in fault:
            at = (interval(cell, "entropy")[0], interval(cell, "perplexity")[0])
            axes.annotate(f"{cell.steps:,}", at, fontsize=7.5, textcoords="offset points", xytext=(5, 4))
        axes.set(xlabel="entropy of a sequence", ylabel="perplexity", title=f"{name}, L = {length}")
        axes.legend()

    return draw
