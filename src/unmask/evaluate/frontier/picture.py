"""The frontier as a figure: perplexity against entropy, network calls and seconds."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unmask.evaluate import picture
from unmask.evaluate.frontier.points import DATA, Point
from unmask.evaluate.judge.interval import Interval

COLOURS = ("#762a83", "#1b7837", "#2166ac", "#b35806", "#c51b7d", "#01665e", "#4d4d4d", "#8c510a")
MARKERS = "osD^vPX*<>"
LETTERS_OF_A_LINE = 150


def draw(points: Sequence[Point], path: Path) -> None:
    """Write a PNG. Colours are samplers, markers are models and temperatures; published samplers are hollow."""
    figure = picture.sheet(15, 6.2)
    axes = figure.subplots(1, 3, sharey=True)
    sampled, data = [p for p in points if p.sampler != DATA], [p for p in points if p.sampler == DATA]
    for curve, style in _styles(sampled).items():
        own = [point for point in sampled if _curve(point) == curve]
        for panel, x in zip(axes, (lambda p: p.entropy, lambda p: p.calls, lambda p: p.seconds), strict=True):
            _plot(panel, sorted(own, key=lambda p: (p.steps or 0, p.calls)), x, style)
    for point in data:
        _reference(axes, point)
    axes[0].set(xlabel="entropy of a sequence, nats", ylabel="corpus perplexity under the judge", yscale="log")
    axes[1].set(xlabel="network calls per sequence")
    axes[1].set_xscale("log", base=2)
    axes[2].set(xlabel="seconds per sequence", xscale="log")
    for axis in (axes[0].yaxis, axes[1].xaxis, axes[2].xaxis):
        _plain_ticks(axis)
    axes[0].locator_params(axis="x", nbins=6)
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        columns = max(1, min(3, LETTERS_OF_A_LINE // (max(map(len, labels)) + 8)))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
    if points:
        figure.suptitle(textwrap.fill(_title(points), LETTERS_OF_A_LINE), fontsize="medium")
    picture.write(figure, path)


def _plain_ticks(axis: Any) -> None:
    """A few plain numbers on a logarithmic axis: 1, 2, 5 of each decade, or evenly spaced over a short range."""
    from matplotlib.ticker import AutoLocator, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    narrow = not 0 < low * 10 < high
    axis.set_major_locator(AutoLocator() if narrow else LogLocator(subs=(1, 2, 5), numticks=6))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _title(points: Sequence[Point]) -> str:
    draws = sorted({f"{p.draw} in {p.dtype}" for p in points if p.sampler != DATA})
    nums = sorted({p.num for p in points})
    return (
        f"judge: {', '.join(sorted({p.judge for p in points}))}; {' or '.join(map(str, nums))} samples per point; "
        f"{points[0].level:.0%} intervals; drawn by {', '.join(draws)}"
    )


def _curve(point: Point) -> tuple[str, str, float, str]:
    return point.model, point.sampler, point.temperature, point.draw


def _styles(points: Sequence[Point]) -> dict[tuple[str, str, float, str], dict[str, Any]]:
    """The style of each curve: one model, sampler, temperature and draw, over its steps."""
    curves = list(dict.fromkeys(map(_curve, points)))
    colour = dict(zip(dict.fromkeys(c[1] for c in curves), itertools.cycle(COLOURS), strict=False))
    marker = dict(zip(dict.fromkeys((c[0], c[2]) for c in curves), itertools.cycle(MARKERS), strict=False))
    styles = {}
    for curve in curves:
        model, sampler, temperature, drawn = curve
        published = sampler.startswith("published-")
        several = len({c[3] for c in curves if not c[1].startswith("published-")}) > 1
        label = f"{model}: {sampler}, T = {temperature:g}{f', {drawn}' if several and not published else ''}"
        styles[curve] = {
            "color": colour[sampler],
            "marker": marker[model, temperature],
            "ls": "--" if published else "-",
            "lw": 1.2,
            "mfc": "white" if published else colour[sampler],
            "label": label,
            "ms": 5,
            "capsize": 2,
            "elinewidth": 0.8,
        }
    return styles


def _plot(panel: Any, points: Sequence[Point], x: Callable[[Point], Any], style: dict[str, Any]) -> None:
    across = [x(point) for point in points]
    intervals = [value for value in across if isinstance(value, Interval)]
    panel.errorbar(
        [value.value for value in intervals] or across,
        [point.perplexity.value for point in points],
        yerr=_bars([point.perplexity for point in points]),
        xerr=_bars(intervals) if intervals else None,
        **style,
    )


def _bars(intervals: Sequence[Interval]) -> list[list[float]]:
    """How far the intervals extend below and above their values."""
    return [[max(i.value - i.low, 0.0) for i in intervals], [max(i.high - i.value, 0.0) for i in intervals]]


def _reference(axes: Any, point: Point) -> None:
    """Real data have an entropy, but no calls and no seconds: a star, and a line at their perplexity."""
    axes[0].errorbar(
        [point.entropy.value],
        [point.perplexity.value],
        xerr=_bars([point.entropy]),
        yerr=_bars([point.perplexity]),
        color="black",
        marker="*",
        ms=12,
        ls="none",
        label=f"{point.model}: real data",
    )
    for panel in axes:
        panel.axhline(point.perplexity.value, color="black", lw=0.8, ls=":")
