"""The comparison after the fix once more, on stories, whose true distribution is known: it judges every sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

import unmask
from reproduction import cells
from reproduction.cells import How
from reproduction.item import ItemResult, Settings, Subject, Tables
from reproduction.pictures import against_steps
from reproduction.subjects import oracle
from reproduction.verdict import Claim, claim
from unmask.plan import left_to_right as from_left_to_right

TITLE = "Samples of stories, judged by the distribution that the stories were drawn from"
PAPER = "Figures 9 and 10, on a subject whose truth is known"
EXACT, COLD, GRID = How("parallel"), How("parallel", temperature=0.8), How("ancestral")
LEFT, COLD_LEFT = How("left to right"), How("left to right", temperature=0.8)


def run(settings: Settings) -> ItemResult:
    subject = oracle("tiny", settings.seed) if settings.size == "tiny" else stories()
    L = subject.length
    num, fewer = (settings.pick(full=full, fast=16, tiny=16) for full in (640, 256))
    many, few = settings.pick(full=4096, fast=1024, tiny=64), L * 3 // 4
    one_by_one = cells.measure(subject, EXACT, L, num, L, settings)
    coarse = cells.measure(subject, EXACT, few, fewer, L, settings)
    grid = cells.measure(subject, GRID, many, fewer, L, settings)
    cold = cells.measure(subject, COLD, L, num, L, settings)
    left = [cells.measure(subject, how, None, num, L, settings) for how in (LEFT, COLD_LEFT)]
    truth = cells.measure(subject, How("truth"), None, 2 * num, L, settings)
    table = cells.table([one_by_one, coarse, grid, cold, *left, truth])
    sweeps = {EXACT.label: [coarse, one_by_one], GRID.label: [grid], COLD.label: [cold]}
    picture = against_steps(sweeps, {truth.how.label: truth}, f"{subject.name}, L = {L}, judged by the truth")
    return ItemResult({"cells": table}, {"": picture}, (subject.about,))


def stories() -> Subject:
    """The bundled model, its teacher's distribution as the judge, and itself filled from left to right."""
    from recipes.corpora.stories import law

    from unmask.evaluate.judge.oracle import OracleJudge
    from unmask.loading import load

    model, truth = load("stories"), law()

    def left_to_right(num: int, length: int, seed: int | Sequence[int], **options: Any) -> unmask.Sample:
        return unmask.sample(model.denoiser, num=num, length=length, plan=from_left_to_right, seed=seed, **options)

    def exact(num: int, length: int, seed: int) -> Tensor:
        return truth.rows(seed, "truth", 0, num, length)[0]

    about = "stories: block diffusion with blocks of 2, judged by the distribution of its corpus"
    return Subject("stories", about, model.denoiser, 128, 128, OracleJudge(truth), model.tokenizer.decode,
                   left_to_right, exact, at_once=16)  # fmt: skip


def claims(tables: Tables) -> list[Claim]:
    table = tables["cells"]
    (name,) = cells.subjects_of(table)
    coarse, exact = cells.curve(table, name, EXACT)
    (grid,), (cold,) = cells.curve(table, name, GRID), cells.curve(table, name, COLD)
    (left,), (cold_left,) = cells.curve(table, name, LEFT), cells.curve(table, name, COLD_LEFT)
    truth, on = cells.base_of(table, name), cells.on(exact)
    construction = "by construction: from left to right the model is its teacher, the truth"
    return [
        claim(
            "first-hitting token by token and the reversed process in many steps give the same distribution: within "
            "0.25 nats and 0.1 of entropy",
            "equivalent",
            on,
            cells.below(grid, exact, f"nats that N = {grid['N']:,} is lower").within(-0.25, 0.25),
            cells.above(grid, exact, f"entropy that N = {grid['N']:,} is higher").within(-0.1, 0.1),
        ),
        claim(
            "several tokens in one call cost quality: 0.1 nats or more",
            "fewer steps, higher perplexity",
            on,
            cells.below(exact, coarse, f"nats that N = {coarse['N']} is higher").at_least(0.1),
        ),
        claim(
            "the masked model trails left to right, by 0.1 nats or more",
            "about 100 against below 40",
            on,
            cells.below(left, exact, f"nats, {left['perplexity']:.1f} against {exact['perplexity']:.1f}").at_least(0.1),
            note=construction,
        ),
        claim(
            "from left to right the samples have the true distribution: within 0.15 nats",
            "equivalent",
            f"{on}, {truth['sequences']} of the truth",
            cells.below(left, truth, "nats below the truth").within(-0.15, 0.15),
            note=f"{construction}; equal means are not equal distributions",
        ),
        claim(
            "a lower temperature trades entropy for perplexity, masked and left to right",
            "T in [0.8, 1.0]",
            on,
            cells.below(cold, exact, "nats that T = 0.8 is lower, masked").at_least(0.1),
            cells.above(exact, cold, "entropy that it is lower, masked").at_least(0.02),
            cells.below(cold_left, left, "nats that T = 0.8 is lower, left to right").at_least(0.1),
            cells.above(left, cold_left, "entropy that it is lower, left to right").at_least(0.02),
        ),
    ]
