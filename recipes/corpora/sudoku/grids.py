"""The shape of a Sudoku grid, and what makes one valid.

A grid is a row of cells, line after line, with values 0 .. n - 1; a box has ``lines`` x ``columns`` cells, and n =
lines * columns. A line of boxes is a band, a column of boxes a stack.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Grids = NDArray[np.uint8]
EMPTY = -1


@dataclass(frozen=True)
class Shape:
    """The shape of a box, which determines that of the grid."""

    lines: int
    columns: int

    @property
    def size(self) -> int:
        """The number of values, lines, columns and boxes."""
        return self.lines * self.columns

    @property
    def cells(self) -> int:
        return self.size**2

    def box(self, line: int, column: int) -> int:
        return line // self.lines * self.lines + column // self.columns


def is_valid(grids: Grids | torch.Tensor, shape: Shape) -> NDArray[np.bool_]:
    """Whether every line, column and box has every value: [...]."""
    n = shape.size
    cells = np.asarray(grids).reshape(*np.shape(grids)[:-1], n, n)
    boxed = cells.reshape(*cells.shape[:-2], n // shape.lines, shape.lines, n // shape.columns, shape.columns)
    boxes = np.swapaxes(boxed, -3, -2).reshape(*cells.shape[:-2], n, n)
    every = np.arange(n)
    checks = [(np.sort(units, -1) == every).all((-1, -2)) for units in (cells, np.swapaxes(cells, -1, -2), boxes)]
    valid: NDArray[np.bool_] = np.logical_and.reduce(checks)
    return valid
