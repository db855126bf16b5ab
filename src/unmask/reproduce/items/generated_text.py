"""The appendix's generated texts: the same model under each sampler, side by side."""

from __future__ import annotations

from unmask.reproduce import cells, coupled
from unmask.reproduce.cells import Cell, How
from unmask.reproduce.item import Claim, ItemResult, Settings
from unmask.reproduce.subjects import subjects

TITLE = "Generated text under each sampler"
PAPER = "the appendix on generated text, Figure 6"


def run(settings: Settings) -> ItemResult:
    found, notes = subjects(settings)
    texts: dict[str, str] = {}
    measured: list[Cell] = []
    claims = []
    for subject in found:
        L, most, real = subject.length, coupled.many_steps(settings)[-1], coupled.steps(settings)[-1]
        ways: dict[str, tuple[How, int | None]] = {
            "published, float32, by its law": (coupled.MDLM_LAW, most),
            "published, float32": (coupled.MDLM, real),
            "published, float64": (How("coupled", "float64"), settings.pick(full=2048, fast=512, tiny=32)),
            "first-hitting": (How("parallel"), L),
            "first-hitting, corrected": (How("parallel", predictor="correct"), L),
        }
        if subject.left_to_right is not None:
            ways["left to right"] = (How("left to right"), None)
        num = settings.pick(full=64, fast=32, tiny=32)
        by = {
            name: coupled.drawn(subject, how, N, settings)
            if how.kind == "coupled" and N
            else cells.measure(subject, how, N, num, L, settings)
            for name, (how, N) in ways.items()
        }
        measured += by.values()
        for name, cell in by.items():
            heading = f"{subject.name}: {name}" + (f", {cell.steps:,} steps" if cell.steps else "")
            texts[heading] = "\n----\n".join(subject.decode(row) for row in cell.tokens[:2].tolist())
        fault, exact = by["published, float32, by its law"], by["first-hitting"]
        repeats = f"entropy {fault.entropy} in float32 at N = {most:,}, {exact.entropy} by first-hitting"
        says = "float32 text of many steps is less diverse"
        claims.append(
            Claim(
                says, "-", repeats, f"{subject.name}, L = {L}", True if fault.entropy.high < exact.entropy.low else None
            )
        )
    return ItemResult({"cells": cells.table(measured)}, tuple(claims), notes=tuple(notes), texts=texts)
