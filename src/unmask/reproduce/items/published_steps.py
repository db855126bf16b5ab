"""Figures 7a and 7b: perplexity and entropy against N with the published float32 samplers, and left to right."""

from __future__ import annotations

from typing import Any

from unmask.reproduce import cells
from unmask.reproduce.cells import Cell, How
from unmask.reproduce.item import Claim, Drawing, Result, Settings
from unmask.reproduce.subjects import Subject, subjects

TITLE = "Perplexity and entropy against N with the published float32 samplers"
PAPER = "Figure 7, Sec. 5.1"
MDLM, LAW = How("coupled", "float32"), How("law", "float32")
SEDD, SEDD_LAW = How("sedd", "float32"), How("sedd law", "float32")


def steps(settings: Settings) -> tuple[int, ...]:
    """N of the runs that draw every number: they cost N L V of them."""
    return settings.pick(full=(100, 1000, 2048), fast=(100, 512), tiny=(4, 32))


def many_steps(settings: Settings) -> tuple[int, ...]:
    """N of the runs by their law, which cost the same at any N."""
    return settings.pick(
        full=(100, 500, 1000, 2048, 5000, 10_000, 50_000), fast=(100, 512, 10_000, 50_000), tiny=(32, 100_000_000)
    )


def number(subject: Subject, how: How, N: int, settings: Settings) -> int:
    """Sequences of a cell of N coupled steps: as many as can be afforded, and where the fault is told, as it takes."""
    few, some, many = settings.pick(full=(4, 12, 32), fast=(4, 4, 12), tiny=(4, 4, 4))
    if settings.size == "full" and subject.exact is not None and how.precision != "float64-truncated":
        few, some = 16, 24  # which show a fault of 0.5 nats per token by 3 standard errors
    return few if N > 1000 else some if N > 100 else many


def coupled(subject: Subject, how: How, N: int, settings: Settings) -> Cell:
    """A cell for which every number is drawn."""
    return cells.measure(subject, how, N, number(subject, how, N, settings), subject.length, settings)


def by_law(subject: Subject, N: int, settings: Settings, how: How = LAW) -> Cell:
    """A cell for which steps in which nothing happens are not made."""
    num = settings.pick(full=128, fast=64, tiny=32)
    return cells.measure(subject, how, N, num, subject.length, settings)


def reference(subject: Subject, settings: Settings) -> Cell:
    return cells.reference(subject, settings.pick(full=2000, fast=1000, tiny=200), subject.length, settings)


def run(settings: Settings) -> Result:
    found, notes = subjects(settings)
    measured, claims = [], []
    pictures: dict[str, Drawing] = {}
    for subject in found:
        real = [coupled(subject, MDLM, N, settings) for N in steps(settings)]
        law = [by_law(subject, N, settings) for N in many_steps(settings)]
        few = settings.pick(full=(100, 1000) if subject.sedd else (100,), fast=(100,), tiny=(4,))
        sedd = [coupled(subject, SEDD, N, settings) for N in few]
        score = [by_law(subject, N, settings, SEDD_LAW) for N in many_steps(settings)] if subject.sedd else []
        base = reference(subject, settings)
        ar = cells.left_to_right(subject, settings.pick(full=64, fast=16, tiny=8), subject.length, settings)
        measured += [*real, *sedd, *law, *score, *([ar] if ar else []), base]
        claims += [*compared(subject, real, law, base), *falling_score(subject, score, base)]
        curves = [
            (law, "MDLM's, float32, by its law", "o-"),
            (real, "MDLM's, every number drawn", "s"),
            (score, "SEDD's, by its law", "v--"),
            (sedd, "SEDD's (Tweedie), every number drawn", "D"),
        ]
        drawn = [curve for curve in curves if curve[0]]
        pictures[subject.name if pictures else ""] = drawing(subject, drawn, ar, base)
    notes.append(
        "By its law: exact sampling in which a drawn token is refused with probability 1 - c/(e^c - 1), c = e^-M / p "
        "for odds p against the mask. That is what coupled float32 steps do, without drawing N L V numbers "
        "(unmask.samplers.law)."
    )
    return Result({"cells": cells.table(measured)}, tuple(claims), pictures, tuple(notes))


