"""Figure 15 and Sec. 5.3 (2): in a coupled float32 step sure positions are unmasked first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from unmask.noise import Streams, generator
from unmask.predict import log_mean
from unmask.reproduce.item import Claim, ItemResult, Settings, Subject, Table
from unmask.reproduce.subjects import oracle
from unmask.samplers import published
from unmask.theory import effective_temperature, maximum_gumbel, shifted_probabilities, unmasking_probability

TITLE = "Prioritised unmasking: how often a coupled float32 step unmasks a position, by its entropy"
PAPER = "Figure 15, Sec. 5.3"
M = maximum_gumbel("float32")


def run(settings: Settings) -> ItemResult:
    subject = oracle(settings.size, settings.seed)
    mu = predictions(subject, settings.pick(full=48, fast=24, tiny=6), settings)
    entropy = -torch.xlogy(mu, mu).sum(-1)
    mu, entropy = mu[entropy.argsort()], entropy.sort().values
    N = settings.pick(full=1000, fast=500, tiny=50)
    draws = settings.pick(full=3000, fast=600, tiny=2000)  # of each position
    counted = {kind: unmasked(mu, N, kind, draws, settings.seed) for kind in ("float32", "float64-truncated")}
    laws = {"float32": grid(mu.numpy(), N), "float64-truncated": closed(mu.numpy(), N)}
    rows = by_thirds(entropy, counted, laws, N, draws)
    columns = (
        "draw",
        "entropy of the positions",
        "unmasked",
        "an exact draw's",
        "part of the exact rate",
        "by theory",
        "error",
    )
    by_n = sweep(mu.numpy(), entropy.numpy(), settings)
    sure, unsure = rows[0], rows[2]
    off = max(abs(row[4] - row[5]) / max(row[6], 1e-9) for row in rows if row[2] > 5)
    last = by_n.rows[-1]
    on = (
        f"{len(mu)} positions of the {subject.name} at V = {mu.shape[1]:,}, one step of N = {N:,}, {draws:,} draws each"
    )
    told = sure[4] - unsure[4] > 3 * math.hypot(sure[6], unsure[6])
    claims = (
        Claim(
            "positions have unequal chances to be unmasked, by the network's output",
            "-",
            f"{sure[4]:.2f} of the exact rate at {sure[1]:.1f} nats, {unsure[4]:.2f} at {unsure[1]:.1f}",
            on,
            True if told else None,
        ),
        Claim(
            "which is Prop. 5.2 (truncated float64), and c/(e^c - 1) for real float32",
            "-",
            f"within {off:.1f} standard errors",
            on,
            off < 4.5,
        ),
        Claim(
            "the effect grows with N",
            "-",
            f"{last[2]:.2f} at the surest and {last[3]:.2f} at the least sure, N = {last[0]:,}",
            "Prop. 5.2 at the same positions",
            bool(last[2] > last[3]),
        ),
    )
    tables = {"one step, counted": Table(columns, tuple(rows)), "by N, from theory": by_n}
    return ItemResult(tables, claims, {"": drawing(entropy.numpy(), mu.numpy(), rows, by_n, N)})


def by_thirds(entropy: Any, counted: dict[str, Any], laws: dict[str, Any], N: int, draws: int) -> list[tuple[Any, ...]]:
    """What was counted and what theory says, over the surest third of the positions, the next and the least sure."""
    thirds = np.array_split(np.arange(len(entropy)), 3)
    rows = []
    for kind, hits in counted.items():
        for part in thirds:
            rows.append(
                (
                    kind,
                    float(entropy[part].mean()),
                    int(hits[part].sum()),
                    len(part) * draws / N,
                    float(hits[part].mean() / draws * N),
                    float(laws[kind][part].mean()),
                    math.sqrt(float(hits[part].sum())) / len(part) / draws * N,
                )
            )
    return rows


def predictions(subject: Subject, positions: int, settings: Settings) -> Any:
    """mu [K, V] at masked positions of exact samples that are half masked, spread over the entropies that occur."""
    assert subject.exact is not None
    x = subject.exact(positions * 4, subject.length, settings.seed)
    hidden = torch.rand(x.shape, generator=generator(1, settings.seed, "half masked")) < 0.5
    hidden[:, 0] = True
    rows = hidden.double().multinomial(1, generator=generator(2, settings.seed, "half masked"))
    canvas = torch.where(hidden, subject.model.mask_id, x)
    mu = log_mean(subject.model(canvas, rows=rows)[:, 0]).exp()
    order = (-torch.xlogy(mu, mu).sum(-1)).argsort()
    return mu[order[torch.linspace(0, len(mu) - 1, positions).long()]]


def unmasked(mu: Any, N: int, kind: str, draws: int, seed: int) -> Any:
    """How often each position leaves the mask in so many draws of the published step at t = 1: exactly, with 1/N."""
    weights = torch.cat([mu / N, torch.full((len(mu), 1), 1 - 1 / N, dtype=mu.dtype)], 1)
    pick, hits = published.race(kind), np.zeros(len(mu))
    at_once = max(1, 2**21 // mu.shape[1])
    starts = range(0, draws, at_once)
    keys = Streams.of(seed, len(mu)).at(f"prioritised, {kind}", len(starts)).keys
    for i in range(len(mu)):
        for start, key in zip(starts, keys[i].unsqueeze(1), strict=True):
            rows = min(at_once, draws - start)
            noise = published.TorchRand(key, places=rows)
            hits[i] += int((pick(weights[i].expand(rows, -1), noise) != mu.shape[1]).sum())
    return hits


def closed(mu: Any, N: int) -> Any:
    """Prop. 5.2: the part of the exact rate, from Gumbels conditioned on g <= M."""
    return unmasking_probability(mu, np.full(len(mu), 1 / N), np.zeros(len(mu)), M) * N


def grid(mu: Any, N: int) -> Any:
    """The same for float32 uniforms, which round what exceeds M down to M: a token's rate p becomes p c / (e^c - 1)."""
    p = mu / N / (1 - 1 / N)
    c = np.minimum(np.exp(-M) / np.maximum(p, 1e-300), 700.0)
    leave = (p * c / np.expm1(c)).sum(-1)
    return leave / (1 + leave) * N


