"""Figure 14 and Remark 5.1: what a float32 draw does to token-by-token decoding, masked and left to right."""

from __future__ import annotations

from unmask.reproduce import cells
from unmask.reproduce.cells import Cell, How
from unmask.reproduce.item import Claim, Drawing, ItemResult, Settings, Subject
from unmask.reproduce.items.high_order import number, steps
from unmask.reproduce.pictures import against_steps
from unmask.reproduce.subjects import subjects

TITLE = "What 32 bits do to first-hitting and to left-to-right sampling"
PAPER = "Figure 14, Remark 5.1"


def run(settings: Settings) -> ItemResult:
    found, notes = subjects(settings)
    measured, claims = [], []
    pictures: dict[str, Drawing] = {}
    for subject in found:
        L = subject.long
        chosen = steps(L, settings)
        chosen = chosen[1::2] if settings.size == "fast" else chosen
        sweeps = {
            (order, bits): [
                cells.measure(subject, high_order(order, bits, N, L), N, number(settings), L, settings, paired=True)
                for N in chosen
            ]
            for order in ("first order", "high order")
            for bits in ("float32", "float64")
        }
        ar = [
            cells.left_to_right(subject, number(settings), L, settings, draw=f"gumbel-{bits}", paired=True)
            for bits in ("float32", "float64")
        ]
        ltr = [cell for cell in ar if cell is not None]
        measured += [*(cell for sweep in sweeps.values() for cell in sweep), *ltr]
        claims += compared(subject, sweeps, ltr)
        pictures[subject.name if pictures else ""] = drawing(subject, sweeps)
    return ItemResult({"cells": cells.table(measured)}, tuple(claims), pictures, tuple(notes))


def high_order(order: str, bits: str, N: int, length: int) -> How:
    """The paper's rule: extrapolate up to 128 of 1,024 steps, correct beyond."""
    if order == "first order":
        return How("parallel", draw=f"gumbel-{bits}")
    return How("parallel", draw=f"gumbel-{bits}", predictor="correct" if length // 8 < N else "extrapolate")


def compared(subject: Subject, sweeps: dict[tuple[str, str], list[Cell]], ltr: list[Cell]) -> list[Claim]:
    on = f"{subject.name}: {len(sweeps['first order', 'float32'][0].tokens)} sequences of {subject.long} tokens"
    claims = []
    for order in ("first order", "high order"):
        single, double = (sweeps[order, bits] for bits in ("float32", "float64"))
        gaps = [cells.lower_in_pairs(a, b) for a, b in zip(single, double, strict=True)]
        mean = sum(gap for gap, _ in gaps) / len(gaps)
        error = sum(e**2 for _, e in gaps) ** 0.5 / len(gaps)
        claims.append(
            Claim(
                f"first-hitting ({order}) is hardly touched by 32 bits",
                "significantly less influential",
                f"{mean:+.3f} +- {error:.3f} nats per token lower, over {len(gaps)} N",
                on,
                abs(mean) < max(3 * error, 0.05),
            )
        )
    if not ltr:
        return claims
    gap, error = cells.lower_in_pairs(ltr[0], ltr[1])
    claims.append(
        Claim(
            "left-to-right sampling does not suffer either",
            "not notable",
            f"{gap:+.3f} +- {error:.3f} nats per token lower",
            on,
            abs(gap) < max(3 * error, 0.05),
        )
    )
    return claims


def drawing(subject: Subject, sweeps: dict[tuple[str, str], list[Cell]]) -> Drawing:
    styles = {
        f"{order}, {bits}": {
            "style": "o-" if bits == "float64" else "s--",
            "color": "C0" if order == "first order" else "C1",
        }
        for order, bits in sweeps
    }
    curves = {f"{order}, {bits}": sweep for (order, bits), sweep in sweeps.items()}
    return against_steps(curves, {}, f"{subject.name}, L = {subject.long}", styles=styles, powers=True)