def compared(subject: Subject, real: list[Cell], law: list[Cell], base: Cell) -> list[Claim]:
    first, last = law[0], law[-1]
    fall, fall_error = cells.lower(last, first, base)
    gap, gap_error = cells.lower(last, base)
    passes = [cell for cell in law if cells.decided(*cells.lower(cell, base))]
    e1, e2, e0 = first.entropy, last.entropy, base.entropy
    on = f"{subject.name}: {len(last.tokens)} sequences of {last.tokens.shape[1]} tokens, by the law"
    told = f"{gap:.2f} +- {gap_error:.2f} nats per token below {base.how.label} at N = {last.steps:,}"
    told += f"; told apart from N = {passes[0].steps:,} on" if passes else ""
    agree = [(one, other, *cells.lower(one, other, base)) for one in real for other in law if one.steps == other.steps]
    return [
        Claim(
            "in float32 the perplexity falls as N grows",
            "below 15 near N = 50,000",
            f"{first.perplexity} at N = {first.steps:,}, {last.perplexity} at N = {last.steps:,}",
            on,
            cells.decided(fall, fall_error),
        ),
        Claim("and passes below an exact sampler's", "AR's from about 2,000", told, on, cells.decided(gap, gap_error)),
        Claim(
            "the entropy is lower and keeps decreasing",
            "always lower than AR's",
            f"{e1} at N = {first.steps:,}, {e2} at N = {last.steps:,}; {base.how.label} {e0}",
            on,
            True if e2.high < e0.low else (False if e2.low > e0.high else None),
        ),
        Claim(
            "(the law above is that of the published sampler, every number drawn)",
            "-",
            ", ".join(
                f"{gap:+.2f} +- {error:.2f} nats per token at N = {one.steps:,} ({len(one.tokens)} sequences)"
                for one, _, gap, error in agree
            ),
            f"{subject.name}: real draws against {len(law[0].tokens)} sequences by the law",
            same_law(agree, base),
        ),
    ]


def falling_score(subject: Subject, score: list[Cell], base: Cell) -> list[Claim]:
    """The same fall with the network trained as SEDD's, where there is one."""
    if not score:
        return []
    first, last = score[0], score[-1]
    return [
        Claim(
            "and so it is for SEDD",
            "a text of SEDD's without diversity at N = 50,000",
            f"{first.perplexity} at N = {first.steps:,}, {last.perplexity} at N = {last.steps:,}; "
            f"entropy {first.entropy}, {last.entropy}",
            f"{subject.name}: {len(last.tokens)} sequences of {last.tokens.shape[1]} tokens, by the law",
            cells.decided(*cells.lower(last, first, base)),
        )
    ]


def same_law(pairs: list[tuple[Cell, Cell, float, float]], base: Cell) -> bool | None:
    """Whether real draws and the law agree: gaps at all N, weighted by how well each would show a missing fault."""
    faults = [cells.lower(law, base)[0] for _, law, *_ in pairs]
    weight = sum((fault / error) ** 2 for fault, (*_, error) in zip(faults, pairs, strict=True))
    missing = sum(fault * gap / error**2 for fault, (*_, gap, error) in zip(faults, pairs, strict=True)) / weight
    return cells.agree(missing, weight**-0.5, 1.0)


def drawing(subject: Subject, curves: list[tuple[list[Cell], str, str]], ar: Cell | None, base: Cell) -> Drawing:
    """Curves are cells, their label and their style."""

    def draw(sheet: Any) -> None:
        for axes, what in zip(sheet.subplots(1, 2), ("perplexity", "entropy"), strict=True):
            for part, label, style in curves:
                bars(axes, [cell.steps for cell in part], [getattr(cell, what) for cell in part], label, style)
            level(axes, getattr(base, what), base.how.label)
            if ar is not None and subject.exact is None:  # over an oracle it has the truth's law
                level(axes, getattr(ar, what), "left to right", color="C4")
            axes.set(xscale="log", xlabel="steps N", ylabel=f"{what}, {subject.name}, L = {base.tokens.shape[1]}")
        axes.legend(fontsize=7.5)

    return draw


def bars(axes: Any, x: Any, intervals: list[Any], label: str, style: str = "o-", **options: Any) -> None:
    """A curve with its intervals."""
    y = [interval.value for interval in intervals]
    low = [max(interval.value - interval.low, 0.0) for interval in intervals]
    high = [max(interval.high - interval.value, 0.0) for interval in intervals]
    axes.errorbar(x, y, (low, high), fmt=style, capsize=2, elinewidth=1, label=label, **options)


def level(axes: Any, interval: Any, label: str, color: str = "0.35") -> None:
    """A horizontal line for what does not depend on N."""
    axes.axhline(interval.value, color=color, ls=":", lw=1.3, label=label)
    axes.axhspan(interval.low, interval.high, color=color, alpha=0.12, lw=0)
