"""Common parts of the figures: perplexity and entropy against N, with 95% intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from reproduction.cells import Cell
from reproduction.item import Drawing

MEASURES = ("perplexity", "entropy")


def interval(cell: Cell, what: str) -> tuple[float, float, float]:
    """The value, with 1.96 standard errors on either side."""
    row = cell.row()
    value, error = (row[5], row[6]) if what == "perplexity" else (row[7], row[8])
    error = 0.0 if math.isnan(error) else error
    ends = (value, value - 1.96 * error, value + 1.96 * error)
    return tuple(math.exp(end) for end in ends) if what == "perplexity" else ends  # type: ignore[return-value]


def against_steps(
    curves: Mapping[str, list[Cell]],
    levels: Mapping[str, Cell | None],
    title: str,
    *,
    styles: Mapping[str, dict[str, Any]] | None = None,
    powers: bool = False,
) -> Drawing:
    """Two panels. levels: values that do not depend on N; powers: label the axis with the N that were measured."""

    def draw(sheet: Any) -> None:
        for axes, what in zip(sheet.subplots(1, 2), MEASURES, strict=True):
            for name, curve in curves.items():
                bars(axes, [cell.steps for cell in curve], curve, what, name, **(styles or {}).get(name, {}))
            for number, (name, cell) in enumerate(levels.items()):
                if cell is not None:
                    level(axes, cell, what, name, color=("0.35", "C4")[number])
            axes.set(xscale="log", xlabel="steps N", ylabel=what, title=title)
            if powers:
                axes.set_xscale("log", base=2)
                axes.set_xticks([cell.steps for cell in curve], [str(cell.steps) for cell in curve])
        axes.legend(fontsize=7.5)

    return draw


def bars(axes: Any, x: Any, cells: list[Cell], what: str, label: str, style: str = "o-", **options: Any) -> None:
    """A curve with its intervals."""
    y, low, high = zip(*(interval(cell, what) for cell in cells), strict=True)
    sides = ([a - b for a, b in zip(y, low, strict=True)], [b - a for a, b in zip(y, high, strict=True)])
    axes.errorbar(x, y, sides, fmt=style, capsize=2, elinewidth=1, label=label, **options)


def level(axes: Any, cell: Cell, what: str, label: str, color: str = "0.35") -> None:
    """A horizontal line for a value that does not depend on N."""
    value, low, high = interval(cell, what)
    axes.axhline(value, color=color, ls=":", lw=1.3, label=label)
    axes.axhspan(low, high, color=color, alpha=0.12, lw=0)
