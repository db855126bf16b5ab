"""The appendix's generated texts: the same model under each sampler, side by side."""

from __future__ import annotations

from reproduction import cells
from reproduction.cells import Cell, How
from reproduction.item import ItemResult, Settings, Tables
from reproduction.items.published_steps import MDLM, drawn_steps
from reproduction.subjects import subjects
from reproduction.verdict import Claim, claim

TITLE = "Generated text under each sampler"
PAPER = "the appendix on generated text, Figure 6"


def run(settings: Settings) -> ItemResult:
    found, notes = subjects(settings)
    texts: dict[str, str] = {}
    measured: list[Cell] = []
    for subject in found:
        L, N = subject.length, drawn_steps(settings)[-1]
        # As in published_steps and after_the_fix: the same cells.
        num = settings.pick(full=32, fast=24, tiny=8)
        exact, wide = settings.pick(full=(300 if subject.exact else 64, 50_000), fast=(200, 10_000), tiny=(20, 32))
        ways: list[tuple[How, int | None, int]] = [
            (MDLM, N, num),
            (How("coupled"), wide, num),
            (How("parallel"), L, exact),
            (How("parallel", predictor="correct"), L, settings.pick(full=32 if subject.exact else 8, fast=32, tiny=8)),
        ]
        if subject.left_to_right is not None:
            ways.append((How("left to right"), None, exact))
        for how, steps, many in ways:
            cell = cells.measure(subject, how, steps, many, L, settings)
            measured.append(cell)
            heading = f"{subject.name}: {how.label}" + (f", {steps:,} steps" if steps else "")
            texts[heading] = "\n----\n".join(subject.decode(row) for row in cell.tokens[:2].tolist())
    return ItemResult({"cells": cells.table(measured)}, notes=tuple(notes), texts=texts)


def claims(tables: Tables) -> list[Claim]:
    said = []
    for name in cells.subjects_of(tables["cells"]):
        fault, exact = (cells.curve(tables["cells"], name, how)[-1] for how in (MDLM, How("parallel")))
        on = f"{cells.on(fault)}, N = {fault['N']:,}; {exact['sequences']} by first-hitting"
        less = cells.above(exact, fault, "entropy below first-hitting's").at_least(0.02)
        said.append(claim("float32 text of many steps is less diverse, by 0.02 nats of entropy or more", "-", on, less))
    return said
