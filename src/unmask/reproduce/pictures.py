"""What the pictures of several items have in common: perplexity and entropy against N, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.reproduce.cells import Cell
from unmask.reproduce.item import Drawing

MEASURES = ("perplexity", "entropy")


def against_steps(
    curves: Mapping[str, list[Cell]],
    levels: Mapping[str, Cell | None],
    title: str,
    *,
    styles: Mapping[str, dict[str, Any]] | None = None,
    powers: bool = False,
) -> Drawing:
    """Two panels. levels: what does not depend on N; powers: the axis of N has the N that were measured."""

    def draw(sheet: Any) -> None:
        for axes, what in zip(sheet.subplots(1, 2), MEASURES, strict=True):
            for name, curve in curves.items():
                values = [getattr(cell, what) for cell in curve]
                bars(axes, [cell.steps for cell in curve], values, name, **(styles or {}).get(name, {}))
            for number, (name, cell) in enumerate(levels.items()):
                if cell is not None:
                    level(axes, getattr(cell, what), name, color=("0.35", "C4")[number])
            axes.set(xscale="log", xlabel="steps N", ylabel=what, title=title)
            if powers:
                axes.set_xscale("log", base=2)
                axes.set_xticks([cell.steps for cell in curve], [str(cell.steps) for cell in curve])
        axes.legend(fontsize=7.5)

    return draw


def bars(axes: Any, x: Any, intervals: list[Any], label: str, style: str = "o-", **options: Any) -> None:
    """A curve with its intervals."""
    y = [interval.value for interval in intervals]
    low = [max(interval.value - interval.low, 0.0) for interval in intervals]
    high = [max(interval.high - interval.value, 0.0) for interval in intervals]
    axes.errorbar(x, y, (low, high), fmt=style, capsize=2, elinewidth=1, label=label, **options)


def level(axes: Any, interval: Any, label: str, color: str = "0.35") -> None:
    """A horizontal line for what does not depend on N."""
    axes.axhline(interval.value, color=color, ls=":", lw=1.3, label=label)
    axes.axhspan(interval.low, interval.high, color=color, alpha=0.12, lw=0)
