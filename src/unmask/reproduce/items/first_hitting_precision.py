"""Figure 14 and Remark 5.1: what a float32 draw does to token-by-token decoding, masked and left to right."""

from __future__ import annotations

from typing import Any

from unmask.reproduce import cells
from unmask.reproduce.cells import Cell, How
from unmask.reproduce.item import Claim, Drawing, Result, Settings
from unmask.reproduce.items.high_order import number, steps
from unmask.reproduce.items.published_steps import bars
from unmask.reproduce.subjects import Subject, subjects

TITLE = "What 32 bits do to first-hitting and to left-to-right sampling"
PAPER = "Figure 14, Remark 5.1"


def run(settings: Settings) -> Result:
    found, notes = subjects(settings)
    measured, claims = [], []
    pictures: dict[str, Drawing] = {}
    for subject in found:
        L = subject.long
        chosen = steps(L, settings)
        chosen = chosen[1::2] if settings.size == "fast" else chosen
        sweeps = {
            (order, bits): [
                cells.measure(subject, high_order(order, bits, N, L), N, number(settings), L, settings) for N in chosen
            ]
            for order in ("first order", "high order")
            for bits in ("float32", "float64")
        }
        ar = [cells.left_to_right(subject, number(settings), L, settings, draw=bits) for bits in ("float32", "float64")]
        ltr = [cell for cell in ar if cell is not None]
        measured += [*(cell for sweep in sweeps.values() for cell in sweep), *ltr]
        claims += compared(subject, sweeps, ltr)
        pictures[subject.name if pictures else ""] = drawing(subject, sweeps)
    return Result({"cells": cells.table(measured)}, tuple(claims), pictures, tuple(notes))


def high_order(order: str, bits: str, N: int, length: int) -> How:
    """The paper's rule: extrapolate up to 128 of 1,024 steps, correct beyond."""
    if order == "first order":
        return How("parallel", draw=bits)
    return How("parallel", draw=bits, predict="correct" if length // 8 < N else "extrapolate")


def compared(subject: Subject, sweeps: dict[tuple[str, str], list[Cell]], ltr: list[Cell]) -> list[Claim]:
    on = f"{subject.name}: {len(sweeps['first order', 'float32'][0].tokens)} sequences of {subject.long} tokens"
    claims = []
    for order in ("first order", "high order"):
        gaps = [cells.lower(a, b) for a, b in zip(sweeps[order, "float32"], sweeps[order, "float64"], strict=True)]
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
    gap, error = cells.lower(ltr[0], ltr[1])
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


def drawing(subject: Subject, sweeps: dict[tuple[str, str], list[Cell]]) -> Any:
    def draw(sheet: Any) -> None:
        for axes, what in zip(sheet.subplots(1, 2), ("perplexity", "entropy"), strict=True):
            for (order, bits), sweep in sweeps.items():
                style = "o-" if bits == "float64" else "s--"
                colour = "C0" if order == "first order" else "C1"
                bars(
                    axes,
                    [one.steps for one in sweep],
                    [getattr(one, what) for one in sweep],
                    f"{order}, {bits}",
                    style,
                    color=colour,
                )
            axes.set_xscale("log", base=2)
            axes.set_xticks([one.steps for one in sweep], [str(one.steps) for one in sweep])
            axes.set(xlabel="steps N", ylabel=what, title=f"{subject.name}, L = {subject.long}")
            if what == "perplexity":
                axes.legend()

    return draw
