"""Figure 2: the Beta densities of Eq. 8 at L = 1024, how narrow they are and where they peak."""

from __future__ import annotations

from typing import Any

import numpy as np

from reproduction.item import Drawing, ItemResult, Settings, Table, Tables
from reproduction.mixture import BetaMixture
from reproduction.verdict import Claim, Number, claim

TITLE = "The Beta densities of the time given n masked tokens"
PAPER = "Figure 2, Eq. 8"
L = 1024
SHOWN = (1, 64, 256, 512, 768, 960, 1024)


def run(settings: Settings) -> ItemResult:
    points = settings.pick(full=2001, fast=1001, tiny=201)
    alpha = np.linspace(0, 1, points)
    laws = {n: BetaMixture(n, L) for n in SHOWN}
    densities = {n: law.density(alpha) for n, law in laws.items()}
    every = [BetaMixture(n, L) for n in range(1, L + 1)]
    widest = max(law.variance for law in every)
    off = max(abs(law.mode_time - law.n / L) for law in every)
    moments = Table(
        ("n", "mode of alpha", "(L-n)/(L-1)", "mode of t", "n/L", "standard deviation", "largest allowed"),
        tuple(
            (
                n,
                float(alpha[densities[n].argmax()]),
                law.mode,
                law.mode_time,
                n / L,
                law.variance**0.5,
                law.variance_bound**0.5,
            )
            for n, law in laws.items()
        ),
    )
    bounds = Table(
        ("L", "grid's step", "largest variance", "1/(4(L+2))", "furthest mode of t from n/L"),
        ((L, 1 / (points - 1), widest, 1 / (4 * (L + 2)), off),),
    )
    curves = Table(
        ("alpha", *(f"n = {n}" for n in SHOWN)),
        tuple(zip(alpha.tolist(), *(d.tolist() for d in densities.values()), strict=True)),
    )
    tables = {"moments": moments, "bounds": bounds}
    return ItemResult(tables, {"": drawing(alpha, densities)}, data={"densities": curves})


def claims(tables: Tables) -> list[Claim]:
    bound = tables["bounds"].records()[0]
    away = [abs(row["mode of alpha"] - row["(L-n)/(L-1)"]) for row in tables["moments"].records()]
    peaks = Number("furthest peak from it", max(away)).at_most(bound["grid's step"])
    variance = Number("largest variance", bound["largest variance"]).at_most(bound["1/(4(L+2))"])
    mode = Number("furthest from n/L", bound["furthest mode of t from n/L"]).at_most(1 / bound["L"] + 1e-12)
    on = f"all n at L = {bound['L']}"
    return [
        claim("the peak is at (L-n)/(L-1)", "(L-n)/(L-1)", "the densities drawn, to a step of their grid", peaks),
        claim("the variance is at most 1/(4(L+2))", f"{bound['1/(4(L+2))']:.4g}", on, variance),
        claim(
            "under the linear schedule the mode of t is close to the masked ratio n/L: within 1/L", "close", on, mode
        ),
    ]


def drawing(alpha: Any, densities: dict[int, Any]) -> Drawing:
    def draw(sheet: Any) -> None:
        axes = sheet.subplots()
        for n, density in densities.items():
            axes.plot(alpha, density, label=f"n = {n}")
        axes.set(
            xlabel="alpha",
            ylabel="density of Beta(L - n + 1, n)",
            ylim=(0, 70),
            xlim=(-0.01, 1.01),
            title=f"alpha given n masked tokens of L = {L}",
        )
        axes.legend(loc="upper center", ncols=2)

    return draw
