"""Puzzles of symbols in a square, as in Sudoku: a grid on the terminal, and a puzzle typed as a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence

from unmask.cli.view import square
from unmask.model import Model

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}  # rows and columns of a box, by the side of the grid
FRAME = str.maketrans("", "", " \t\r\n|-+")  # what a typed grid has between its cells


def side_of(model: Model) -> int | None:
    """The side of the grids that a model writes, one character per cell; None for other models."""
    card = getattr(model.denoiser, "card", None)
    shown = getattr(card, "display", None) == "grid" and model.tokenizer.kind == "characters"
    return square(model.length or 0) if shown else None


def typed(text: str, model: Model) -> str:
    """A puzzle that was typed as a grid, as one row of cells; other texts unchanged."""
    side = side_of(model)
    if side is None:
        return text
    known = "".join(model.tokenizer.vocab)
    empty = {ord(one): "_" for one in ".0?" if one not in known}
    cells = text.translate(FRAME).translate(empty)
    if len(cells) != side * side:
        raise ValueError(f"a puzzle of {model.name} has {side} x {side} cells, got {len(cells)}; _, . or 0 is empty")
    return cells


def grid(cells: str, side: int) -> str:
    """The cells in lines with their boxes; a cell that breaks a rule has a * behind it."""
    rows, columns = BOXES.get(side, (side, side))
    broken = conflicts(cells, side)
    lines = []
    for row in range(side):
        marked = [f"{cells[at]}{'*' if at in broken else ' '}" for at in range(row * side, row * side + side)]
        boxes = [" ".join(marked[start : start + columns]) for start in range(0, side, columns)]
        lines += ["-+-".join("-" * len(box) for box in boxes)] if row and row % rows == 0 else []
        lines.append(" | ".join(boxes).rstrip())
    if broken:
        lines.append(f"{len(broken)} cells (*) break a rule: a symbol twice in a row, a column or a box")
    return "\n".join(lines)


def conflicts(cells: Sequence[str], side: int) -> set[int]:
    """The places of the cells whose symbol occurs twice in their row, column or box."""
    rows, columns = BOXES.get(side, (side, side))
    units: dict[tuple[str, int, str], list[int]] = {}
    for at, symbol in enumerate(cells):
        row, column = divmod(at, side)
        box = row // rows * math.ceil(side / columns) + column // columns
        for unit in (("row", row), ("column", column), ("box", box)):
            units.setdefault((*unit, symbol), []).append(at)
    return {at for places in units.values() if len(places) > 1 for at in places}
