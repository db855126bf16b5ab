"""Figure 3a: the time of a sequence against N under the cache, and where it goes."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask import plan
from unmask.models.ddit import DDiT, preset
from unmask.reproduce.item import Claim, Drawing, ItemResult, Settings, Table
from unmask.samplers import published

TITLE = "Sampling time of one sequence against N under the cache"
PAPER = "Figure 3a"


class Timed:
    """A network that counts its calls and the seconds in them."""

    def __init__(self, network: Any) -> None:
        self.network, self.seconds = network, 0.0
        self.vocab_size: int = network.vocab_size
        self.mask_id: int = network.mask_id

    def __call__(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        started = time.perf_counter()
        logits: Tensor = self.network(tokens, rows=rows)
        self.seconds += time.perf_counter() - started
        return logits


def run(settings: Settings) -> ItemResult:
    vocabulary = settings.pick(full=50_257, fast=50_257, tiny=64)
    length = settings.pick(full=64, fast=32, tiny=8)
    steps = settings.pick(full=(16, 64, 256, 1024), fast=(8, 32, 128, 256), tiny=(4, 16))
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
            rows.append((name, N, made.calls, made.seconds, timed.seconds, made.seconds - timed.seconds))
    table = Table(("sampler", "N", "NFE", "seconds", "in the network", "elsewhere"), tuple(rows))
    by = {name: table.where(sampler=name) for name in samplers}
    first, last = (by["published, float32"].rows[i] for i in (-2, -1))
    growth, grid = last[3] / first[3], last[1] / first[1]
    hitting = by["plan.first_hitting"].column("seconds")[-1]
    flat = [seconds / hitting for seconds in by["plan.ancestral"].column("seconds")]
    on = f"a DDiT of random weights, V = {vocabulary:,}, L = {length}, one sequence, this CPU"
    claims = (
        Claim(
            "when N >> L the sampling time scales with N instead of the NFE",
            "-",
            f"{growth:.1f} times the time for {grid:.1f} times the steps and {last[2] / first[2]:.2f} times the calls",
            on,
            growth > 0.5 * grid if grid > 1 and settings.size != "tiny" else None,
        ),
        Claim(
            "the same sampler without drawing empty steps",
            "-",
            f"plan.ancestral at N = {steps[-1]:,} takes {flat[-1]:.2f} of first-hitting's time",
            on,
            None,
        ),
    )
    return ItemResult({"seconds": table}, claims, {"": drawing(by, f"L = {length}, V = {vocabulary:,}, batch of 1")})


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
