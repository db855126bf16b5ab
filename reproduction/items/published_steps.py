"""Figures 7a and 7b: perplexity and entropy against N with the published float32 samplers, and left to right."""

from __future__ import annotations

from reproduction import cells
from reproduction.cells import How, Row
from reproduction.item import Drawing, ItemResult, Settings, Tables
from reproduction.pictures import against_steps
from reproduction.subjects import subjects
from reproduction.verdict import Claim, Number, claim

TITLE = "Perplexity and entropy against N with the published float32 samplers"
PAPER = "Figure 7, Sec. 5.1"
MDLM, MDLM_LAW = How("coupled", "float32"), How("law", "float32")
SEDD_LAW = How("sedd law", "float32")
FAR = (1_000_000,)  # steps in which a crossing that is not seen before may be: by the law alone
STYLES = {MDLM.label: {"style": "s"}, MDLM_LAW.label: {"style": "o-"}, SEDD_LAW.label: {"style": "v--"}}


def law_steps(settings: Settings) -> tuple[int, ...]:
    """N of the simulated runs, which cost the same at any N."""
    return settings.pick(full=(100, 2048, 10_000, 50_000), fast=(100, 10_000, 50_000), tiny=(32, 1000, 100_000_000))


def drawn_steps(settings: Settings) -> tuple[int, ...]:
    """N of the runs that draw every number that can win."""
    return settings.pick(full=(100, 500, 2048, 10_000, 50_000), fast=(100, 10_000), tiny=(32, 1000))


def run(settings: Settings) -> ItemResult:
    found, notes = subjects(settings)
    measured = []
    pictures: dict[str, Drawing] = {}
    for subject in found:
        L, num = subject.length, settings.pick(full=32, fast=24, tiny=8)
        of_law = settings.pick(full=300 if subject.exact else 32, fast=64, tiny=32)
        law, drawn = law_steps(settings), drawn_steps(settings)
        ends = law[0], law[-1]
        law = law if subject.exact else (*ends, *FAR)  # a network is slower
        most = settings.pick(full=32 if subject.exact else 128, fast=24, tiny=8)  # of the run that is compared
        curves = {
            MDLM_LAW: [cells.measure(subject, MDLM_LAW, N, 64 if N in FAR else of_law, L, settings) for N in law],
            MDLM: [cells.measure(subject, MDLM, N, most if drawn[-1] == N else num, L, settings) for N in drawn],
        }
        if subject.sedd:
            curves[SEDD_LAW] = [cells.measure(subject, SEDD_LAW, N, num, L, settings) for N in (drawn[0], drawn[-1])]
        base = cells.reference(subject, L, settings)
        ar = cells.left_to_right(subject, settings.pick(full=64, fast=16, tiny=8), L, settings)
        measured += [*(cell for curve in curves.values() for cell in curve), *([ar] if ar else []), base]
        # For an oracle, left-to-right sampling has the true distribution.
        levels = {base.how.label: base, "left to right": ar if subject.exact is None else None}
        pictures[subject.suffix] = against_steps(
            {how.label: curve for how, curve in curves.items()}, levels, f"{subject.name}, L = {L}", styles=STYLES
        )
    notes.append(
        "By its law: exact sampling in which a drawn token is refused with probability 1 - c/(e^c - 1), c = e^-M / p "
        "for odds p against the mask (unmask.samplers.law). The others draw every number that can win "
        "(reproduction.rare)."
    )
    return ItemResult({"cells": cells.table(measured)}, pictures, tuple(notes))


def claims(tables: Tables) -> list[Claim]:
    table = tables["cells"]
    return [one for name in cells.subjects_of(table) for one in _claims(name, tables)]


def _claims(name: str, tables: Tables) -> list[Claim]:
    table = tables["cells"]
    drawn, law, score = (cells.curve(table, name, how) for how in (MDLM, MDLM_LAW, SEDD_LAW))
    first, last, base = drawn[0], drawn[-1], cells.base_of(table, name)
    on = f"{cells.on(last)}, N = {first['N']:,} and {last['N']:,}, drawn"
    known = base["sampler"] == How("truth").label  # for an oracle, left-to-right sampling has the true distribution
    ar = base if known else next(iter(cells.curve(table, name, How("left to right"))), None)
    said = [
        claim(
            "in float32 the perplexity falls as N grows, by 0.1 nats per token or more",
            "below 15 near N = 50,000",
            on,
            cells.below(last, first, f"fall from {first['perplexity']:.0f} to {last['perplexity']:.0f}").at_least(0.1),
        ),
        *crossing(last, ar, on),
        *(further(row, ar) for row in law if ar is not None and row["N"] in FAR),
        *(_below_own(last, base, on) if ar is not base else []),
        claim(
            "(the law that other items use has the fault of real draws, within a half)",
            "-",
            f"{cells.on(last)} drawn, {min(row['sequences'] for row in law)} by the law",
            missing(drawn, law, base).within(-0.5, 0.5),
        ),
    ]
    if score:
        fall = cells.below(score[-1], score[0], f"fall to {score[-1]['perplexity']:.0f} at N = {score[-1]['N']:,}")
        on = f"{cells.on(score[-1])}, by the law"
        paper = "a text of SEDD's without diversity at N = 50,000"
        said.append(claim("and so it is for SEDD", paper, on, fall.at_least(0.1)))
    return said


def crossing(last: Row, ar: Row | None, on: str) -> list[Claim]:
    """The published sampler against left to right, as in the paper; nothing where there is no such model."""
    if ar is None:
        return []
    below = cells.below(last, ar, f"nats below {ar['sampler']}").at_least(0.1)
    seen = below.value is not None and below.value > 0
    return [
        claim(
            "and passes below left to right, by 0.1 nats or more",
            "AR's from about 2,000",
            on,
            below,
            note="" if seen else f"the crossing is not seen up to N = {last['N']:,}",
        ),
        claim(
            "the entropy falls below left to right's, by 0.02 or more",
            "always lower than AR's",
            on,
            cells.above(ar, last, f"below {ar['sampler']}'s {ar['entropy']:.3f}").at_least(0.02),
        ),
    ]


def further(far: Row, ar: Row) -> Claim:
    """More steps than the paper has, by the law: is there a crossing for a model whose curve does not cross before?"""
    return claim(
        f"(and with {far['N']:,} steps, by its law)",
        "-",
        cells.on(far),
        cells.below(far, ar, f"nats below {ar['sampler']}").at_least(0.1),
    )


def _below_own(last: Row, base: Row, on: str) -> list[Claim]:
    """The published sampler against exact sampling of the same network, which the figure of the paper does not have."""
    return [
        claim(
            "(perplexity and entropy fall below those of exact sampling of the same network, by 0.1 nats and 0.02)",
            "-",
            on,
            cells.below(last, base, f"nats below {base['sampler']}").at_least(0.1),
            cells.above(base, last, f"below {base['sampler']}'s {base['entropy']:.3f}").at_least(0.02),
        )
    ]


def missing(drawn: list[Row], law: list[Row], base: Row) -> Number:
    """What fraction of the simulated error real draws lack, over all N, weighted by precision."""
    parts = []
    for one in drawn:
        for other in (row for row in law if row["N"] == one["N"]):
            fault, gap = cells.below(other, base), cells.below(other, one)
            assert fault.value is not None and gap.value is not None and gap.error
            parts.append((fault.value, gap.value, gap.error))
    weight = sum((fault / error) ** 2 for fault, _, error in parts)
    value = sum(fault * gap / error**2 for fault, gap, error in parts) / weight
    return Number("part of the law's fault that real draws lack", value, weight**-0.5, drawn[-1]["sequences"])
