"""Table 2: the same sampler with its categorical in 32 bits, in 64, and in 64 truncated like 32 bits."""

from __future__ import annotations

from typing import Any

from reproduction import cells
from reproduction.cells import Cell, How
from reproduction.item import Drawing, ItemResult, Settings, Subject, Tables
from reproduction.pictures import bars, level
from reproduction.subjects import subjects
from reproduction.verdict import Claim, claim

TITLE = "32-bit, 64-bit and truncated 64-bit categorical sampling"
PAPER = "Table 2, Figure 8, Sec. 5.2"
PRINTED = {"float32": (31.24, 5.17), "float64": (126.11, 5.66), "float64-truncated": (28.64, 5.12)}


def run(settings: Settings) -> ItemResult:
    found, notes = subjects(settings)
    printed, N = settings.pick(full=(2048, 50_000), fast=(2048, 10_000), tiny=(16, 32))  # the paper's, and more
    measured = []
    pictures: dict[str, Drawing] = {}
    for subject in found:
        # To show that float64 is right takes more than to show that float32 is not.
        few, num, most = (
            settings.pick(full=full, fast=24, tiny=8) for full in ((32, 64, 160) if subject.exact else (32, 128, 128))
        )

        def cell(bits: str, N: int, num: int, subject: Subject = subject) -> Cell:
            return cells.measure(subject, How("coupled", bits), N, num, subject.length, settings)

        by = {bits: cell(bits, N, most if bits == "float64" else num) for bits in PRINTED}
        base = cells.reference(subject, subject.length, settings)
        measured += [*(cell(bits, printed, few) for bits in PRINTED), *by.values(), base]
        pictures[subject.suffix] = drawing(by, base)
    paper = ", ".join(f"{ppl} and {entropy} in {bits}" for bits, (ppl, entropy) in PRINTED.items())
    notes.append(
        f"The paper's perplexities and entropies at N = 2,048: {paper}. Here every number that can win is drawn."
    )
    return ItemResult({"cells": cells.table(measured)}, pictures, tuple(notes))


def claims(tables: Tables) -> list[Claim]:
    table, said = tables["cells"], []
    for name in cells.subjects_of(table):
        single, double = (cells.curve(table, name, How("coupled", bits))[-1] for bits in ("float32", "float64"))
        base = cells.base_of(table, name)
        on = f"{cells.on(single)}, every number drawn, N = {single['N']:,}"
        said.append(
            claim(
                "float32 lowers the perplexity, by 0.1 nats per token or more",
                "31.24 against 126.11",
                on,
                cells.below(single, base, f"fall to {single['perplexity']:.0f}").at_least(0.1),
                cells.above(base, single, "fall of the entropy").at_least(0.02),
            )
        )
        said += [
            claim(
                "float64 truncated as float32 has the fault of float32, between 2/3 and 3/2 of it",
                "28.64 against 31.24",
                on,
                cells.part(cut, single, base, "part of float32's fall").within(2 / 3, 3 / 2),
            )
            for cut in cells.curve(table, name, How("coupled", "float64-truncated"))[-1:]  # where it was measured
        ]
        said.append(
            claim(
                "float64 is right: neither perplexity nor entropy falls, by a third of what float32 does or more",
                "126.11, 5.66",
                on,
                cells.part(double, single, base, "part of float32's fall").within(-1 / 3, 1 / 3),
                cells.above(double, base, "entropy above").within(-0.1, 0.1),
            )
        )
    return said


def drawing(by: dict[str, Cell], base: Cell) -> Drawing:
    def draw(sheet: Any) -> None:
        for axes, what in zip(sheet.subplots(1, 2), ("perplexity", "entropy"), strict=True):
            for i, one in enumerate(by.values()):
                bars(axes, [i], [one], what, f"N = {one.steps:,}", "s", color=f"C{i}")
            level(axes, base, what, base.how.label)
            axes.set(xticks=range(len(by)), xlim=(-0.5, len(by) - 0.5), ylabel=what, title=base.subject)
            axes.set_xticklabels(["32-bit", "64-bit", "64-bit,\ntruncated"])
            axes.grid(axis="x", visible=False)

    return draw
