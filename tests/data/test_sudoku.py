"""Sudoku: the numbers of grids, a uniform draw, and puzzles with one solution."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from unmask.data import sudoku
from unmask.data.sudoku import EMPTY, Shape

FOUR, SIX = Shape(2, 2), Shape(2, 3)


def test_all_grids_are_listed() -> None:
    assert (len(sudoku.reduced(FOUR)), sudoku.count(FOUR)) == (12, 288)
    assert (len(sudoku.reduced(SIX)), sudoku.count(SIX)) == (39_168, 28_200_960)
    for shape in (FOUR, SIX):
        grids = sudoku.reduced(shape)
        assert sudoku.is_valid(grids, shape).all() and len(np.unique(grids, axis=0)) == len(grids)
        assert (grids[:, : shape.size] == np.arange(shape.size)).all()
    with pytest.raises(ValueError, match="too many to list"):
        sudoku.reduced(Shape(3, 3))


def test_four_by_four_is_what_filtering_all_tuples_of_lines_gives() -> None:
    lines = list(itertools.permutations(range(4)))
    found = [
        (*a, *b, *c, *d)
        for a, b, c, d in itertools.product(lines, repeat=4)
        if all(len({a[i], b[i], c[i], d[i]}) == 4 for i in range(4))
        and all(len({*x[i : i + 2], *y[i : i + 2]}) == 4 for x, y in ((a, b), (c, d)) for i in (0, 2))
    ]
    assert sorted(map(tuple, sudoku.everything(FOUR).tolist())) == sorted(found)


def test_four_by_four_is_drawn_uniformly() -> None:
    drawn = sudoku.draw(FOUR, 288 * 100, seed=1)
    assert sudoku.is_valid(drawn, FOUR).all()
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 288 and stats.chisquare(counts).pvalue > 1e-6


def test_six_by_six_is_drawn_uniformly() -> None:
    """By statistics whose distribution is known without the listing.

    The value of a cell is uniform, and so are the 720 first lines. As the columns of a box may be exchanged, so is the
    order of the three values of a box in any line. And the reduced grids, of which the list has all, are uniform.
    """
    drawn = sudoku.draw(SIX, 72_000, seed=2).astype(np.int64)
    assert sudoku.is_valid(drawn, SIX).all()
    for cell in (0, 17, 35):
        assert stats.chisquare(np.bincount(drawn[:, cell], minlength=6)).pvalue > 1e-6
    first = drawn[:, :6] @ 6 ** np.arange(6)
    assert stats.chisquare(np.unique(first, return_counts=True)[1]).pvalue > 1e-6
    for line in (1, 5):
        left = drawn[:, 6 * line : 6 * line + 3].argsort(1) @ 3 ** np.arange(3)
        assert stats.chisquare(np.unique(left, return_counts=True)[1]).pvalue > 1e-6
    names = np.argsort(drawn[:, :6], 1)
    back = np.take_along_axis(names, drawn, 1) @ 6.0 ** np.arange(35, -1, -1)
    place = np.searchsorted(sudoku.reduced(SIX) @ 6.0 ** np.arange(35, -1, -1), back * (1 + 1e-15), side="right") - 1
    assert stats.chisquare(np.bincount(place // 96, minlength=408)).pvalue > 1e-6


def test_a_draw_depends_on_seed_part_and_number_alone() -> None:
    assert np.array_equal(sudoku.draw(SIX, 5), sudoku.draw(SIX, 50)[:5])
    assert not np.array_equal(sudoku.draw(SIX, 5), sudoku.draw(SIX, 5, seed=1))
    assert not np.array_equal(sudoku.draw(SIX, 5), sudoku.draw(SIX, 5, part="valid"))


def test_solutions_are_those_of_the_list() -> None:
    every = sudoku.everything(FOUR).astype(np.int64)
    rng = np.random.default_rng(0)
    for _ in range(40):
        puzzle = np.where(rng.random(16) < 0.3, every[rng.integers(288)], EMPTY)
        agree = every[((puzzle == EMPTY) | (every == puzzle)).all(1)]
        found = sudoku.solutions(puzzle, FOUR, limit=1000)
        assert sorted(found) == sorted(agree.tolist())
    assert sudoku.solutions(np.array([0, 0, *[EMPTY] * 14]), FOUR) == []


def test_a_puzzle_has_one_solution_and_so_many_clues() -> None:
    grid = sudoku.draw(SIX, 1, seed=3)[0]
    for clues in (12, 20, 36):
        made = sudoku.puzzle(grid, clues, SIX, seed=clues)
        assert made is not None and (made != EMPTY).sum() == clues
        assert sudoku.solutions(made, SIX) == [grid.tolist()]
    assert sudoku.puzzle(grid, 3, SIX, seed=0) is None, "three clues leave two values that may be exchanged"
    with pytest.raises(ValueError, match="36 cells"):
        sudoku.puzzle(grid, 37, SIX, seed=0)


def test_the_puzzles_of_the_page_have_one_solution() -> None:
    script = (Path(sudoku.__file__).parents[1] / "serve/web/puzzle.js").read_text()
    examples = dict(re.findall(r'^  (\d): "([\d. ]+)"', script, re.MULTILINE))
    assert set(examples) == {"4", "6", "9"}
    for side, shape in (("4", FOUR), ("6", SIX), ("9", Shape(3, 3))):
        cells = [EMPTY if cell == "." else int(cell) - 1 for cell in examples[side].replace(" ", "")]
        assert len(sudoku.solutions(np.array(cells), shape)) == 1, side
