"""Figures 9a and 9b: the samplers in 64 bits, with first-hitting and its high-order variants, and their cost."""

from __future__ import annotations

from reproduction import cells
from reproduction.cells import How
from reproduction.item import Drawing, ItemResult, Settings, Subject, Table, Tables
from reproduction.pictures import against_steps
from reproduction.subjects import subjects
from reproduction.verdict import Claim, Number, claim, ratio
from unmask.samplers import published
from unmask.sampling import sample

TITLE = "After the fix: 64-bit samplers, first-hitting and its high-order variants, with their times"
PAPER = "Figure 9, Sec. 6.1"
MDLM, SEDD, UNCACHED = How("coupled"), How("sedd"), How("uncached")
VARIANTS = {name: How("parallel", predictor=name) for name in ("first-order", "extrapolate", "correct")}
CACHE = (
    "subject",
    "N",
    "sequences",
    "tokens",
    "tokens that differ",
    "NFE with the cache",
    "NFE without",
    "seconds with",
)


def run(settings: Settings) -> ItemResult:
    found, notes = subjects(settings)
    measured, rows = [], []
    pictures: dict[str, Drawing] = {}
    for subject in found:
        L = subject.length
        many = settings.pick(full=(100, 50_000), fast=(100, 10_000), tiny=(4, 32))
        few = sorted({max(1, L // k) for k in settings.pick(full=(8, 4, 1), fast=(4, 1), tiny=(2, 1))})
        num = settings.pick(full=32 if subject.exact else 64, fast=32, tiny=8)  # for the figure
        real = settings.pick(full=96, fast=24, tiny=8)
        sweeps = {how.label: [cells.measure(subject, how, N, real, L, settings) for N in many] for how in (MDLM, SEDD)}
        slow = settings.pick(full=4, fast=4, tiny=4)
        sweeps[UNCACHED.label] = [cells.measure(subject, UNCACHED, many[0], slow, L, settings)]
        for how in VARIANTS.values():
            sweeps[how.label] = [cells.measure(subject, how, N, num, L, settings) for N in few]
        whole = settings.pick(full=300 if subject.exact else 128, fast=200, tiny=20)
        exact = cells.measure(subject, How("parallel"), L, whole, L, settings)
        base = cells.reference(subject, L, settings)
        ltr = cells.left_to_right(subject, whole, L, settings)
        single = cells.measure(subject, How("coupled", "float32"), many[-1], real, L, settings)
        measured += [
            *(cell for sweep in sweeps.values() for cell in sweep),
            *([ltr] if ltr else []),
            single,
            exact,
            base,
        ]
        rows.append(cached(subject, settings))
        title = f"{base.subject}, L = {L}, 64 bits"
        pictures[subject.suffix] = against_steps(sweeps, {base.how.label: base}, title)
    tables = {"cells": cells.table(measured), "the cache": Table(CACHE, tuple(rows))}
    return ItemResult(tables, pictures, tuple(notes))


def cached(subject: Subject, settings: Settings) -> tuple[object, ...]:
    """The published float64 sampler with its cache and without: the same seeds, compared token by token."""
    L, num = subject.length, settings.pick(full=2, fast=1, tiny=4)
    N = settings.pick(full=128, fast=48, tiny=16)
    made = [
        sample(subject.model, sampler=published.Coupled("float64", cache=cache), steps=N, num=1, length=L, seed=i)
        for cache in (True, False)
        for i in range(num)
    ]
    ours, theirs = made[:num], made[num:]
    differ = sum(int((a.tokens != b.tokens).sum()) for a, b in zip(ours, theirs, strict=True))
    calls = [sum(one.calls for one in part) / num for part in (ours, theirs)]
    return (subject.name, N, num, num * L, differ, *calls, sum(one.seconds for one in ours) / num)


def claims(tables: Tables) -> list[Claim]:
    table = tables["cells"]
    return [one for name in cells.subjects_of(table) for one in _claims(name, tables)]


def _claims(name: str, tables: Tables) -> list[Claim]:
    table, base = tables["cells"], cells.base_of(tables["cells"], name)
    mdlm, sedd = cells.curve(table, name, MDLM), cells.curve(table, name, SEDD)
    fault = cells.below(cells.curve(table, name, How("coupled", "float32"))[-1], base)
    on = f"{cells.on(mdlm[-1])}, every number drawn"
    exact = max(cells.curve(table, name, VARIANTS["first-order"]), key=lambda row: (row["N"], row["sequences"]))
    ltr = cells.curve(table, name, "left to right")
    cache = next(row for row in tables["the cache"].records() if row["subject"] == name)
    N = mdlm[-1]["N"]
    said = [
        claim(
            "in 64 bits the perplexity does not fall with more steps, by half of what float32 does or more",
            "around 100",
            on,
            *(
                ratio(f"{kind}'s fall to N = {N:,} by float32's", cells.below(rows[-1], rows[0]), fault).within(
                    -0.5, 0.5
                )
                for kind, rows in (("MDLM", mdlm), ("SEDD", sedd))
            ),
        ),
        claim(
            "the entropy is normal again: within 0.1 of exact sampling",
            "5.60 to 5.70 for all models",
            on,
            cells.above(mdlm[-1], base, f"MDLM, N = {N:,}").within(-0.1, 0.1),
            cells.above(sedd[-1], base, f"SEDD, N = {N:,}").within(-0.1, 0.1),
        ),
        claim(
            "the cache changes nothing but the calls, for a network that does not read the time",
            "no more than L calls",
            f"{name}: {cache['sequences']} sequences, N = {cache['N']}",
            Number(f"of {cache['tokens']} tokens differ", cache["tokens that differ"]).within(0, 0),
            Number("calls by L with it", cache["NFE with the cache"] / mdlm[-1]["L"]).at_most(1),
            Number("calls by N without it", cache["NFE without"] / cache["N"]).at_least(1),
        ),
        claim(
            "first-hitting is up to 20 times faster by the clock",
            "20",
            f"{name}, this CPU beside other work",
            Number(
                f"times: {cache['seconds with']:.3g} s a sequence published at N = {cache['N']}",
                cache["seconds with"] / exact["seconds per sequence"],
            ),
        ),
    ]
    if cells.known_law(table, name):
        says = "token by token, masked and left to right, samples have the model's law: within 0.15 nats"
        same = [cells.below(row, base, f"{row['sampler']}, nats below the truth") for row in (exact, *ltr)]
        said.append(claim(says, "equivalent", cells.on(exact), *(one.within(-0.15, 0.15) for one in same)))
    elif ltr:
        lead = cells.below(ltr[0], exact, f"nats, {ltr[0]['perplexity']:.0f} against {exact['perplexity']:.0f}")
        says = "after the fix masked models trail their left-to-right counterpart, by 0.1 nats or more"
        said.append(claim(says, "about 100 against below 40", cells.on(exact), lead.at_least(0.1)))
    return said
