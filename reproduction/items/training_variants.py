"""Figure 11: training over time or counts, with or without time input, importance sampling or self-conditioning."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import unmask
from reproduction.item import ItemResult, Settings, Table, Tables
from reproduction.keep import kept
from reproduction.verdict import Claim, Number, claim, mean
from unmask import objective, plan, timing
from unmask.data import corpora
from unmask.loading import load
from unmask.noise import generator
from unmask.samplers.published import Coupled
from unmask.training import data as find_data
from unmask.training.config import TrainConfig
from unmask.training.loop import train

TITLE = "Training variants of a small network, against its left-to-right twin"
PAPER = "Figures 11 and 12, Sec. 4.1, the appendix on training"
TOLD, TIME, COUNTS = "over time, told the time", "over time", "over counts"
OTHER = "not comparable: another variant, which feeds back hidden states, in few steps"
WEIGHTED, FED, TWIN = "over counts, importance-sampled", "over time, self-conditioned", "left to right"
# The paper conditions on the time with the ELBO over time, and on the masked ratio with that over counts.
VARIANTS: dict[str, dict[str, Any]] = {
    TOLD: {"objective": "time", "conditioning": "time"},
    TIME: {"objective": "time"},
    "over counts, told the ratio": {"objective": "count", "conditioning": "ratio"},
    COUNTS: {"objective": "count"},
    WEIGHTED: {"objective": "count", "times": "adaptive"},
    FED: {"objective": "time", "self_conditioning": True},
    TWIN: {"objective": "left-to-right"},
}
SAMPLED = ("told the time", "not told", "told, with the cache", "told, without the cache")
FROZEN = ("independent", "stratified")


def sizes(settings: Settings) -> dict[str, int]:
    return settings.pick(
        full={"layers": 2, "width": 64, "heads": 2, "batch": 32, "steps": 200, "length": 64, "validate_sequences": 256},
        fast={"layers": 1, "width": 32, "heads": 2, "batch": 16, "steps": 60, "length": 32, "validate_sequences": 64},
        tiny={"layers": 1, "width": 16, "heads": 2, "batch": 8, "steps": 4, "length": 8, "validate_sequences": 8},
    )


def run(settings: Settings) -> ItemResult:
    chosen, seeds = sizes(settings), settings.pick(full=6, fast=4, tiny=2)
    told = repr((unmask.__version__, chosen, VARIANTS, settings.size))
    name = hashlib.sha256(told.encode()).hexdigest()[:16]
    folder = Path(settings.cells) if settings.cells else None
    made = [
        kept(folder and folder / f"trained-{name}-{seed}.pt", lambda seed=seed: trained(seed, chosen, settings))  # type: ignore[misc]
        for seed in range(settings.seed, settings.seed + seeds)
    ]
    bounds = Table(
        ("variant", "seed", "validation, nats per character", "noise of the training loss", "largest gradient"),
        tuple((variant, i, *one[variant].tolist()) for variant in VARIANTS for i, one in enumerate(made)),
    )
    sampled = Table(
        ("sampler", "seed", "nats per character by the twin"),
        tuple((way, i, float(one[way])) for way in SAMPLED for i, one in enumerate(made)),
    )
    frozen = Table(
        ("times", "seed", "median absolute deviation of a batch's loss"),
        tuple((way, i, float(one[way])) for way in FROZEN for i, one in enumerate(made)),
    )
    size = Table(tuple(chosen), (tuple(chosen.values()),))
    long = [(v, step, loss) for v in VARIANTS for step, loss in enumerate(made[0][f"{v}: losses"].tolist(), 1)]
    tables = {"bounds": bounds, "samples": sampled, "noise at frozen weights": frozen, "sizes": size}
    note = (
        "The paper feeds back the network's prediction; here it is the last hidden states of a first pass, of the "
        "network's width, concatenated to the embedding and projected; blank in half of the training steps."
    )
    curves = Table(("variant", "step", "loss"), tuple(long))
    return ItemResult(tables, {"": drawing(curves, bounds)}, (note,), data={"training loss, first seed": curves})


@contextmanager
def source(settings: Settings, length: int) -> Iterator[dict[str, Any]]:
    """text8, or for the tests a text of a few words."""
    if settings.size != "tiny":
        yield {"data": str(corpora.prepared("text8", length=length))}
        return
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("a masked model fills what it does not see " * 60, encoding="utf-8")
        yield {"data": str(text), "tokenizer": "characters", "length": length}


def trained(seed: int, chosen: dict[str, int], settings: Settings) -> dict[str, Tensor]:
    """All variants of one seed, and the measurements with the resulting networks."""
    found: dict[str, Tensor] = {}
    options = {name: value for name, value in chosen.items() if name != "length"}
    with source(settings, chosen["length"]) as data, tempfile.TemporaryDirectory() as folder:
        models = {}
        for variant, choices in VARIANTS.items():
            config = TrainConfig(
                **data,
                out=str(Path(folder) / variant),
                seed=seed,
                preset="tiny",
                dropout=0.0,
                optimizer="muon",
                learning_rate=3e-3,
                validate_every=chosen["steps"],
                save_every=chosen["steps"],
                preview=False,
                tensorboard=False,
                device="cpu",
                **options,  # type: ignore[arg-type]
                **choices,
            )
            models[variant] = train(config)
            lines = (Path(folder) / variant / "metrics.jsonl").read_text().splitlines()
            steps = [line for line in map(json.loads, lines) if line["kind"] == "train"]
            losses = [line["loss"] for line in steps]
            bound = [line["nats_per_token"] for line in map(json.loads, lines) if line["kind"] == "validation"][-1]
            largest = max(line["gradient_norm"] for line in steps[len(steps) // 2 :])
            found[variant] = torch.tensor([bound, spread(losses), largest], dtype=torch.float64)
            found[f"{variant}: losses"] = torch.tensor(losses, dtype=torch.float64)
        found |= sampled(models, chosen["length"], seed, settings)
        texts = find_data.find(config, None).train
        found |= frozen(load(models[TIME]).denoiser, texts, chosen, seed, settings)
    return found


def spread(losses: list[float]) -> float:
    """The noise of a curve without its trend: the median difference of neighbours in its second half."""
    gaps = [abs(b - a) for a, b in pairwise(losses[len(losses) // 2 :])]
    return statistics.median(gaps) if gaps else math.nan


def sampled(models: dict[str, Path], length: int, seed: int, settings: Settings) -> dict[str, Tensor]:
    """Samples of the networks with and without time input, judged by the twin. All share their noise."""
    told, plain, twin = (load(models[name]) for name in (TOLD, TIME, TWIN))
    many, few = settings.pick(full=(128, 16), fast=(32, 4), tiny=(8, 2))

    def nats(tokens: Tensor) -> Tensor:
        with torch.inference_mode():
            return objective.left_to_right(twin.denoiser, tokens).double().mean() / length

    def published(cache: bool, num: int, first: int) -> Tensor:
        seeds = [1000 * seed + first + i for i in range(num)]
        sampler = Coupled("float64", cache=cache)
        return unmask.sample(
            told.denoiser, sampler=sampler, steps=2 * length, num=num, length=length, seed=seeds
        ).tokens

    token_by_token = {
        name: unmask.sample(model.denoiser, num=many, length=length, plan=plan.first_hitting, seed=seed).tokens
        for name, model in zip(SAMPLED[:2], (told, plain), strict=True)
    }
    # With the cache one by one: in a batch, changes of other sequences would refresh it.
    cached = torch.cat([published(True, 1, i) for i in range(few)])
    by = {**token_by_token, SAMPLED[2]: cached, SAMPLED[3]: published(False, few, 0)}
    return {name: nats(tokens) for name, tokens in by.items()}


def frozen(network: Any, texts: Any, chosen: dict[str, int], seed: int, settings: Settings) -> dict[str, Tensor]:
    """The noise of a batch's loss over time at frozen weights, by a scale estimate that is robust to heavy tails."""
    batches, batch, found = settings.pick(full=250, fast=60, tiny=10), chosen["batch"], {}
    for name, times in zip(FROZEN, (timing.independent, timing.stratified), strict=True):
        losses = []
        for i in range(batches):
            random = generator(i, seed, name)
            x0 = texts.sequences(torch.randint(len(texts), (batch,), generator=random))
            with torch.inference_mode():
                loss = objective.nelbo_by_time(network, x0, times(batch, random), generator=random)
            losses.append(float(loss.mean()) / chosen["length"])
        middle = statistics.median(losses)
        found[name] = torch.tensor(statistics.median(abs(v - middle) for v in losses), dtype=torch.float64)
    return found


