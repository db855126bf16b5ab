"""Figures 7a and 7b: perplexity and entropy against N with the published float32 samplers, and left to right."""

from __future__ import annotations

from unmask.reproduce import cells, coupled
from unmask.reproduce.cells import Cell
from unmask.reproduce.item import Claim, Drawing, ItemResult, Settings, Subject
from unmask.reproduce.pictures import against_steps
from unmask.reproduce.subjects import subjects

TITLE = "Perplexity and entropy against N with the published float32 samplers"
PAPER = "Figure 7, Sec. 5.1"
LAW = "MDLM's, float32, by its law"
DRAWN = "MDLM's, every number drawn"
SCORE = "SEDD's, by its law"
SCORE_DRAWN = "SEDD's (Tweedie), every number drawn"
STYLES = {LAW: {"style": "o-"}, DRAWN: {"style": "s"}, SCORE: {"style": "v--"}, SCORE_DRAWN: {"style": "D"}}


def run(settings: Settings) -> ItemResult:
    found, notes = subjects(settings)
    measured, claims = [], []
    pictures: dict[str, Drawing] = {}
    for subject in found:
        many = coupled.many_steps(settings)
        few = settings.pick(full=(100, 1000) if subject.sedd else (100,), fast=(100,), tiny=(4,))
        curves = {
            LAW: [coupled.by_law(subject, N, settings) for N in many],
            DRAWN: [coupled.drawn(subject, coupled.MDLM, N, settings) for N in coupled.steps(settings)],
            SCORE: [coupled.by_law(subject, N, settings, coupled.SEDD_LAW) for N in many] if subject.sedd else [],
            SCORE_DRAWN: [coupled.drawn(subject, coupled.SEDD, N, settings) for N in few],
        }
        base = coupled.reference(subject, settings)
        ar = cells.left_to_right(subject, settings.pick(full=64, fast=16, tiny=8), subject.length, settings)
        measured += [*curves[DRAWN], *curves[SCORE_DRAWN], *curves[LAW], *curves[SCORE], *([ar] if ar else []), base]
        claims += [*compared(subject, curves[DRAWN], curves[LAW], base), *falling_score(subject, curves[SCORE], base)]
        # Over an oracle left to right has the truth's law.
        levels = {base.how.label: base, "left to right": ar if subject.exact is None else None}
        pictures[subject.name if pictures else ""] = against_steps(
            {name: curve for name, curve in curves.items() if curve},
            levels,
            f"{subject.name}, L = {base.tokens.shape[1]}",
            styles=STYLES,
        )
    notes.append(
        "By its law: exact sampling in which a drawn token is refused with probability 1 - c/(e^c - 1), c = e^-M / p "
        "for odds p against the mask. That is what coupled float32 steps do, without drawing N L V numbers "
        "(unmask.samplers.law)."
    )
    return ItemResult({"cells": cells.table(measured)}, tuple(claims), pictures, tuple(notes))


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
