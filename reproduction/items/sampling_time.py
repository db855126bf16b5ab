"""Figure 3a: the time of a sequence against N with the cache, and what takes it."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

import unmask
from reproduction.item import Drawing, ItemResult, Settings, Table, Tables
from reproduction.verdict import Claim, Number, claim
from unmask import plan
from unmask.networks.ddit import DDiT, preset
from unmask.samplers import published

TITLE = "Sampling time of one sequence against N under the cache"
PAPER = "Figure 3a"


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


def run(settings: Settings) -> ItemResult:
    vocabulary = settings.pick(full=50_257, fast=50_257, tiny=64)
    length = settings.pick(full=32, fast=32, tiny=8)
    steps = settings.pick(full=(8, 32, 128, 512), fast=(8, 32, 128, 256), tiny=(4, 16))
    torch.manual_seed(settings.seed)
    network = DDiT(preset(settings.pick(full="mini", fast="mini", tiny="tiny"), vocabulary, length)).eval()
    samplers: dict[str, dict[str, Any]] = {
        "published, float32": {"sampler": published.Coupled("float32")},
        "published, float64": {"sampler": published.Coupled("float64")},
        "plan.ancestral": {"plan": plan.ancestral},
        "plan.first_hitting": {"plan": plan.first_hitting},
    }
    rows = []
    for name, options in samplers.items():
        for N in steps:
            timed = Timed(network)
            count = None if name == "plan.first_hitting" else N
            made = unmask.sample(timed, length=length, seed=settings.seed, steps=count, **options)
            costs = (made.calls, int(made.ncs.sum()), made.seconds, timed.seconds, made.seconds - timed.seconds)
            rows.append((name, N, *costs))
    columns = ("sampler", "N", "NFE", "draws of rows", "seconds", "in the network", "elsewhere")
    table = Table(columns, tuple(rows))
    by = {name: table.where(sampler=name) for name in samplers}
    size = Table(("V", "L"), ((vocabulary, length),))
    title = f"L = {length}, V = {vocabulary:,}, batch of 1"
    return ItemResult({"seconds": table, "sizes": size}, {"": drawing(by, title)})


def claims(tables: Tables) -> list[Claim]:
    size = tables["sizes"].records()[0]
    by = {name: tables["seconds"].where(sampler=name).records() for name in tables["seconds"].column("sampler")}
    first, last = by["published, float32"][-2:]
    own, hitting = by["plan.ancestral"][-1], by["plan.first_hitting"][-1]
    on = f"a DDiT of random weights, V = {size['V']:,}, L = {size['L']}, one sequence"
    growth = last["N"] / first["N"]

    def grown(what: str) -> Number:
        power = math.log(last[what] / first[what]) / math.log(growth)
        return Number(f"power of N that {what} grow with, N = {first['N']} to {last['N']}", power)

    return [
        claim("when N >> L the draws scale with N, and the NFE does not", "-", on,
              grown("draws of rows").within(0.9, 1.1), grown("NFE").at_most(0.5)),
        claim("and so does the sampling time", "with N instead of the NFE", f"{on}, this CPU", grown("seconds")),
        claim("the same law without drawing empty steps: as many rows as tokens", "-", on,
              Number(f"rows of plan.ancestral, N = {own['N']}, by L", own["draws of rows"] / size["L"]).within(1, 1)),
        claim("first-hitting takes L calls, however many steps it stands for", "L", on,
              Number("calls by L", hitting["NFE"] / size["L"]).within(1, 1)),
    ]  # fmt: skip


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
