"""The efficiency analysis: the cost model's two worked examples, and the same with t1 and t2 measured here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from reproduction.item import ItemResult, Settings, Table, Tables
from reproduction.verdict import Claim, Number, claim
from unmask import draw
from unmask.network import inference
from unmask.networks.ddit import DDiT, preset
from unmask.noise import Streams, generator
from unmask.samplers import published
from unmask.theory import DIFFSOUND, PAPER_CASE, PAPER_CASE_2048, expected_nfe, speedup

TITLE = "What first-hitting sampling gains: the cost model, worked and measured"
PAPER = "the appendix on the efficiency gain"
V = 50_257


def run(settings: Settings) -> ItemResult:
    cases = (
        ("the paper's, N = 10,000", PAPER_CASE, 973, "17, called 20"),
        ("the paper's, N = 2,048", PAPER_CASE_2048, None, "5"),
        ("DiffSound, N = 100", DIFFSOUND, 93, "1.07"),
    )
    worked = Table(
        ("case", "L", "|V|", "t1 : L|V|t2", "NFE, the paper", "NFE", "speed-up, the paper", "speed-up"),
        tuple(
            (name, c.length, c.vocabulary, c.ratio, nfe, c.nfe, printed, c.speedup) for name, c, nfe, printed in cases
        ),
    )
    size, length = settings.pick(full=("small", 1024), fast=("mini", 256), tiny=("tiny", 8))
    vocabulary = settings.pick(full=V, fast=V, tiny=64)
    t1, t2 = network_time(size, length, vocabulary, settings), draw_times(vocabulary, settings)
    rows = []
    for kind, seconds in t2.items():
        for N in (2048, 10_000):
            gain = speedup(N, length, vocabulary, t1=t1, t2=seconds)
            rows.append((kind, N, expected_nfe(N, length), t1, seconds, t1 / (length * vocabulary * seconds), gain))
    columns = ("categorical", "N", "NFE", "t1, s", "t2, s per position and class", "t1 : L|V|t2", "speed-up")
    notes = (
        "The network has random weights, which its time does not depend on. t2 is that of a draw over "
        f"{vocabulary:,} classes: the published race at every position of every step, those of unmask at a position "
        "that is unmasked. Its inverse CDF needs one uniform per row instead of V.",
        "A CPU is slow at matrix products and fair at logarithms, a GPU the other way round.",
    )
    tables = {"worked cases": worked, "measured here": Table(columns, tuple(rows))}
    return ItemResult({**tables, "sizes": Table(("network", "L", "V"), ((size, length, vocabulary),))}, notes=notes)


def claims(tables: Tables) -> list[Claim]:
    paper, small, sound = tables["worked cases"].column("speed-up")
    here, size = tables["measured here"].records(), tables["sizes"].records()[0]
    ratio = next(row["t1 : L|V|t2"] for row in here if row["categorical"] == "race, float32")
    on, cpu = ("its cost model with its own t1 : t2", f"a DDiT ({size['network']}), L = {size['L']}, this CPU")
    return [
        claim("the ratio is around 17 at N = 10,000", "17", on, Number("speed-up", paper).within(16.5, 17.5)),
        claim("which is the text's 20-fold speed-up, within 10%", "20", on, Number("speed-up", paper).within(18, 22)),
        claim("at N = 2,048 it drops to around 5", "5", on, Number("speed-up", small).within(4.5, 5.5)),
        claim("DiffSound gains 1.07 only", "1.07", on, Number("speed-up", sound).within(1.065, 1.075)),
        claim("categorical sampling is expensive beside the network", "0.64", cpu, Number("t1 : L|V|t2", ratio)),
    ]  # fmt: skip


def seconds_of(action: Callable[[], Any], repeats: int) -> float:
    """The median time of an action, after one warm-up."""
    action()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def network_time(size: str, length: int, vocabulary: int, settings: Settings) -> float:
    """t1: one network call for all positions of one sequence, as the published samplers make it."""
    torch.manual_seed(settings.seed)
    network = DDiT(preset(size, vocabulary, length)).eval()
    tokens = torch.full((1, length), network.mask_id)
    with inference(network):
        return seconds_of(lambda: network(tokens), settings.pick(full=5, fast=5, tiny=1))


def draw_times(vocabulary: int, settings: Settings) -> dict[str, float]:
    """t2 of each categorical: seconds per position and class."""
    rows = settings.pick(full=64, fast=16, tiny=2)
    repeats = settings.pick(full=15, fast=7, tiny=1)
    weights = torch.rand(rows, vocabulary + 1, dtype=torch.float64, generator=generator(0, settings.seed, "weights"))
    logits, own = weights.log(), Streams.of(settings.seed, 1).at("token", rows)[0]
    theirs = published.TorchRand(own.keys[:1], places=rows)
    draws: dict[str, Callable[[], Any]] = {
        f"race, {bits}": partial(published.race(bits), weights, theirs) for bits in ("float32", "float64")
    }
    draws["unmask.draw.exponential_race"] = partial(draw.exponential_race, logits, own)
    draws["unmask.draw.inverse_cdf"] = partial(draw.inverse_cdf, logits, own)
    return {name: seconds_of(action, repeats) / (rows * (vocabulary + 1)) for name, action in draws.items()}
