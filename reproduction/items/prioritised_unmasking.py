"""Figure 15 and Sec. 5.3 (2): in a coupled float32 step confident positions are unmasked first."""

from __future__ import annotations

import hashlib
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import unmask
from reproduction.item import ItemResult, Settings, Subject, Table, Tables
from reproduction.keep import kept
from reproduction.rare import races
from reproduction.subjects import oracle
from reproduction.verdict import Claim, Number, claim
from unmask.noise import generator
from unmask.predict import log_mean
from unmask.theory import effective_temperature, maximum_gumbel, shifted_probabilities, unmasking_probability

TITLE = "Prioritised unmasking: how often a coupled float32 step unmasks a position, by its entropy"
PAPER = "Figure 15, Sec. 5.3"
M = maximum_gumbel("float32")
KINDS = ("float32", "float64-truncated", "float64")
COUNTED = (
    "draw",
    "N",
    "third",
    "entropy",
    "positions",
    "draws of each",
    "unmasked",
    "part of the exact rate",
    "by theory",
)


def run(settings: Settings) -> ItemResult:
    subject = oracle(settings.size, settings.seed)
    mu = predictions(subject, settings.pick(full=48, fast=24, tiny=6), settings)
    entropy = -torch.xlogy(mu, mu).sum(-1)
    mu, entropy = mu[entropy.argsort()], entropy.sort().values
    grids = settings.pick(full=(1000, 10_000), fast=(1000, 10_000), tiny=(50, 500))
    events = settings.pick(full=300, fast=60, tiny=40)  # of an exact draw, per position
    ways = [(kind, N) for kind in KINDS for N in grids]

    def hits_of(way: tuple[str, int]) -> Any:
        return counted_of(mu, *way, events, settings)

    with ThreadPoolExecutor(settings.workers) as pool:
        counts = dict(zip(ways, pool.map(hits_of, ways), strict=True))
    rows = []
    for kind in KINDS:
        for N in grids:
            hits = counts[kind, N]
            law = closed(mu.numpy(), N) if kind == "float64-truncated" else grid(mu.numpy(), N)
            law = np.ones(len(mu)) if kind == "float64" else law
            for third, part in enumerate(np.array_split(np.arange(len(mu)), 3)):
                counted = int(hits[part].sum())
                rows.append((kind, N, third, float(entropy[part].mean()), len(part), events * N, counted,
                             counted / len(part) / events, float(law[part].mean())))  # fmt: skip
    by_n = sweep(mu.numpy(), entropy.numpy(), settings)
    tables = {"one step, counted": Table(COUNTED, tuple(rows)), "by N, from theory": by_n}
    sizes = Table(("subject", "positions", "V"), ((subject.name, len(mu), mu.shape[1]),))
    return ItemResult({**tables, "sizes": sizes}, {"": drawing(entropy.numpy(), mu.numpy(), rows, by_n, grids[-1])})


def claims(tables: Tables) -> list[Claim]:
    rows, size = tables["one step, counted"].records(), tables["sizes"].records()[0]
    few, many = sorted({row["N"] for row in rows})

    def rate(kind: str, N: int, third: int) -> Number:
        """Events are rare, so their number is Poisson-distributed."""
        row = next(r for r in rows if (r["draw"], r["N"], r["third"]) == (kind, N, third))
        hits = row["unmasked"]
        return Number(f"{kind}, {('sure', 'middle', 'unsure')[third]}, N = {N:,}", row["part of the exact rate"],
                      math.sqrt(max(hits, 1)) * row["part of the exact rate"] / max(hits, 1), max(hits, 2))  # fmt: skip

    def apart(kind: str, N: int) -> Number:
        sure, unsure = rate(kind, N, 0), rate(kind, N, 2)
        assert None not in (sure.value, unsure.value)
        value = (sure.value or 0) - (unsure.value or 0)
        what = f"{sure.value:.2f} at sure positions, {unsure.value:.2f} at unsure ones: difference, {kind}, N = {N:,}"
        return Number(what, value, math.hypot(sure.error or 0, unsure.error or 0), min(sure.n, unsure.n))

    def by_theory(kind: str) -> list[Number]:
        found = []
        for row in (row for row in rows if row["draw"] == kind):
            one = rate(kind, row["N"], row["third"])
            found.append(
                Number(one.what, (one.value or 0) / row["by theory"], (one.error or 0) / row["by theory"], one.n)
            )
        return [one.within(0.9, 1.1) for one in found]

    on = f"{size['positions']} positions of the {size['subject']} at V = {size['V']:,}, one step, by thirds"
    wide, narrow = apart("float32", many), apart("float32", few)
    grown = Number(f"difference at N = {many:,} above that at N = {few:,}", (wide.value or 0) - (narrow.value or 0),
                   math.hypot(wide.error or 0, narrow.error or 0), min(wide.n, narrow.n))  # fmt: skip
    return [
        claim("in float32 positions have unequal chances to be unmasked: by 0.1 of the exact rate or more", "-", on,
              wide.at_least(0.1)),
        claim("the unmasked part is c/(e^c - 1) for float32, within 10%", "-", on, *by_theory("float32")),
        claim("and Prop. 5.2 for truncated float64, within 10%", "Prop. 5.2", on, *by_theory("float64-truncated")),
        claim("float64 treats all alike, within 10%", "-", on, *by_theory("float64")),
        claim("the effect grows with N: by 0.1 or more", "-", on, grown.at_least(0.1)),
    ]  # fmt: skip


