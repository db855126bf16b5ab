"""Sudoku grids that are too many to list, drawn uniformly by their first band and first stack.

The first band and the first stack of a grid are its *cross*. Every grid has one cross, and a cross c has N(c)
completions. So: draw a cross uniformly, accept it with probability N(c) / max N, and take one of its completions at
random. Every grid then has the same probability per attempt, 1 / (number of crosses * max N).

- A uniform cross. Name the values so that the first box reads 0, 1, ..., n - 1. Then the band is determined by which
  values each line of each other box has (56 possibilities for 9 x 9, which are listed) and by their order there, which
  is free. So is the stack, with columns for lines, and the two do not depend on each other. Last, the values get new
  names.
- N(c) is counted by listing the completions, line by line. It depends only on the values in each column of the band
  and in each line of the stack. For 9 x 9 these are four partitions of nine values into triples, and up to renaming
  there are 10,207 cases (``benchmarks/sudoku_count.py`` goes through all of them): the largest N is 11,664. Where the
  two later boxes of the band have different partitions, it is 5,644, so most attempts that will be rejected need no
  counting.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from recipes.corpora.sudoku.grids import EMPTY, Grids, Shape
from unmask.noise import Noise

Values = NDArray[np.int64]
Words = NDArray[np.uint64]
MOST = {Shape(3, 3): (11_664, 5_644)}  # completions: of any cross, and of one whose later boxes differ in their columns


def draw(shape: Shape, noise: Noise) -> Grids:
    """Uniform grids [B, n * n] of noise [B, 7]; every attempt takes fresh noise."""
    made = np.empty((len(noise), shape.cells), np.uint8)
    waiting = np.arange(len(noise))
    for attempt in itertools.count():
        if len(waiting) == 0:
            break
        accepted = np.zeros(len(waiting), bool)
        for i, grid in _accepted(shape, noise[waiting].numbered(attempt)):
            made[waiting[i]], accepted[i] = grid, True
        waiting = waiting[~accepted]
    return made


def _accepted(shape: Shape, noise: Noise) -> Iterator[tuple[int, Values]]:
    """One attempt for each place: which of them succeed, and their grids [n * n]."""
    most, usual = MOST[shape]
    names = noise[:, 4].uniform(shape.size).argsort(1).numpy()
    limits, picks = noise[:, 5].uniform().numpy() * most, noise[:, 6].uniform().numpy()
    for i, cross in enumerate(crosses(shape, noise[:, :4])):
        if limits[i] >= usual and columns_differ(cross, shape):
            continue
        found = completions(cross, shape)
        if limits[i] < len(found):
            yield i, names[i][found.grid(int(picks[i] * len(found)))].flatten()


def crosses(shape: Shape, noise: Noise) -> Values:
    """Uniform crosses [B, n, n] of noise [B, 4]: the first box is 0 .. n - 1, cells outside the cross are -1."""
    n, turned = shape.size, Shape(shape.columns, shape.lines)
    made = np.full((len(noise), n, n), EMPTY)
    by_columns = np.arange(n).reshape(shape.lines, shape.columns).T.flatten()  # the first box, turned
    made[:, :, : shape.columns] = by_columns[_ordered_bands(turned, noise[:, 2:])].swapaxes(1, 2)
    made[:, : shape.lines] = _ordered_bands(shape, noise[:, :2])
    return made


def _ordered_bands(shape: Shape, noise: Noise) -> Values:
    """Uniform bands [B, lines, n] of noise [B, 2]: which values each line of a box has, and their order."""
    listed = bands(shape)
    band = listed[(noise[:, 0].uniform().numpy() * len(listed)).astype(np.int64)]
    boxes = band.reshape(len(band), shape.lines, -1, shape.columns)
    order = noise[:, 1].uniform(boxes[0].size).numpy().reshape(boxes.shape).argsort(-1)
    order[:, :, 0] = np.arange(shape.columns)
    return np.take_along_axis(boxes, order, -1).reshape(band.shape)


@cache
def bands(shape: Shape) -> Values:
    """All bands whose first box is 0 .. n - 1 and whose other boxes have lines in rising order: [K, lines, n]."""
    n, columns = shape.size, shape.columns

    def boxes(band: list[list[int]]) -> Iterator[list[list[int]]]:
        """The boxes that can stand beside these lines: no value twice in the box or in a line."""
        if not band:
            yield []
            return
        for above in boxes(band[:-1]):
            free = sorted(set(range(n)).difference(band[-1], *above))
            yield from ([*above, list(line)] for line in itertools.combinations(free, columns))

    found: list[list[list[int]]] = [np.arange(n).reshape(shape.lines, columns).tolist()]
    for _ in range(1, shape.lines):
        found = [[a + b for a, b in zip(band, box, strict=True)] for band in found for box in boxes(band)]
    return np.array(found)


def columns_differ(cross: Values, shape: Shape) -> bool:
    """Whether two boxes of the band, the first aside, do not have the same values in their columns."""
    each = (1 << cross[: shape.lines, shape.columns :]).sum(0).reshape(-1, shape.columns)
    return len({frozenset(box) for box in each.tolist()}) > 1


@dataclass(frozen=True)
class Completions:
    """All grids with one cross, as a tree of lines: a line's values, and which of the beginnings it continues."""

    cross: Values
    lines: tuple[tuple[NDArray[np.intp], NDArray[np.uint8]], ...]

    def __len__(self) -> int:
        return len(self.lines[-1][0])

    def grid(self, which: int) -> Values:
        made = self.cross.copy()
        for line, (before, values) in zip(range(len(made) - 1, -1, -1), self.lines[::-1], strict=False):
            made[line, -values.shape[1] :] = values[which]
            which = int(before[which])
        return made


def completions(cross: Values, shape: Shape) -> Completions:
    """All grids with this cross.

    A word has a bit for each (column, value), and one for each (box, value). Of the boxes beside each other the last
    needs none: where every line has every value and the other boxes do, so does it.
    """
    n, columns = shape.size, shape.columns
    in_band = (1 << cross[: shape.lines, columns:]).sum(0)
    taken = np.uint64(sum(int(values) << n * i for i, values in enumerate(in_band)))
    used, found = np.array([taken]), []
    for line in range(shape.lines, n):
        if line % shape.lines == 0:
            used &= np.uint64((1 << n * (n - columns)) - 1)
        values, words = _lines(tuple(sorted(cross[line, :columns].tolist())), shape)
        values, words = (each[words & taken == 0] for each in (values, words))
        before, added = np.divmod(np.flatnonzero((used[:, None] & words) == 0), len(words))
        used = used[before] | words[added]
        found.append((before, values[added]))
    return Completions(cross, tuple(found))


@cache
def _lines(used: tuple[int, ...], shape: Shape) -> tuple[NDArray[np.uint8], Words]:
    """All orders [P, free] of the values that are left, and their words [P]."""
    n, free = shape.size, shape.size - shape.columns
    values = np.array(list(itertools.permutations(sorted(set(range(n)).difference(used)))), dtype=np.uint8)
    column = np.arange(free)
    boxes = column // shape.columns
    bits = np.uint64(1) << values.astype(np.uint64)
    words = (bits << (n * column).astype(np.uint64)).sum(1)
    inside = boxes < boxes[-1]  # all boxes but the last
    return values, words | (bits << (n * (free + boxes)).astype(np.uint64))[:, inside].sum(1, dtype=np.uint64)
