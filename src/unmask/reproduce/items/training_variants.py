"""Figure 11: training over time or counts, told the time or not, low-discrepancy or not, against left to right."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from unmask.data import corpora
from unmask.reproduce.item import Claim, ItemResult, Settings, Table
from unmask.train.config import TrainConfig
from unmask.train.loop import train

TITLE = "Training variants of a small network, against its left-to-right twin"
PAPER = "Figures 11 and 12, the appendix on training"
# The paper conditions on the time with the ELBO over time, and on the masked ratio with that over counts.
VARIANTS: dict[str, dict[str, Any]] = {
    "over time, told the time": {"objective": "time", "conditioning": "time"},
    "over time": {"objective": "time"},
    "over counts, told the ratio": {"objective": "count", "conditioning": "ratio"},
    "over counts": {"objective": "count"},
    "over time, independent times": {"objective": "time", "times": "independent"},
    "over counts, importance-sampled": {"objective": "count", "times": "adaptive"},
    "left to right": {"objective": "left-to-right"},
}


def run(settings: Settings) -> ItemResult:
    sizes: dict[str, Any] = settings.pick(
        full={
            "layers": 4,
            "width": 128,
            "heads": 4,
            "batch": 32,
            "steps": 800,
            "length": 64,
            "validate_sequences": 256,
        },
        fast={"layers": 2, "width": 64, "heads": 2, "batch": 16, "steps": 150, "length": 64, "validate_sequences": 128},
        tiny={"layers": 1, "width": 16, "heads": 2, "batch": 8, "steps": 4, "length": 8, "validate_sequences": 8},
    )
    runs, curves = {}, []
    with data(settings, sizes["length"]) as (source, tokenizer):
        for name, choices in VARIANTS.items():
            losses, bounds = trained(source, tokenizer, sizes | choices, settings)
            runs[name] = (losses, bounds)
            curves += [(name, step, loss) for step, loss in losses]
    rows = tuple((name, spread(losses), *bounds[-1][1:]) for name, (losses, bounds) in runs.items())
    columns = ("variant", "noise of the training loss", "validation, nats per character", "its error", "perplexity")
    on = (
        f"text8, {sizes['layers']} blocks of width {sizes['width']}, {sizes['steps']:,} steps of {sizes['batch']} x "
        f"{sizes['length']} characters"
    )
    tables = {"variants": Table(columns, rows)}
    long = {"training loss": Table(("variant", "step", "loss"), tuple(curves))}
    return ItemResult(tables, compared(rows, on), {"": drawing(runs)}, data=long)


@contextmanager
def data(settings: Settings, length: int) -> Iterator[tuple[str, str | None]]:
    """text8, or for the tests a text of a few words."""
    if settings.size != "tiny":
        yield str(corpora.prepared("text8", length=length)), None
        return
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("a masked model fills what it does not see " * 60, encoding="utf-8")
        yield str(text), "characters"


def trained(
    source: str, tokenizer: str | None, chosen: dict[str, Any], settings: Settings
) -> tuple[list[tuple[int, float]], list[tuple[int, float, float, float]]]:
    """One run: its training losses, and its validations as (step, nats per token, error, perplexity)."""
    often = max(1, chosen["steps"] // 5)
    prepare = {"tokenizer": tokenizer, "length": chosen["length"]} if tokenizer else {}
    options = {name: value for name, value in chosen.items() if name != "length"}
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            data=source,
            out=str(Path(folder) / "run"),
            seed=settings.seed,
            preset="tiny",
            dropout=0.0,
            optimizer="muon",
            learning_rate=3e-3,
            validate_every=often,
            save_every=chosen["steps"],
            preview=False,
            tensorboard=False,
            device="cpu",
            **prepare,
            **options,
        )
        train(config)
        lines = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [(line["step"], line["loss"]) for line in lines if line["kind"] == "train"]
    bounds = [
        (line["step"], line["nats_per_token"], line["error"], line["perplexity"])
        for line in lines
        if line["kind"] == "validation"
    ]
    return losses, bounds


def spread(losses: list[tuple[int, float]]) -> float:
    """The noise of a curve without its trend: from the differences of neighbours in its last half."""
    last = [loss for _, loss in losses[len(losses) // 2 :]]
    gaps = [b - a for a, b in pairwise(last)]
    return math.sqrt(sum(gap**2 for gap in gaps) / max(len(gaps), 1) / 2)


def compared(rows: tuple[tuple[Any, ...], ...], on: str) -> tuple[Claim, ...]:
    by = {row[0]: row for row in rows}
    masked = [row for name, row in by.items() if name not in ("left to right", "over counts, importance-sampled")]
    low, high = min(row[2] for row in masked), max(row[2] for row in masked)
    twin, best = by["left to right"], min(masked, key=lambda row: row[2])
    calm, wild = by["over time"][1], by["over time, independent times"][1]
    adaptive, plain = by["over counts, importance-sampled"], by["over counts"]
    error = max(row[3] for row in masked)
    return (
        Claim(
            "all variants perform alike",
            "negligible differences",
            f"{low:.3f} to {high:.3f} nats per character, errors up to {error:.3f}",
            on,
            high - low < 0.05 * low or None,
        ),
        Claim(
            "the low-discrepancy sampler reduces the variance of the training loss",
            "notably",
            f"noise {calm:.3f} against {wild:.3f}",
            on,
            True if calm < 0.9 * wild else None,
        ),
        Claim(
            "importance sampling degrades the result",
            "degraded",
            f"{adaptive[2]:.3f} against {plain[2]:.3f} nats per character",
            on,
            True if adaptive[2] - plain[2] > 3 * error else None,
        ),
        Claim(
            "masked models lag behind the left-to-right twin",
            "significantly",
            f"{best[2]:.3f} against {twin[2]:.3f} nats per character",
            on,
            True if best[2] - twin[2] > 3 * error else None,
        ),
    )


def drawing(runs: dict[str, Any]) -> Any:
    def draw(sheet: Any) -> None:
        sheet.set_size_inches(9.5, 3.6)
        left, right = sheet.subplots(1, 2)
        for name, (losses, bounds) in runs.items():
            left.plot(*zip(*losses, strict=True), lw=0.8, label=name)
            right.plot([b[0] for b in bounds], [b[3] for b in bounds], "o-", label=name)
        left.set(xlabel="step", ylabel="training loss", title="training")
        right.set(xlabel="step", ylabel="validation perplexity per character", title="validation")
        right.legend(fontsize=7.5)

    return draw
