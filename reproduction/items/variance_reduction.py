"""Figure 12: the effect of low-discrepancy and importance sampling on the variance of the loss, and the weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reproduction.item import Drawing, ItemResult, Settings, Table, Tables
from reproduction.subjects import characters
from reproduction.verdict import Claim, claim, mean
from unmask import objective, timing
from unmask.noise import generator

TITLE = "Variance of the loss: independent, low-discrepancy and importance-sampled counts"
PAPER = "Figure 12, the appendix on variance reduction and on low-discrepancy samplers"
INDEPENDENT, VDM, STRATIFIED, WEIGHTED = "independent", "VDM's comb", "stratified (MDLM)", "importance sampling"
MEMORY = 10  # values per n, as in the paper
Counts = Callable[[torch.Generator], tuple[Tensor, Tensor]]


def run(settings: Settings) -> ItemResult:
    length = settings.pick(full=64, fast=48, tiny=8)
    batches, batch, seeds = settings.pick(full=(150, 64, 8), fast=(60, 32, 6), tiny=(20, 8, 4))
    subject = characters(settings.size, settings.seed)
    assert subject.exact is not None
    data = subject.exact(2000, length, settings.seed)
    rows = []
    for seed in range(seeds):
        adaptive = timing.AdaptiveCount(length, memory=MEMORY)
        warm(adaptive, subject.model, data, batch, seed)
        ways: dict[str, Counts] = {
            INDEPENDENT: lambda g: uniform(timing.independent, batch, length, g),
            VDM: lambda g: uniform(timing.vdm, batch, length, g),
            STRATIFIED: lambda g: uniform(timing.stratified, batch, length, g),
            WEIGHTED: lambda g, a=adaptive: a.draw(batch, g),  # type: ignore[misc]
        }
        for name, counts in ways.items():
            losses = torch.tensor([
                batch_loss(subject.model, data, counts, batch, generator(i, settings.seed, seed, name),
                           adaptive if name == WEIGHTED else None)
                for i in range(batches)
            ])  # fmt: skip
            rows.append((name, seed, float(losses.mean()), float(losses.var())))
    table = Table(("counts n", "seed", "mean loss, nats per token", "variance of a batch's loss"), tuple(rows))
    curve = Table(("n", "p_n L"), tuple((n + 1, float(w) * length) for n, w in enumerate(adaptive.probabilities())))
    size = Table(("length", "batch", "batches"), ((length, batch, batches),))
    note = (
        "The loss with updated p is unbiased by proof: p depends on earlier batches alone, so given them a draw n ~ p "
        "with weight 1 / (L p_n) has the mean of the uniform one. What updating may bias is the gradient's direction "
        "over several steps, not the loss."
    )
    return ItemResult(
        {"variance": table, "sizes": size}, {"": drawing(table, curve)}, (note,), data={"importance weights": curve}
    )


def claims(tables: Tables) -> list[Claim]:
    by: dict[str, list[dict[str, Any]]] = {}
    for row in tables["variance"].records():
        by.setdefault(row["counts n"], []).append(row)
    variance = {name: [row["variance of a batch's loss"] for row in rows] for name, rows in by.items()}
    loss = {name: [row["mean loss, nats per token"] for row in rows] for name, rows in by.items()}

    def logs(a: str, b: str) -> Any:
        return mean(f"log of {a} by {b}", (math.log(x / y) for x, y in zip(variance[a], variance[b], strict=True)))

    size = tables["sizes"].records()[0]
    runs = f"{len(loss[VDM])} runs of {size['batches']} batches of {size['batch']}"
    on = f"an oracle of characters at L = {size['length']}, {runs}"
    bias = mean("relative difference", (a / b - 1 for a, b in zip(loss[WEIGHTED], loss[INDEPENDENT], strict=True)))
    return [
        claim("the low-discrepancy sampler notably reduces the variance of the loss: to 2/3 or less", "notably", on,
              logs(STRATIFIED, INDEPENDENT).at_most(math.log(2 / 3))),
        claim("adaptive importance sampling reduces it", "reduces", f"{on}; memory {MEMORY}, p updated",
              logs(WEIGHTED, INDEPENDENT).at_most(0)),
        claim("to a level comparable to the low-discrepancy sampler's: within a factor of 2", "comparable",
              f"{on}; memory {MEMORY}, p updated", logs(WEIGHTED, STRATIFIED).within(-math.log(2), math.log(2))),
        claim("(the paper suspects a bias) with updated p the loss is unbiased: within 2%", "a hypothesis",
              f"{on}; memory {MEMORY}, p updated", bias.within(-0.02, 0.02)),
    ]  # fmt: skip


def drawing(table: Table, curve: Table) -> Drawing:
    def draw(sheet: Any) -> None:
        left, right = sheet.subplots(1, 2)
        names = list(dict.fromkeys(table.column("counts n")))
        for i, name in enumerate(names):
            values = table.where(**{"counts n": name}).column("variance of a batch's loss")
            left.plot(values, [i] * len(values), "o")
        left.set(yticks=range(len(names)), xlabel="variance of a batch's loss, all runs", xscale="log")
        left.set_yticklabels(names)
        left.invert_yaxis()
        right.plot(curve.column("n"), curve.column("p_n L"), color="C1")
        right.axhline(1, color="0.5", lw=1, ls="--", label="uniform")
        right.set(xlabel="masked tokens n", ylabel="p_n / uniform", title="importance weights", ylim=(0, None))
        right.legend()

    return draw


def uniform(times: timing.Times, batch: int, length: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    return timing.count(times(batch, random), length), torch.ones(batch, dtype=torch.float64)


def batch_loss(
    model: Any, data: Tensor, counts: Counts, batch: int, random: torch.Generator, adaptive: timing.AdaptiveCount | None
) -> float:
    """One step's training loss in nats per token (Eq. 7), with fresh data and counts; p is updated."""
    x0 = data[torch.randint(len(data), (batch,), generator=random)]
    n, weight = counts(random)
    losses = objective.nelbo_by_count(model, x0, n, generator=random) / data.shape[1]
    if adaptive is not None:
        adaptive.update(n, losses)
    return float((weight * losses).mean())


def warm(adaptive: timing.AdaptiveCount, model: Any, data: Tensor, batch: int, seed: int) -> None:
    """n is uniform until each has its values, as in the paper."""
    i = 0
    while bool((adaptive.seen < adaptive.memory).any()):
        batch_loss(model, data, lambda g: adaptive.draw(batch, g, timing.stratified), batch, generator(i, seed, "warm"),
                   adaptive)  # fmt: skip
        i += 1
