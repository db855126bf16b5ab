"""All grids of a small Sudoku, and a uniform draw from them.

Permuting the values maps grids to grids, and exactly one of the n! permutations of a grid makes its first line
0, 1, ..., n - 1: the grid is then *reduced*. So a uniform reduced grid with a uniform permutation is a uniform grid.
There are 12 reduced grids of 4 x 4 (288 in all) and 39,168 of 6 x 6 (28,200,960).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from recipes.corpora.sudoku.grids import Grids, Shape
from unmask.noise import Noise

LARGEST = 6  # size of the grids that can be listed: there are 1.8e16 reduced ones of 9 x 9


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


def draw(shape: Shape, noise: Noise) -> Grids:
    """Uniform grids [B, n * n] of noise [B, 2]."""
    table = reduced(shape)
    which = (noise[:, 0].uniform() * len(table)).floor().long().numpy()
    names = noise[:, 1].uniform(shape.size).argsort(1).numpy().astype(np.uint8)
    return np.take_along_axis(names, table[which].astype(np.int64), 1)
