"""The picture of ``benchmarks.ahead``, from the JSON that it saves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def merged(files: Sequence[Path]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in files:
        found |= json.loads(file.read_text())
    return found


def draw(files: Sequence[Path]) -> None:
    """Rounds against L, tokens per pass against W, and seconds against W where they were measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    picture, *files = files
    result = merged(files)
    panels = [_rounds, _tokens, *([_seconds] if "passes" in result else [])]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.6 * len(panels), 3.6), layout="constrained")
    for axis, panel in zip(axes, panels, strict=True):
        panel(axis, result)
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, frameon=False)
    figure.savefig(picture, dpi=130)


def _rounds(axis: Any, result: dict[str, Any]) -> None:
    labels = {
        "random": "random order",
        "hidden, random": "hidden chain, random order",
        "left-to-right": "left to right",
    }
    for name, label in labels.items():
        at = result["rounds"].get(name, {})
        axis.loglog([int(n) for n in at], [one["mean"] for one in at.values()], "o-", base=2, label=label)
    lengths = [int(n) for n in result["rounds"]["random"]]
    axis.loglog(lengths, lengths, ":", color="grey", base=2, label="one call per token")
    axis.set(xlabel="tokens L", ylabel="rounds", title="Markov chains, full window")


def _tokens(axis: Any, result: dict[str, Any]) -> None:
    for name, at in result["box"].items():
        windows = sorted(at, key=int)
        axis.plot([int(w) for w in windows], [at[w]["tokens_per_pass"] for w in windows], "o-", label=name, ms=3)
    for length, at in result.get("text", {}).items():
        axis.plot([int(w) for w in at], list(at.values()), "s--", label=f"model of text, L = {length}", ms=3)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set(xlabel="window W", ylabel="tokens per pass", title="Exact tokens per pass")


def _seconds(axis: Any, result: dict[str, Any]) -> None:
    """Relative to W = 1: runs of the box models, and the small network with the tokens per pass of a model of text."""
    for name, at in result["seconds"].items():
        windows = [w for w in at if w.isdigit()]
        axis.plot([int(w) for w in windows], [at[w] / at["1"] for w in windows], "o-", label=name, ms=3)
        axis.axhline(at["auto"] / at["1"], ls=":", lw=1, color=axis.lines[-1].get_color())
    passes, per_pass = result["passes"]["1"], result["text"]["1024"]
    mean = {w: sum(at.values()) / len(at) / per_pass[w] for w, at in passes["levels"].items() if w in per_pass}
    label = f"small network, L = {passes['length']:,}"
    axis.plot([int(w) for w in mean], [s / mean["1"] for s in mean.values()], "s--", color="black", label=label, ms=3)
    axis.set_xscale("log", base=2)
    axis.set(xlabel="window W (dotted: auto)", ylabel="CPU seconds, W = 1 is 1", title="Seconds per sequence")
