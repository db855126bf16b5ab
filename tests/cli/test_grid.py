"""Puzzles on the terminal: the grid, what breaks its rules, and a puzzle as it is typed."""

from __future__ import annotations

import pytest

import unmask
from unmask.cli import main
from unmask.cli.grid import conflicts, grid, typed

SOLVED = "123456456123231564564231312645645312"


def test_a_grid_has_its_boxes_and_marks_what_breaks_a_rule() -> None:
    lines = grid(SOLVED, 6).splitlines()
    assert lines[0] == "1  2  3  | 4  5  6" and lines[2] == "---------+---------" and len(lines) == 8
    wrong = "2" + SOLVED[1:]  # twice in its row, its column and its box
    assert conflicts(wrong, 6) == {0, 1, 12}
    assert grid(wrong, 6).splitlines()[0] == "2* 2* 3  | 4  5  6"
    assert grid(wrong, 6).endswith("3 cells (*) break a rule: a symbol twice in a row, a column or a box")
    assert conflicts(SOLVED, 6) == set()


def test_a_puzzle_is_typed_as_a_grid() -> None:
    model = unmask.load("sudoku")
    text = "1 2 3 | 4 5 .\n4 5 6 | 1 2 3\n------+------\n2 3 1 | 5 6 4\n564231\n312 645\n0 4 5 3 1 _\n"
    assert typed(text, model) == "12345_" + SOLVED[6:30] + "_4531_"
    with pytest.raises(ValueError, match=r"a puzzle of sudoku has 6 x 6 cells, got 5; _, [.] or 0 is empty"):
        typed("1 2 3 4 5", model)
    assert typed("1 2", unmask.load("digits")) == "1 2"


def test_a_broken_grid_names_the_decoding_that_breaks_fewer(capfd: pytest.CaptureFixture[str]) -> None:
    hint = "--decoding margin fills the surest cell first"
    puzzle = "_2__6_ __124_ ____1_ _36___ _5____ 3_26__"
    assert main(["sample", "sudoku", "--seed", "1"]) == 0
    out, err = capfd.readouterr()
    assert conflicts(out.strip(), 6) and hint in err
    assert main(["infill", "sudoku", puzzle, "--seed", "1", "--decoding", "margin"]) == 0
    out, err = capfd.readouterr()
    assert not conflicts(out.strip(), 6) and hint not in err
