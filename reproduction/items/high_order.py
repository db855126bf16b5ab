"""Figure 13: the high-order variants of first-hitting sampling for N from L/32 to L, and Lagrange of order 3."""

from __future__ import annotations

from reproduction import cells
from reproduction.cells import PAIRS, How
from reproduction.item import Drawing, ItemResult, Settings, Subject, Table, Tables
from reproduction.pictures import against_steps
from reproduction.subjects import characters, subjects
from reproduction.verdict import Claim, Number, claim

TITLE = "The high-order variants of first-hitting sampling against N"
PAPER = "Figure 13, the appendix on algorithms"
FIRST, EXTRAPOLATE, CORRECT, THIRD = (
    How("parallel", predictor=name) for name in ("first-order", "extrapolate", "correct", "order 3")
)


def steps(length: int, settings: Settings) -> list[int]:
    """The paper's 32 to 1024 of 1024, as the same fractions of this length."""
    return [
        max(1, length // k) for k in settings.pick(full=(32, 16, 8, 4, 2, 1), fast=(16, 8, 4, 2, 1), tiny=(4, 2, 1))
    ]


def run(settings: Settings) -> ItemResult:
    found, notes = subjects(settings, characters)
    measured, pairs = [], []
    pictures: dict[str, Drawing] = {}
    for subject in found:
        num = number(subject, settings)

        def cell(how: How, N: int, subject: Subject = subject, num: int = num) -> cells.Cell:
            return cells.measure(subject, how, N, num, subject.long, settings, paired=True)

        chosen = steps(subject.long, settings)
        sweeps = {how: [cell(how, N) for N in chosen] for how in (FIRST, EXTRAPOLATE, CORRECT, THIRD)}
        measured += [one for sweep in sweeps.values() for one in sweep]
        for i in range(len(chosen)):
            first, ahead, corrected, third = (sweep[i] for sweep in sweeps.values())
            pairs += [
                cells.pair(*two) for two in ((ahead, first), (corrected, first), (ahead, corrected), (third, ahead))
            ]
        base = cells.reference(subject, subject.long, settings) if subject.exact else None
        measured += [base] if base else []
        pictures[subject.suffix] = against_steps(
            {how.label: sweep for how, sweep in sweeps.items()},
            {"the truth": base},
            f"{subject.name}, L = {subject.long}",
            powers=True,
        )
    return ItemResult({"cells": cells.table(measured), "pairs": Table(PAIRS, tuple(pairs))}, pictures, tuple(notes))


def number(subject: Subject, settings: Settings) -> int:
    if subject.exact is None:
        return settings.pick(full=32, fast=4, tiny=8)
    return settings.pick(full=2048, fast=256, tiny=16)


def claims(tables: Tables) -> list[Claim]:
    table, said = tables["pairs"].records(), []
    for name in cells.subjects_of(tables["pairs"]):
        own = [row for row in table if row["subject"] == name]
        L = next(row["L"] for row in tables["cells"].records() if row["subject"] == name)
        on = f"{name}: {own[0]['sequences']} pairs of sequences of L = {L} tokens"

        def nats(a: How, b: How, most: float, least: float = 0, own: list[cells.Row] = own) -> list[Number]:
            """By how many nats per token a is below b, at the N in this range."""
            found = [row for row in own if (row["sampler"], row["against"]) == (a.label, b.label)]
            found = [row for row in found if least <= row["N"] <= most]
            return [
                Number(f"N = {row['N']}, below {row['against']}", row["nats below"], row["error"], row["sequences"])
                for row in found
            ]

        def turned(numbers: list[Number], what: str) -> list[Number]:
            return [Number(f"{one.what.split(',')[0]}, {what}", -(one.value or 0), one.error, one.n) for one in numbers]

        few = [*nats(EXTRAPOLATE, FIRST, L / 8), *nats(EXTRAPOLATE, CORRECT, L / 8)]
        many = [*nats(CORRECT, FIRST, L, L / 4), *turned(nats(EXTRAPOLATE, CORRECT, L, L / 4), "below extrapolate")]
        third = turned(nats(THIRD, EXTRAPOLATE, L / 4), "order 3 above order 2")
        lower = [
            Number(
                f"N = {row['N']}, {row['sampler'].split(', ')[-1]}",
                -row["entropy above"],
                row["its error"],
                row["sequences"],
            )
            for row in own
            if row["against"] == FIRST.label and row["nats below"] > 0
        ]
        judged = {
            ("extrapolation has the lowest perplexity for N <= 128 of 1,024", "N <= L/8"): few,
            ("the predictor-corrector has it for N >= 256 of 1,024", "N >= L/4"): many,
            ("extrapolation beyond the second order degrades", "tend to degrade"): third,
            ("where the perplexity is lower, so is the entropy", "a trade-off"): lower,
        }
        notes = {"N >= L/4": "" if any(row["N"] == L for row in own) else "N = L was not run"}
        said += [
            claim(*told, on, *(one.at_least(0) for one in numbers), note=notes.get(told[1], ""))
            for told, numbers in judged.items()
        ]
    return said
