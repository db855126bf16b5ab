"""Figure 3a: the time of a sequence against N with the cache, and what takes it."""

from __future__ import annotations

import math
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

import unmask
from reproduction.item import Drawing, ItemResult, Settings, Table, Tables
from reproduction.verdict import Claim, Number, claim
from unmask import plan
from unmask.loading import load
from unmask.networks.ddit import DDiT, preset
from unmask.samplers import published

TITLE = "Sampling time of one sequence against N under the cache"
PAPER = "Figure 3a"
RANDOM = "a DDiT of random weights"


class Timed:
    """A network that counts its calls and their time."""

    def __init__(self, network: Any) -> None:
        self.network, self.seconds = network, 0.0
        self.vocab_size: int = network.vocab_size
        self.mask_id: int = network.mask_id

    def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        started = perf_counter()
        logits: Tensor = self.network(tokens, rows=rows)
        self.seconds += perf_counter() - started
        return logits


SAMPLERS: dict[str, dict[str, Any]] = {
    "published, float32": {"sampler": published.Coupled("float32")},
    "published, float64": {"sampler": published.Coupled("float64")},
    "plan.ancestral": {"plan": plan.ancestral},
    "plan.first_hitting": {"plan": plan.first_hitting},
}
COLUMNS = ("network", "sampler", "N", "NFE", "draws of rows", "seconds", "in the network", "elsewhere")


def run(settings: Settings) -> ItemResult:
    vocabulary = settings.pick(full=50_257, fast=50_257, tiny=64)
    length = settings.pick(full=32, fast=32, tiny=8)
    steps = settings.pick(full=(8, 32, 128, 512), fast=(8, 32, 128, 256), tiny=(4, 16))
    torch.manual_seed(settings.seed)
    network = DDiT(preset(settings.pick(full="mini", fast="mini", tiny="tiny"), vocabulary, length)).eval()
    rows, sizes = measured(RANDOM, network, length, steps, settings.seed), [(RANDOM, vocabulary, length)]
    if settings.size == "full":
        kjv = load("kjv").denoiser
        rows += measured("kjv", kjv, 128, tuple(4 * N for N in steps), settings.seed)
        sizes.append(("kjv", kjv.vocab_size, 128))
    table = Table(COLUMNS, tuple(rows))
    pictures = {}
    for name, V, L in sizes:
        by = {sampler: table.where(network=name, sampler=sampler) for sampler in SAMPLERS}
        pictures["" if name == RANDOM else name] = drawing(by, f"{name}, L = {L}, V = {V:,}, batch of 1")
    return ItemResult({"seconds": table, "sizes": Table(("network", "V", "L"), tuple(sizes))}, pictures)


def measured(name: str, network: Any, length: int, steps: tuple[int, ...], seed: int) -> list[tuple[Any, ...]]:
    """The costs of one sequence by each sampler and number of steps."""
    rows = []
    for sampler, options in SAMPLERS.items():
        for N in steps:
            timed = Timed(network)
            count = None if sampler == "plan.first_hitting" else N
            made = unmask.sample(timed, length=length, seed=seed, steps=count, **options)
            costs = (made.calls, int(made.ncs.sum()), made.seconds, timed.seconds, made.seconds - timed.seconds)
            rows.append((name, sampler, N, *costs))
    return rows


def claims(tables: Tables) -> list[Claim]:
    """Claims on counts for each network, and one on seconds, which has no verdict."""
    sizes, table = tables["sizes"].records(), tables["seconds"]
    said = [one for size in sizes for one in counted(size, table)]
    times = [
        replace(grown(table, size["network"], "seconds"), what=f"the same of {size['network']}") for size in sizes[1:]
    ]
    said.insert(1, claim("and so does the sampling time", "with N instead of the NFE", f"{said[0].on}, this CPU",
                         grown(table, sizes[0]["network"], "seconds"), *times))  # fmt: skip
    return said


def counted(size: dict[str, Any], seconds: Table) -> list[Claim]:
    name, L = size["network"], size["L"]
    own, hitting = (
        seconds.where(network=name, sampler=f"plan.{plan}").records()[-1] for plan in ("ancestral", "first_hitting")
    )
    on = f"{name}, V = {size['V']:,}, L = {L}, one sequence"
    return [
        claim("when N >> L the draws scale with N, and the NFE does not", "-", on,
              grown(seconds, name, "draws of rows").within(0.9, 1.1), grown(seconds, name, "NFE").at_most(0.5)),
        claim("the same law without drawing empty steps: as many rows as tokens", "-", on,
              Number(f"rows of plan.ancestral, N = {own['N']}, by L", own["draws of rows"] / L).within(1, 1)),
        claim("first-hitting takes L calls, however many steps it stands for", "L", on,
              Number("calls by L", hitting["NFE"] / L).within(1, 1)),
    ]  # fmt: skip


def grown(seconds: Table, network: str, what: str) -> Number:
    """The power of N with which a cost of the published float32 sampler grows between its two largest N."""
    first, last = seconds.where(network=network, sampler="published, float32").records()[-2:]
    power = math.log(last[what] / first[what]) / math.log(last["N"] / first["N"])
    return Number(f"power of N that {what} grow with, N = {first['N']} to {last['N']}", power)


def drawing(by: dict[str, Table], title: str) -> Drawing:
    def draw(sheet: Any) -> None:
        left, right = sheet.subplots(1, 2)
        for i, (name, part) in enumerate(by.items()):
            left.loglog(part.column("N"), part.column("seconds"), "o-", color=f"C{i}", label=name)
        left.set(xlabel="steps N", ylabel="seconds per sequence", title=title)
        left.legend()
        part = by["published, float32"]
        right.stackplot(
            part.column("N"),
            part.column("in the network"),
            part.column("elsewhere"),
            labels=("network", "categorical sampling"),
            colors=("#9ecae1", "#f4a582"),
        )
        right.set(xlabel="steps N", ylabel="seconds", title="where the published float32 sampler spends it")
        right.legend(loc="upper left")

    return draw