def claims(tables: Tables) -> list[Claim]:
    size = tables["sizes"].records()[0]
    by: dict[str, list[dict[str, Any]]] = {}
    for row in tables["bounds"].records():
        by.setdefault(row["variant"], []).append(row)
    bound = {variant: [row["validation, nats per character"] for row in rows] for variant, rows in by.items()}
    noise = {variant: [row["noise of the training loss"] for row in rows] for variant, rows in by.items()}
    samples = _by(tables["samples"], "sampler", "nats per character by the twin")
    deviation = _by(tables["noise at frozen weights"], "times", "median absolute deviation of a batch's loss")
    on = (
        f"text8, {len(bound[TIME])} seeds, {size['layers']} blocks of width {size['width']}, {size['steps']} steps of "
        f"{size['batch']} x {size['length']} characters"
    )

    def worse(a: str, b: str, values: dict[str, list[float]] = bound) -> Number:
        return mean(f"{a}, above {b}", (x - y for x, y in zip(values[a], values[b], strict=True)))

    def logs(what: str, a: list[float], b: list[float]) -> Number:
        return mean(f"log of {what}", (math.log(x / y) for x, y in zip(a, b, strict=True)))

    quiet = logs("stratified by independent", deviation["stratified"], deviation["independent"])
    wild = logs("its noise by the plain network's", noise[FED], noise[TIME])
    grown = {variant: [row["largest gradient"] for row in rows] for variant, rows in by.items()}
    jumps = logs("its largest gradient by the plain network's", grown[FED], grown[TIME])
    others = [variant for variant in bound if variant not in (TIME, WEIGHTED, FED, TWIN)]
    return [
        claim("all variants perform alike: within 0.05 nats", "negligible differences", on,
              *(worse(variant, TIME).within(-0.05, 0.05) for variant in others)),
        claim("adding the time condition slightly improves the bound", "slightly", on, worse(TIME, TOLD).at_least(0)),
        claim("over counts is marginally worse than over time", "marginally", on, worse(COUNTS, TIME).at_least(0)),
        claim("low-discrepancy times lower the noise of the training loss", "notably", f"{on}; weights frozen",
              quiet.at_most(0)),
        claim("importance sampling degrades the result, by 0.01 nats or more", "degraded", on,
              worse(WEIGHTED, COUNTS).at_least(0.01)),
        claim("masked models lag behind the left-to-right twin, by 0.1 nats or more", "significantly", on,
              worse(TIME, TWIN).at_least(0.1)),
        claim("self-conditioning is highly unstable in training", "highly unstable", on, wild, jumps, note=OTHER),
        claim("adding the time condition slightly improves first-hitting sampling", "slightly", on,
              worse("not told", "told the time", samples).at_least(0)),
        claim("the cache does no harm to a network that is told the time: within 0.05 nats", "no degradation", on,
              worse(SAMPLED[2], SAMPLED[3], samples).within(-0.05, 0.05)),
    ]  # fmt: skip


def _by(table: Table, key: str, value: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in table.records():
        found.setdefault(row[key], []).append(row[value])
    return found


def drawing(curves: Table, bounds: Table) -> Any:
    def draw(sheet: Any) -> None:
        sheet.set_size_inches(9.5, 3.6)
        left, right = sheet.subplots(1, 2)
        for i, variant in enumerate(VARIANTS):
            part = curves.where(variant=variant)
            left.plot(part.column("step"), part.column("loss"), lw=0.8, label=variant)
            found = bounds.where(variant=variant).column("validation, nats per character")
            right.plot(found, [i] * len(found), "o")
        left.set(xlabel="step", ylabel="training loss", title="training, first seed")
        right.set(xlabel="validation, nats per character", yticks=range(len(VARIANTS)), title="all seeds")
        right.set_yticklabels(VARIANTS)
        left.legend(fontsize=6.5)

    return draw
