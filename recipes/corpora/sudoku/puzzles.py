"""Sudoku puzzles: their solutions, and puzzles with a unique one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recipes.corpora.sudoku.grids import EMPTY, Grids, Shape
from unmask.noise import Streams


def solutions(puzzle: NDArray[np.integer], shape: Shape, limit: int = 2) -> list[list[int]]:
    """Up to ``limit`` grids that agree with the puzzle, whose empty cells are -1; the most constrained cell first."""
    n, cells = shape.size, [int(value) for value in puzzle]
    units = [(i // n, n + i % n, 2 * n + shape.box(i // n, i % n)) for i in range(n * n)]
    used = [0] * (3 * n)
    for i, value in enumerate(cells):
        if value != EMPTY:
            if any(used[unit] >> value & 1 for unit in units[i]):
                return []
            for unit in units[i]:
                used[unit] |= 1 << value
    found: list[list[int]] = []

    def free(i: int) -> int:
        a, b, c = units[i]
        return ~(used[a] | used[b] | used[c]) & ((1 << n) - 1)

    def search() -> None:
        empty = [i for i, value in enumerate(cells) if value == EMPTY]
        if not empty:
            found.append(list(cells))
            return
        cell = min(empty, key=lambda i: free(i).bit_count())
        for value in (value for value in range(n) if free(cell) >> value & 1):
            cells[cell] = value
            for unit in units[cell]:
                used[unit] ^= 1 << value
            search()
            for unit in units[cell]:
                used[unit] ^= 1 << value
            cells[cell] = EMPTY
            if len(found) >= limit:
                return

    search()
    return found


def puzzle(grid: Grids, clues: int, shape: Shape, *, seed: int) -> NDArray[np.int64] | None:
    """The grid with all but ``clues`` cells emptied (-1), with a unique solution; None if that fails.

    Cells are emptied in random order, except those without which there would be a second solution.
    """
    if not 0 <= clues <= shape.cells:
        raise ValueError(f"clues={clues}: a grid has {shape.cells} cells")
    made, left = grid.astype(np.int64), shape.cells
    for cell in Streams.of(seed, 1).at("sudoku puzzle", shape.cells)[0].uniform().argsort().tolist():
        if left == clues:
            break
        made[cell], kept = EMPTY, made[cell]
        if len(solutions(made, shape)) == 1:
            left -= 1
        else:
            made[cell] = kept
    return made if left == clues else None
