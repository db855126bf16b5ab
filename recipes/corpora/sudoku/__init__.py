"""Sudoku: grids drawn uniformly, and puzzles with a unique solution."""

from __future__ import annotations

from recipes.corpora.sudoku import crosses, listed
from recipes.corpora.sudoku.grids import EMPTY, Grids, Shape, is_valid
from recipes.corpora.sudoku.listed import everything, reduced
from recipes.corpora.sudoku.puzzles import puzzle, solutions
from unmask.noise import Streams

__all__ = [
    "EMPTY", "SHAPES", "Grids", "Shape", "count", "draw", "everything", "is_valid", "puzzle", "reduced", "solutions",
]  # fmt: skip

SHAPES = {"sudoku4": Shape(2, 2), "sudoku6": Shape(2, 3), "sudoku9": Shape(3, 3)}
COUNTED = {Shape(3, 3): 6_670_903_752_021_072_936_960}  # Felgenhauer and Jarvis 2005; benchmarks/sudoku_count.py


def count(shape: Shape) -> int:
    """The number of grids."""
    _check(shape)
    return listed.count(shape) if shape.size <= listed.LARGEST else COUNTED[shape]


def draw(shape: Shape, num: int, *, first: int = 0, seed: int = 0, part: str = "train") -> Grids:
    """Independent uniform grids first .. first + num - 1: grid i depends only on (seed, part, i)."""
    _check(shape)
    noise = Streams.of(seed, num, range(first, first + num)).at(f"sudoku {part}", 7)
    return listed.draw(shape, noise) if shape.size <= listed.LARGEST else crosses.draw(shape, noise)


def _check(shape: Shape) -> None:
    if shape.size > listed.LARGEST and shape not in COUNTED:
        raise ValueError(f"{shape}: grids have up to {listed.LARGEST} x {listed.LARGEST} cells, or boxes of 3 x 3")