def sweep(mu: Any, entropy: Any, settings: Settings) -> Table:
    """By N: the part of the exact rate at the surest and the least sure position, and the tokens' temperature there."""
    rows = []
    for N in settings.pick(
        full=(100, 500, 1000, 5000, 10_000, 50_000), fast=(100, 1000, 10_000, 50_000), tiny=(100, 1000)
    ):
        ends = mu[[0, -1]]
        ratio, real = closed(ends, N), grid(ends, N)
        law = np.concatenate([ends / N, np.full((2, 1), 1 - 1 / N)], 1)
        shifted = shifted_probabilities(law, M)[:, :-1]
        heat = effective_temperature(ends, shifted / shifted.sum(-1, keepdims=True))
        rows.append(
            (
                N,
                float(entropy[0]),
                float(ratio[0]),
                float(ratio[1]),
                float(entropy[-1]),
                float(real[0]),
                float(real[1]),
                float(heat[0]),
                float(heat[1]),
            )
        )
    columns = (
        "N",
        "entropy of the surest",
        "its rate (Prop. 5.2)",
        "the least sure one's",
        "its entropy",
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
        for colour, kind in (("C0", "float64-truncated"), ("C1", "float32")):
            part = [row for row in rows if row[0] == kind]
            left.errorbar(
                [row[1] for row in part],
                [row[4] for row in part],
                [row[6] for row in part],
                fmt="s",
                color=colour,
                capsize=3,
                label=f"counted, {kind}",
            )
        left.axhline(1, color="0.5", lw=1, ls="--")
        left.set(
            xlabel="entropy of the position, nats",
            ylabel="unmasking, part of the exact rate",
            title=f"one step of N = {N:,}",
            ylim=(0, None),
        )
        left.legend(loc="lower right")
        for column, label, style in (
            ("its rate (Prop. 5.2)", "surest, Prop. 5.2", "C2-"),
            ("surest, float32 grid", "surest, grid", "C2--"),
            ("the least sure one's", "least sure, Prop. 5.2", "C4-"),
            ("least sure, float32 grid", "least sure, grid", "C4--"),
        ):
            right.semilogx(by_n.column("N"), by_n.column(column), style, label=label)
        right.set(xlabel="steps N", ylabel="part of the exact rate", ylim=(0, 1.05), title="by N")
        right.legend()

    return draw
