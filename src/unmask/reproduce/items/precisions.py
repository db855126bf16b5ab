"""Table 2: the same sampler with its categorical in 32 bits, in 64, and in 64 truncated as 32 bits are."""

from __future__ import annotations

from typing import Any

from unmask.reproduce import cells, coupled
from unmask.reproduce.cells import Cell, How
from unmask.reproduce.item import Claim, Drawing, ItemResult, Settings, Table
from unmask.reproduce.pictures import bars, level
from unmask.reproduce.subjects import subjects

TITLE = "32-bit, 64-bit and truncated 64-bit categorical sampling"
PAPER = "Table 2, Figure 8, Sec. 5.2"
PRINTED = {"float32": (31.24, 5.17), "float64": (126.11, 5.66), "float64-truncated": (28.64, 5.12)}


def steps(settings: Settings) -> int:
    """N of the runs that draw every number; the paper's is 2,048."""
    return settings.pick(full=2048, fast=512, tiny=32)


def run(settings: Settings) -> ItemResult:
    found, notes = subjects(settings)
    rows: list[tuple[Any, ...]] = []
    measured, claims = [], []
    pictures: dict[str, Drawing] = {}
    for subject in found:
        N = steps(settings)
        by = {precision: coupled.drawn(subject, How("coupled", precision), N, settings) for precision in PRINTED}
        base = coupled.reference(subject, settings)
        more = settings.pick(full=(2048, 10_000, 50_000), fast=(512, 10_000), tiny=(32, 100_000_000))
        law = {
            precision: [coupled.by_law(subject, N, settings, How("law", precision)) for N in more]
            for precision in ("float32", "float64-truncated")
        }
        measured += [*by.values(), *law["float32"], *law["float64-truncated"], base]
        rows += [
            (subject.name, one.how.label, one.steps, *PRINTED[one.how.precision], str(one.perplexity), str(one.entropy))
            for one in (*by.values(), *law["float32"], *law["float64-truncated"])
        ]
        rows.append((subject.name, base.how.label, None, None, None, str(base.perplexity), str(base.entropy)))
        claims += compared(by, law, base)
        pictures[subject.name if pictures else ""] = drawing(by, law, base)
    columns = ("subject", "version", "N", "the paper's perplexity (N = 2,048)", "its entropy", "perplexity", "entropy")
    tables = {"versions": Table(columns, tuple(rows)), "cells": cells.table(measured)}
    return ItemResult(tables, tuple(claims), pictures, tuple(notes))


def compared(by: dict[str, Cell], law: dict[str, list[Cell]], base: Cell) -> list[Claim]:
    double = by["float64"]
    single, cut = (law[precision][-1] for precision in ("float32", "float64-truncated"))
    size = f"{single.tokens.shape[1]} tokens"
    on = f"{base.subject}: {len(single.tokens)} sequences of {size}, by the law, N = {single.steps:,}"
    drawn = f"{base.subject}: {len(double.tokens)} sequences of {size}, every number drawn, N = {double.steps:,}"
    fault, fault_error = cells.lower(single, base)
    same, same_error = cells.lower(cut, single, base)
    apart, apart_error = cells.lower(cut, base)
    right, right_error = cells.lower(double, base)
    return [
        Claim(
            "float32 lowers the perplexity",
            "31.24 against 126.11",
            f"{single.perplexity} against {base.perplexity}; entropy {single.entropy} against {base.entropy}",
            on,
            cells.decided(fault, fault_error),
        ),
        Claim(
            "float64 truncated as float32 behaves as float32",
            "28.64 against 31.24",
            f"{cut.perplexity} against {single.perplexity}; lower by {same:+.2f} +- {same_error:.2f} nats per token, "
            f"of {apart:.2f} in all",
            on,
            cells.decided(apart, apart_error) and same < 0.5 * apart,
        ),
        Claim(
            "float64 is right: neither perplexity nor entropy falls",
            "126.11, 5.66",
            f"{double.perplexity}, {double.entropy}; {right:+.2f} +- {right_error:.2f} nats below {base.how.label}",
            drawn,
            cells.agree(right, right_error, cells.lower(law["float32"][0], base)[0]),
        ),
    ]


def drawing(by: dict[str, Cell], law: dict[str, list[Cell]], base: Cell) -> Drawing:
    def draw(sheet: Any) -> None:
        for axes, what in zip(sheet.subplots(1, 2), ("perplexity", "entropy"), strict=True):
            for i, (precision, one) in enumerate(by.items()):
                bars(axes, [i - 0.2], [getattr(one, what)], f"drawn, N = {one.steps:,}", "s", color=f"C{i}")
                for k, other in enumerate(law.get(precision, [])):
                    bars(axes, [i + 0.15 * k], [getattr(other, what)], f"law, N = {other.steps:,}", "o", color=f"C{i}")
                    axes.annotate(
                        f"{other.steps:,}",
                        (i + 0.15 * k, getattr(other, what).value),
                        fontsize=7,
                        textcoords="offset points",
                        xytext=(5, 3),
                    )
            level(axes, getattr(base, what), base.how.label)
            axes.set(
                xticks=range(len(by)),
                xlim=(-0.5, len(by) - 0.3),
                ylabel=what,
                title=f"{base.subject}: squares drawn, dots by the law",
            )
            axes.set_xticklabels(["32-bit", "64-bit", "64-bit,\ntruncated"])
            axes.grid(axis="x", visible=False)

    return draw
