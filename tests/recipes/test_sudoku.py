"""Sudoku: the numbers of grids, a uniform draw, and puzzles with one solution."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from recipes.corpora import sudoku
from recipes.corpora.sudoku import EMPTY, Shape, crosses
from scipy import stats

import unmask
from unmask.noise import Noise, Streams

FOUR, SIX, NINE = Shape(2, 2), Shape(2, 3), Shape(3, 3)


def test_all_grids_are_listed() -> None:
    assert (len(sudoku.reduced(FOUR)), sudoku.count(FOUR)) == (12, 288)
    assert (len(sudoku.reduced(SIX)), sudoku.count(SIX)) == (39_168, 28_200_960)
    for shape in (FOUR, SIX):
        grids = sudoku.reduced(shape)
        assert sudoku.is_valid(grids, shape).all() and len(np.unique(grids, axis=0)) == len(grids)
        assert (grids[:, : shape.size] == np.arange(shape.size)).all()
    with pytest.raises(ValueError, match="too many to list"):
        sudoku.reduced(NINE)


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


def noise(num: int) -> Noise:
    return Streams.of(5, num).at("test", 7)


@pytest.mark.parametrize(("shape", "most", "num"), [(FOUR, 1, 4_800), (SIX, 4, 6_000)])
def test_grids_drawn_by_their_crosses_are_uniform(
    shape: Shape, most: int, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all grids can be listed; false alarms have probability 1e-6.

    Grids whose cross has many completions are as likely as others: without the rejection they would be too rare.
    """
    reduced = sudoku.reduced(shape)
    monkeypatch.setitem(crosses.MOST, shape, (most, most))
    drawn = crosses.draw(shape, noise(num)).astype(np.int64)
    assert sudoku.is_valid(drawn, shape).all()
    back = np.take_along_axis(drawn[:, : shape.size].argsort(1), drawn, 1)
    place = {grid.tobytes(): i for i, grid in enumerate(reduced)}
    found = np.array([place[grid.tobytes()] for grid in back.astype(np.uint8)])
    assert stats.chisquare(np.bincount(found * 12 // len(reduced), minlength=12)).pvalue > 1e-6
    assert stats.chisquare(np.bincount(drawn[:, -1], minlength=shape.size)).pvalue > 1e-6
    of_cross = reduced.reshape(-1, shape.size, shape.size).copy()
    of_cross[:, shape.lines :, shape.columns :] = 0
    _, which, completions = np.unique(of_cross, axis=0, return_inverse=True, return_counts=True)
    assert completions.max() == most
    each = completions[which.ravel()]
    sizes = np.unique(each)
    wanted = np.array([(each == size).mean() for size in sizes]) * num
    got = np.array([(each[found] == size).sum() for size in sizes])
    assert stats.chi2.sf(((got - wanted) ** 2 / wanted).sum(), max(1, len(sizes) - 1)) > 1e-6


def test_the_first_bands_are_as_many_as_known() -> None:
    """Up to the order in lines; with it there are 56 * 6^6 = 2,612,736 of 9 x 9 (Felgenhauer and Jarvis)."""
    assert [len(crosses.bands(shape)) for shape in (FOUR, SIX, Shape(3, 2), NINE)] == [1, 1, 10, 56]


def test_the_completions_of_a_cross_are_its_solutions() -> None:
    for shape, num in ((FOUR, 10), (SIX, 10), (NINE, 1)):
        for cross in crosses.crosses(shape, noise(num)[:, :4]):
            found = crosses.completions(cross, shape)
            grids = sorted(found.grid(i).flatten().tolist() for i in range(len(found)))
            assert grids == sorted(sudoku.solutions(cross.flatten(), shape, limit=10**5))


def test_the_mean_number_of_completions_counts_the_grids_of_nine_by_nine() -> None:
    """9! * 2,612,736^2 * mean N is the number of grids, here within 1%; false alarms have probability 1e-6.

    A cross is accepted by N, so too small a maximum would change the distribution: none may exceed it.
    """
    drawn = crosses.crosses(NINE, noise(1_000)[:, :4])
    number = np.array([len(crosses.completions(cross, NINE)) for cross in drawn])
    exact = sudoku.count(NINE) / math.factorial(9) / 2_612_736**2
    error = number.std() / len(number) ** 0.5
    assert error < 0.004 * exact and abs(number.mean() - exact) < 4.9 * error
    most, usual = crosses.MOST[NINE]
    differ = np.array([crosses.columns_differ(cross, NINE) for cross in drawn])
    assert number.max() <= most and number[differ].max() <= usual and 0.9 < differ.mean() < 1


def test_the_cross_with_the_most_completions_has_as_many_as_stated() -> None:
    """Columns and lines of the later boxes are the same triples; ``benchmarks/sudoku_count.py``: none has more."""
    triples = np.arange(9).reshape(3, 3)
    cross = np.full((9, 9), EMPTY)
    cross[:3, 3:], cross[3:, :3] = np.tile(triples.T, 2), np.tile(triples, (2, 1))
    assert not crosses.columns_differ(cross, NINE)
    assert len(crosses.completions(cross, NINE)) == crosses.MOST[NINE][0]


def test_nine_by_nine_is_drawn_and_has_puzzles() -> None:
    drawn = sudoku.draw(NINE, 300, seed=2)
    assert sudoku.is_valid(drawn, NINE).all() and len(np.unique(drawn, axis=0)) == 300
    for cell in (0, 40, 80):
        assert stats.chisquare(np.bincount(drawn[:, cell], minlength=9)).pvalue > 1e-6
    made = sudoku.puzzle(drawn[0], 32, NINE, seed=0)
    assert made is not None and sudoku.solutions(made, NINE) == [drawn[0].tolist()]


@pytest.mark.parametrize("shape", [SIX, NINE])
def test_a_draw_depends_on_seed_part_and_number_alone(shape: Shape) -> None:
    drawn = sudoku.draw(shape, 12)
    assert np.array_equal(sudoku.draw(shape, 5, first=7), drawn[7:])
    assert not np.array_equal(sudoku.draw(shape, 5), sudoku.draw(shape, 5, seed=1))
    assert not np.array_equal(sudoku.draw(shape, 5), sudoku.draw(shape, 5, part="valid"))


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
    script = (Path(unmask.__file__).parent / "serve/web/puzzle.js").read_text()
    examples = dict(re.findall(r'^  (\d): "([\d. ]+)"', script, re.MULTILINE))
    assert set(examples) == {"4", "6", "9"}
    for side, shape in (("4", FOUR), ("6", SIX), ("9", NINE)):
        cells = [EMPTY if cell == "." else int(cell) - 1 for cell in examples[side].replace(" ", "")]
        assert len(sudoku.solutions(np.array(cells), shape)) == 1, side
