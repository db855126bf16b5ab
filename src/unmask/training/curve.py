"""A run's curve as a figure: the training loss, smoothed, and the held-out bound with its error."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from unmask.extras import needed


def draw(metrics: Path, picture: Path) -> None:
    """Read metrics.jsonl and write a PNG, in bits per character for text, otherwise per token."""
    matplotlib = needed("matplotlib.figure", "the picture needs matplotlib", "plot")
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    losses = np.array([(r["step"], r["loss"]) for r in records if r["kind"] == "train"]).reshape(-1, 2)
    bounds = [r for r in records if r["kind"] == "validation"]
    scale, unit = _unit(bounds)
    figure = matplotlib.Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    if len(losses):
        width = max(1, len(losses) // 60)
        smooth = np.convolve(losses[:, 1], np.ones(width) / width, mode="valid")
        axes.plot(losses[width - 1 :, 0], smooth * scale, color="0.65", lw=1, label=f"training, mean of {width} steps")
    if bounds:
        steps, nats, errors = (np.array([r[k] for r in bounds]) for k in ("step", "nats_per_token", "error"))
        last = f"held-out bound, in the end {nats[-1] * scale:.3f} ± {errors[-1] * scale:.3f}"
        axes.errorbar(steps, nats * scale, errors * scale, color="#762a83", lw=2, capsize=3, label=last)
    axes.set(xlabel="step", ylabel=unit)
    if axes.has_data():
        axes.legend(frameon=False)
    figure.savefig(picture, dpi=120)


def _unit(bounds: list[dict[str, Any]]) -> tuple[float, str]:
    """The factor on nats per token, and the name of the unit."""
    if bounds and bounds[-1].get("bits_per_character"):
        return bounds[-1]["bits_per_character"] / bounds[-1]["nats_per_token"], "bits per character"
    return 1 / math.log(2), "bits per token"
