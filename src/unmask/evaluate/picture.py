"""Figures of evaluations: creating and writing them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from unmask.extras import needed
from unmask.files import write_whole


def sheet(width: float, height: float) -> Any:
    """An empty matplotlib Figure; matplotlib is an extra."""
    figure = needed("matplotlib.figure", "the picture needs matplotlib", "plot")
    return figure.Figure(figsize=(width, height), layout="constrained")


def write(figure: Any, path: Path) -> None:
    """Write a PNG atomically."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    write_whole(path, content.getvalue())
