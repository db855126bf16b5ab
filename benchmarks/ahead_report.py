"""The tables and the picture of ``benchmarks.ahead``, from the JSON that it saves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def merged(files: Sequence[Path]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in files:
        found |= json.loads(file.read_text())
    return found


def show(files: Sequence[Path]) -> None:
    result = merged(files)
    lines: list[str] = []
    if "box" in result:
        windows = sorted({w for at in result["box"].values() for w in at}, key=int)
        rows = ([name, *(_cell(at, w) for w in windows)] for name, at in result["box"].items())
        lines += ["Tokens per pass", "", *_table(["", *(f"W = {w}" for w in windows)], rows), ""]
        told = [at for found in result["box"].values() for at in found.values() if "equal" in at]
        same, all_ = (sum(at[key] for at in told) for key in ("equal", "sequences"))
        lines += [f"{same:,} of {all_:,} sequences are those of one call per token.", ""]
    if "text" in result:
        windows = list(next(iter(result["text"].values())))
        rows = ([f"L = {length}", *(f"{at[w]:.1f}" for w in windows)] for length, at in result["text"].items())
        title = f"Tokens per round, a hidden Markov model of text ({result['text_model']})"
        lines += [title, "", *_table(["", *(f"W = {w}" for w in windows)], rows), ""]
    if "rounds" in result:
        lengths = list(result["rounds"]["random"])
        rows = (
            [name, *(f"{at[length]['mean']:.1f} ± {at[length]['error']:.1f}" for length in lengths)]
            for name, at in result["rounds"].items()
            if isinstance(at, dict)
        )
        title = f"Rounds with the full window, a Markov chain of {result['rounds']['chain']}, and a hidden one"
        lines += [title, "", *_table(["order", *(f"L = {length}" for length in lengths)], rows), ""]
    for name, at in result.get("seconds", {}).items():
        head, row = ["", *at], [name, *(f"{1e3 * s:.0f} ({at['1'] / s:.2f}x)" for s in at.values())]
        lines += ["CPU ms per sequence, and how many times fewer than W = 1", "", *_table(head, [row]), ""]
    for batch, at in result.get("small", {}).items():
        seconds = at["seconds_per_sequence"]
        row = [f"B = {batch}", *(f"{s:.1f}" for s in seconds.values())]
        lines += ["Seconds per sequence, the paper's small network", "", *_table(["", *seconds], [row]), ""]
        lines += ["; ".join(f"{name}: {ratio:.2f}" for name, ratio in at["ratios"].items()), ""]
    print("\n".join(lines))


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


def _cell(at: dict[str, Any], window: str) -> str:
    return f"{at[window]['tokens_per_pass']:.2f}" if window in at else ""


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
