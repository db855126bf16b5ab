"""Figure 10: perplexity against entropy, by temperature with an exact draw and by N with a float32 one."""

from __future__ import annotations

from typing import Any

import numpy as np

from unmask.reproduce import cells, coupled
from unmask.reproduce.cells import Cell, How
from unmask.reproduce.item import Claim, Drawing, ItemResult, Settings
from unmask.reproduce.subjects import subjects

TITLE = "The trade-off of perplexity and entropy, by temperature and by the float32 fault"
PAPER = "Figure 10, Sec. 6.2"


def run(settings: Settings) -> ItemResult:
    found, notes = subjects(settings)
    heats = settings.pick(full=(0.8, 0.85, 0.9, 0.95, 1.0), fast=(0.8, 0.9, 1.0), tiny=(0.8, 1.0))
    num = settings.pick(full=64, fast=48, tiny=8)
    measured, claims = [], []
    pictures: dict[str, Drawing] = {}
    for subject in found:
        L = subject.length
        curves = {
            "first-hitting, L steps, corrected, T from 0.8 to 1": [
                cells.measure(subject, How("parallel", predictor="correct", temperature=T), L, num, L, settings)
                for T in heats
            ]
        }
        ar = [cells.left_to_right(subject, num, L, settings, temperature=T) for T in heats]
        if all(ar):
            curves["left to right, T from 0.8 to 1"] = [cell for cell in ar if cell is not None]
        fault = [coupled.by_law(subject, N, settings) for N in coupled.many_steps(settings)]
        drawn = coupled.drawn(subject, coupled.MDLM, coupled.steps(settings)[-1], settings)
        measured += [*(cell for curve in curves.values() for cell in curve), *fault]
        ours = curves["first-hitting, L steps, corrected, T from 0.8 to 1"]
        cold, warm = ours[0], ours[-1]
        drop, error = cells.lower(cold, warm)
        on = f"{subject.name}: {len(warm.tokens)} sequences of {L} tokens"
        claims += [
            Claim(
                "a lower temperature trades entropy for perplexity",
                "T in [0.8, 1.0]",
                f"{cold.perplexity}, {cold.entropy} at T = 0.8; {warm.perplexity}, {warm.entropy} at T = 1",
                on,
                True if drop > 3 * error and cold.entropy.value < warm.entropy.value else None,
            ),
            *matched(ours, fault, drawn, on),
        ]
        pictures[subject.name if pictures else ""] = drawing(subject.name, curves, fault, L)
    return ItemResult({"cells": cells.table(measured)}, tuple(claims), pictures, tuple(notes))


def matched(curve: list[Cell], faults: list[Cell], drawn: Cell, on: str) -> list[Claim]:
    """The temperature that has the perplexity of the worst fault within reach, and the two entropies there."""
    by = sorted(curve, key=lambda cell: cell.perplexity.value)
    p = [cell.perplexity.value for cell in by]
    reached = [cell for cell in faults if p[0] <= cell.perplexity.value <= p[-1]]
    if not reached:
        return []
    fault = reached[-1]

    def there(values: list[float]) -> float:
        return float(np.interp(fault.perplexity.value, p, values))

    T = there([cell.how.temperature for cell in by])
    H, low, high = (there([getattr(cell.entropy, side) for cell in by]) for side in ("value", "low", "high"))
    e = fault.entropy
    return [
        Claim(
            "what float32 does in many steps a temperature does at a lower cost",
            "20 times faster",
            f"perplexity {fault.perplexity} of N = {fault.steps:,} at T = {T:.2f}: {by[0].seconds:.2f} s a sequence, "
            f"the published sampler {drawn.seconds:.1f} s at N = {drawn.steps:,} alone",
            on,
            drawn.seconds > by[0].seconds,
        ),
        Claim(
            "and its trade-off is slightly better",
            "higher entropy at the same perplexity",
            f"entropy {H:.3f} [{low:.3f}, {high:.3f}] at T = {T:.2f}, {e} in float32 at N = {fault.steps:,}",
            on,
            True if e.high < low else (False if e.low > high else None),
        ),
    ]


def drawing(name: str, curves: dict[str, list[Cell]], fault: list[Cell], length: int) -> Any:
    def draw(sheet: Any) -> None:
        sheet.set_size_inches(5.6, 4.0)
        axes = sheet.subplots()
        for label, curve in [*curves.items(), ("published float32 (its law), by N", fault)]:
            p, e = [cell.perplexity for cell in curve], [cell.entropy for cell in curve]
            sides = [[max(abs(i.value - getattr(i, side)), 0.0) for i in p] for side in ("low", "high")]
            axes.errorbar(
                [i.value for i in e], [i.value for i in p], sides, fmt="o-", capsize=2, elinewidth=0.8, label=label
            )
        for cell in fault:
            axes.annotate(
                f"{cell.steps:,}",
                (cell.entropy.value, cell.perplexity.value),
                fontsize=7.5,
                textcoords="offset points",
                xytext=(5, 4),
            )
        axes.set(xlabel="entropy of a sequence", ylabel="perplexity", title=f"{name}, L = {length}")
        axes.legend()

    return draw
