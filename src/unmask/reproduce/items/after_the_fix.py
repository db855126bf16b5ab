"""Figures 9a and 9b: the samplers in 64 bits, with first-hitting and its high-order variants, and what they cost."""

from __future__ import annotations

from typing import Any

from unmask.reproduce import cells, coupled
from unmask.reproduce.cells import Cell, How
from unmask.reproduce.item import Claim, Drawing, ItemResult, Settings, Subject, Table
from unmask.reproduce.pictures import against_steps
from unmask.reproduce.subjects import subjects

TITLE = "After the fix: 64-bit samplers, first-hitting and its high-order variants, with their times"
PAPER = "Figure 9, Sec. 6.1"
VARIANTS = {name: How("parallel", predictor=name) for name in ("first-order", "extrapolate", "correct")}
EXACT = How("coupled", "float64")


def run(settings: Settings) -> ItemResult:
    found, notes = subjects(settings)
    measured, rows, claims = [], [], []
    pictures: dict[str, Drawing] = {}
    for subject in found:
        L = subject.length
        many = settings.pick(full=(100, 2048), fast=(100, 512), tiny=(4, 32))
        few = sorted({max(1, L // k) for k in settings.pick(full=(16, 8, 4, 2, 1), fast=(8, 4, 2, 1), tiny=(2, 1))})
        num = settings.pick(full=64, fast=32, tiny=4)
        sweeps = {"published, float64": [coupled.drawn(subject, EXACT, N, settings) for N in many]}
        for name, how in VARIANTS.items():
            sweeps[f"first-hitting, {name}"] = [cells.measure(subject, how, N, num, L, settings) for N in few]
        base = coupled.reference(subject, settings)
        ltr = cells.left_to_right(subject, num, L, settings)
        alone = cells.measure(subject, VARIANTS["first-order"], L, 1, L, settings)
        measured += [*(cell for sweep in sweeps.values() for cell in sweep), *([ltr] if ltr else []), base]
        slow = sweeps["published, float64"]
        rows += [
            (subject.name, one.steps, one.nfe, one.seconds, L, alone.seconds, one.seconds / alone.seconds)
            for one in slow
        ]
        fault = cells.lower(coupled.by_law(subject, many[-1], settings), base)[0]  # what float32 does at as many steps
        claims += compared(subject, slow, sweeps["first-hitting, first-order"][-1], base, ltr, rows, fault)
        pictures[subject.name if pictures else ""] = against_steps(
            sweeps, {base.how.label: base}, f"{base.subject}, L = {L}, 64 bits"
        )
    columns = (
        "subject",
        "N, published",
        "its NFE",
        "its seconds",
        "first-hitting's steps",
        "its seconds alone",
        "times faster",
    )
    tables = {"cells": cells.table(measured), "seconds of one sequence": Table(columns, tuple(rows))}
    return ItemResult(tables, tuple(claims), pictures, tuple(notes))


def compared(
    subject: Subject,
    slow: list[Cell],
    exact: Cell,
    base: Cell,
    ltr: Cell | None,
    rows: list[tuple[Any, ...]],
    fault: float,
) -> list[Claim]:
    on = f"{subject.name}: {len(exact.tokens)} sequences of {exact.tokens.shape[1]} tokens"
    gap, error = cells.lower(exact, base)
    flat, flat_error = cells.lower(slow[-1], slow[0], base)
    own = [row for row in rows if row[0] == subject.name]
    return [
        Claim(
            "in 64 bits more steps do not lower perplexity and entropy",
            "5.60 to 5.70 for all models",
            "; ".join(f"{one.perplexity}, {one.entropy} at N = {one.steps:,}" for one in (slow[0], slow[-1])),
            f"{subject.name}: {len(slow[0].tokens)} and {len(slow[-1].tokens)} sequences, every number drawn",
            cells.agree(max(flat, 0.0), flat_error, fault),
        ),
        Claim(
            "token by token, first-hitting has the model's law",
            "theoretically equivalent",
            f"{exact.perplexity} against {base.perplexity}; {-gap:+.3f} +- {error:.3f} nats per token",
            on,
            abs(gap) < 3 * error if subject.exact is not None else None,
        ),
        Claim(
            "first-hitting is up to 20 times faster by the clock",
            "20",
            ", ".join(f"{row[-1]:.1f} at N = {row[1]:,}" for row in own),
            f"{subject.name}, one sequence, this CPU",
            own[-1][-1] > 1,
        ),
        *trailing(subject, exact, ltr, base, on),
    ]


def trailing(subject: Subject, exact: Cell, ltr: Cell | None, base: Cell, on: str) -> list[Claim]:
    """Who is ahead after the fix, where there is a left-to-right counterpart."""
    if ltr is None:
        return []
    lead, error = cells.lower(ltr, exact, base)
    measured = f"{exact.perplexity} against {ltr.perplexity} left to right; entropy {exact.entropy}, {ltr.entropy}"
    if subject.exact is not None:
        says = "masked and left to right an oracle has one law: neither is ahead"
        return [Claim(says, "(about 100 against below 40, trained)", measured, on, abs(lead) < 3 * error)]
    says = "after the fix masked models trail their left-to-right counterpart"
    return [Claim(says, "about 100 against below 40", measured, on, cells.decided(lead, error))]
