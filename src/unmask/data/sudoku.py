"""Sudoku grids drawn uniformly, and puzzles with a unique solution.

A grid is a row of cells, line after line, with values 0 .. n - 1; a box has ``lines`` x ``columns`` cells, and n =
lines * columns. Permuting the values maps grids to grids, and exactly one of the n! permutations of a grid makes its
first line 0, 1, ..., n - 1: the grid is then *reduced*. So a uniform reduced grid with a uniform permutation is a
uniform grid. There are 12 reduced grids of 4 x 4 (288 in all) and 39,168 of 6 x 6 (28,200,960).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.noise import Streams

Grids = NDArray[np.uint8]
EMPTY = -1
LARGEST = 6  # size of the grids that can be listed: there are 1.8e16 reduced ones of 9 x 9


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


SHAPES = {"sudoku4": Shape(2, 2), "sudoku6": Shape(2, 3)}


@cache
def reduced(shape: Shape) -> Grids:
    """All grids whose first line is 0, 1, ..., n - 1: [R, n * n], line after line and in lexicographic order."""
    n = shape.size
    if n > LARGEST:
        raise ValueError(f"grids of {n} x {n} are too many to list: at most {LARGEST} x {LARGEST}")
    lines = np.array(list(itertools.permutations(range(n))), dtype=np.uint8)
    bits = 1 << lines.astype(np.int16)  # [n!, n]
    in_boxes = bits.reshape(len(lines), -1, shape.columns).sum(-1)  # [n!, boxes beside each other]
    grids, in_columns, in_band = lines[:1, None], bits[:1], in_boxes[:1]
    for line in range(1, n):
        if line % shape.lines == 0:
            in_band = np.zeros_like(in_band)
        found = [
            np.stack(np.nonzero(_fits(columns, bits) & _fits(band, in_boxes))) + np.array([[start], [0]])
            for start, columns, band in _chunks(in_columns, in_band)
        ]
        before, added = np.concatenate(found, 1)
        grids = np.concatenate((grids[before], lines[added, None]), 1)
        in_columns, in_band = in_columns[before] | bits[added], in_band[before] | in_boxes[added]
    return grids.reshape(len(grids), -1)


def _fits(used: NDArray[np.int16], new: NDArray[np.int16]) -> NDArray[np.bool_]:
    """[P, n!]: whether no value is used twice."""
    fits: NDArray[np.bool_] = ((used[:, None] & new[None]) == 0).all(-1)
    return fits


def _chunks(*arrays: NDArray[np.int16], size: int = 1024) -> Iterator[tuple[int, NDArray[np.int16], NDArray[np.int16]]]:
    for start in range(0, len(arrays[0]), size):
        columns, band = (array[start : start + size] for array in arrays)
        yield start, columns, band


def count(shape: Shape) -> int:
    """The number of grids."""
    return len(reduced(shape)) * math.factorial(shape.size)


def everything(shape: Shape) -> Grids:
    """All grids; for 4 x 4."""
    if count(shape) > 10**6:
        raise ValueError(f"{count(shape):,} grids are too many to list")
    names = np.array(list(itertools.permutations(range(shape.size))), dtype=np.uint8)
    return np.concatenate([named[reduced(shape)] for named in names])


def draw(shape: Shape, num: int, *, seed: int = 0, part: str = "train") -> Grids:
    """``num`` independent grids, each uniform: grid i depends only on (seed, part, i)."""
    noise = Streams.of(seed, num).at(f"sudoku {part}", 2)
    table = reduced(shape)
    which = (noise[:, 0].uniform() * len(table)).floor().long().numpy()
    names = noise[:, 1].uniform(shape.size).argsort(1).numpy().astype(np.uint8)
    return np.take_along_axis(names, table[which].astype(np.int64), 1)


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