def predictions(subject: Subject, positions: int, settings: Settings) -> Tensor:
    """mu [K, V] at masked positions of half-masked exact samples, spread over the range of entropies."""
    assert subject.exact is not None
    x = subject.exact(positions * 4, subject.length, settings.seed)
    hidden = torch.rand(x.shape, generator=generator(1, settings.seed, "half masked")) < 0.5
    hidden[:, 0] = True
    rows = hidden.double().multinomial(1, generator=generator(2, settings.seed, "half masked"))
    canvas = torch.where(hidden, subject.model.mask_id, x)
    mu = log_mean(subject.model(canvas, rows=rows)[:, 0]).exp()
    order = (-torch.xlogy(mu, mu).sum(-1)).argsort()
    return mu[order[torch.linspace(0, len(mu) - 1, positions).long()]]


def counted_of(mu: Tensor, kind: str, N: int, events: int, settings: Settings) -> Any:
    """``unmasked``, or its stored result."""
    name = hashlib.sha256(
        repr((unmask.__version__, mu.shape, settings.size, settings.seed, kind, N, events)).encode()
    ).hexdigest()[:24]
    path = Path(settings.cells) / f"unmasked-{name}.pt" if settings.cells else None
    found = kept(path, lambda: {"hits": unmasked(mu, N, kind, events * N, settings.seed)})
    return found["hits"].numpy()


def unmasked(mu: Tensor, N: int, kind: str, draws: int, seed: int) -> Tensor:
    """How often each position leaves the mask in this many draws of the published step at t = 1; exactly, 1/N."""
    hits, at_once = torch.zeros(len(mu), dtype=torch.int64), max(1, 2**19 // len(mu))
    for i, start in enumerate(range(0, draws, at_once)):
        leave = torch.full((min(at_once, draws - start),), 1 / N, dtype=torch.float64)
        left, _ = races(mu, leave, 1 - leave, generator(i, seed, f"prioritised, {kind}, {N}"), kind)
        hits += left.sum(0)
    return hits


def closed(mu: Any, N: int) -> Any:
    """Prop. 5.2: the fraction of the exact rate, for Gumbels conditioned on g <= M."""
    return unmasking_probability(mu, np.full(len(mu), 1 / N), np.zeros(len(mu)), M) * N


def grid(mu: Any, N: int) -> Any:
    """The same for float32, which rounds E = -log u up to multiples of e^-M: odds p become p c / (e^c - 1)."""
    p = mu / N / (1 - 1 / N)
    c = np.minimum(np.exp(-M) / np.maximum(p, 1e-300), 700.0)
    leave = (p * c / np.expm1(c)).sum(-1)
    return leave / (1 + leave) * N


def sweep(mu: Any, entropy: Any, settings: Settings) -> Table:
    """By N: the fraction of the exact rate at the most and least certain positions, and the tokens' temperature."""
    rows = []
    for N in settings.pick(full=(100, 1000, 5000, 10_000, 50_000), fast=(100, 1000, 10_000, 50_000), tiny=(100, 1000)):
        ends = mu[[0, -1]]
        ratio, real = closed(ends, N), grid(ends, N)
        law = np.concatenate([ends / N, np.full((2, 1), 1 - 1 / N)], 1)
        shifted = shifted_probabilities(law, M)[:, :-1]
        heat = effective_temperature(ends, shifted / shifted.sum(-1, keepdims=True))
        rows.append((N, *(float(v) for pair in (entropy[[0, -1]], ratio, real, heat) for v in pair)))
    columns = (
        "N",
        "entropy, surest",
        "entropy, least sure",
        "surest, Prop. 5.2",
        "least sure, Prop. 5.2",
        "surest, float32 grid",
        "least sure, float32 grid",
        "temperature, surest",
        "temperature, least sure",
    )
    return Table(columns, tuple(rows))


def drawing(entropy: Any, mu: Any, rows: list[tuple[Any, ...]], by_n: Table, N: int) -> Any:
    def draw(sheet: Any) -> None:
        left, right = sheet.subplots(1, 2)
        left.plot(entropy, closed(mu, N), ".", color="C0", label="Prop. 5.2")
        left.plot(entropy, grid(mu, N), ".", color="C1", label="c/(e^c - 1), the float32 grid")
        for colour, kind in (("C0", "float64-truncated"), ("C1", "float32"), ("C2", "float64")):
            part = [row for row in rows if row[:2] == (kind, N)]
            errors = [row[7] / math.sqrt(max(row[6], 1)) for row in part]
            x, y = [row[3] for row in part], [row[7] for row in part]
            left.errorbar(x, y, errors, fmt="s", color=colour, capsize=3, label=f"counted, {kind}")
        left.axhline(1, color="0.5", lw=1, ls="--")
        left.set(xlabel="entropy of the position, nats", ylabel="unmasking, part of the exact rate", ylim=(0, None))
        left.set_title(f"one step of N = {N:,}")
        left.legend(loc="lower left", fontsize=7)
        for column, style in (("surest, Prop. 5.2", "C3-"), ("surest, float32 grid", "C3--"),
                              ("least sure, Prop. 5.2", "C4-"), ("least sure, float32 grid", "C4--")):  # fmt: skip
            right.semilogx(by_n.column("N"), by_n.column(column), style, label=column)
        right.set(xlabel="steps N", ylabel="part of the exact rate", ylim=(0, 1.05), title="by N")
        right.legend(fontsize=7)

    return draw
