"""Figure 13: the high-order variants of first-hitting sampling for N from L/32 to L."""

from __future__ import annotations

from typing import Any

from unmask.reproduce import cells
from unmask.reproduce.cells import Cell, How
from unmask.reproduce.item import Claim, Drawing, ItemResult, Settings, Subject
from unmask.reproduce.pictures import against_steps
from unmask.reproduce.subjects import subjects

TITLE = "The high-order variants of first-hitting sampling against N"
PAPER = "Figure 13"
ORDERS = ("first-order", "extrapolate", "correct")


def steps(length: int, settings: Settings) -> list[int]:
    """The paper's 32 to 1024 of 1024, as the same parts of this length."""
    return [max(1, length // k) for k in settings.pick(full=(32, 16, 8, 4, 2, 1), fast=(16, 8, 4, 1), tiny=(4, 1))]


def number(settings: Settings) -> int:
    return settings.pick(full=32, fast=8, tiny=4)


def run(settings: Settings) -> ItemResult:
    found, notes = subjects(settings)
    measured, claims = [], []
    pictures: dict[str, Drawing] = {}
    for subject in found:
        sweeps = {
            name: [
                cells.measure(
                    subject, How("parallel", predictor=name), N, number(settings), subject.long, settings, paired=True
                )
                for N in steps(subject.long, settings)
            ]
            for name in ORDERS
        }
        base = (
            cells.truth(subject, settings.pick(full=500, fast=300, tiny=100), subject.long, settings)
            if subject.exact
            else None
        )
        measured += [*(cell for sweep in sweeps.values() for cell in sweep), *([base] if base else [])]
        claims += compared(subject, sweeps)
        pictures[subject.name if pictures else ""] = against_steps(
            sweeps, {"the truth": base}, f"{subject.name}, L = {subject.long}", powers=True
        )
    return ItemResult({"cells": cells.table(measured)}, tuple(claims), pictures, tuple(notes))


def compared(subject: Subject, sweeps: dict[str, list[Cell]]) -> list[Claim]:
    plain, ahead, corrected = (sweeps[name] for name in ORDERS)
    on = f"{subject.name}: {len(plain[0].tokens)} sequences of L = {subject.long} tokens"

    def gains(sweep: list[Cell], few: bool) -> list[tuple[Any, ...]]:
        """Nats per token below first order, at the N that the paper speaks of; cells of one N share their noise."""
        pairs = [(a.steps or 0, *cells.lower_in_pairs(b, a)) for a, b in zip(plain, sweep, strict=True)]
        return [pair for pair in pairs if (pair[0] <= subject.long // 8 if few else pair[0] >= subject.long // 4)]

    few, many = gains(ahead, True), gains(corrected, False)

    def told(gains: list[tuple[Any, ...]]) -> str:
        return ", ".join(f"{gain:+.3f} +- {error:.3f} at N = {N}" for N, gain, error in gains)

    def verdict(gains: list[tuple[Any, ...]]) -> bool | None:
        total, error = sum(gain for _, gain, _ in gains), sum(error**2 for *_, error in gains) ** 0.5
        return cells.decided(total, error, sigmas=2.0)

    best = [
        min((float(sweep[i].per_token.mean()), name) for name, sweep in sweeps.items())[1] for i in range(len(plain))
    ]
    return [
        Claim(
            "extrapolation has the lowest perplexity for N <= 128 of 1,024",
            "N <= L/8",
            f"nats per token below first order: {told(few)}",
            on,
            verdict(few),
        ),
        Claim(
            "the predictor-corrector has it for N >= 256 of 1,024",
            "N >= L/4",
            f"nats per token below first order: {told(many)}",
            on,
            verdict(many),
        ),
        Claim(
            "which is best at each N",
            "extrapolate, then correct",
            ", ".join(f"N = {cell.steps}: {name}" for cell, name in zip(plain, best, strict=True)),
            on,
            None,
        ),
    ]
