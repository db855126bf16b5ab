"""The exact distributions of 4 x 4 Sudoku against the samplers."""

import numpy as np
import pytest
import torch
from recipes.corpora import sudoku
from recipes.corpora.nae_sat import NaeSat
from scipy import stats

import unmask
from benchmarks import puzzles
from benchmarks import sudoku as exact
from unmask.samplers import decoding

NUM = 6_000


def drawn(**options: object) -> np.ndarray:
    return unmask.sample(exact.oracle(), num=NUM, length=16, batch=1000, seed=0, **options).tokens.numpy()


def counts_of(grids: np.ndarray, listed: np.ndarray) -> np.ndarray:
    place = {tuple(grid): i for i, grid in enumerate(listed.tolist())}
    found = [place[tuple(grid)] for grid in grids.tolist() if tuple(grid) in place]
    return np.bincount(found, minlength=len(listed))


def test_the_product_along_the_path_is_the_distribution_of_margin() -> None:
    p, calls = exact.by_path(exact.oracle(), exact.ranked(decoding.gap, 1))
    assert (calls == 16).all()
    counts = counts_of(drawn(sampler=decoding.margin()), exact.oracle().sequences.numpy())
    assert stats.chisquare(counts, p.numpy() * NUM).pvalue > 1e-6


def test_the_sum_over_subsets_is_the_distribution_of_low_confidence() -> None:
    """By the 12 classes of grids that are equal but for the names of the values."""
    model, reduced = exact.oracle(), sudoku.reduced(exact.FOUR)
    few = [0, 5]
    p = 24 * np.array([exact.by_subsets(model, torch.from_numpy(reduced[i]).long()) for i in few])
    grids = drawn(sampler=decoding.leftmost(decoding.low_confidence()))
    named = np.take_along_axis(np.argsort(grids[:, :4], 1), grids, 1)
    counts = counts_of(named, reduced)
    assert counts.sum() == NUM
    for i, expected in zip(few, p, strict=True):
        assert stats.binomtest(int(counts[i]), NUM, float(expected)).pvalue > 1e-6


def test_with_one_cell_a_call_no_order_by_visible_cells_changes_the_distribution() -> None:
    model = exact.oracle()
    orders = [exact.fixed(torch.randperm(16, generator=torch.Generator().manual_seed(i)), 1) for i in range(5)]
    orders += [exact.ranked(decoding.gap, 1), exact.ranked(decoding.negative_entropy, 1), exact.bounded(0.0)]
    for choose in orders:
        p, _ = exact.by_path(model, choose)
        torch.testing.assert_close(p, torch.full_like(p, 1 / 288))


@pytest.mark.parametrize(("corpus", "clues"), [("sudoku6", 14), ("sudoku9", 40)])
def test_the_puzzles_have_the_number_of_clues_and_one_solution(corpus: str, clues: int) -> None:
    shape = sudoku.SHAPES[corpus]
    canvas, solution = puzzles.puzzles(corpus, clues, 3)
    assert ((canvas >= 0).sum(1) == clues).all() and sudoku.is_valid(solution, shape).all()
    for puzzle, grid in zip(canvas, solution, strict=True):
        assert sudoku.solutions(puzzle.numpy(), shape) == [grid.tolist()]


def test_solved_counts_whole_grids() -> None:
    """A network that knows the solutions solves all; one that knows none, none."""
    _, solution = puzzles.puzzles("sudoku6", 14, 3)
    every = torch.zeros(3, 36, 6, dtype=torch.float64).scatter_(2, solution.unsqueeze(-1), 1.0)

    class Knows:
        vocab_size, mask_id = 6, 6

        def __init__(self, shift: int) -> None:
            self.shift = shift

        def __call__(self, tokens: torch.Tensor, time: object = None, rows: torch.Tensor | None = None) -> torch.Tensor:
            logits = every.roll(self.shift, 2).log()[: len(tokens)]
            return logits if rows is None else logits.gather(1, rows.unsqueeze(-1).expand(-1, -1, 6))

    assert puzzles.solved(Knows(0), "sudoku6", 14, 3, {})["part"] == 1
    assert puzzles.solved(Knows(1), "sudoku6", 14, 3, {})["part"] == 0


def test_the_true_posterior_of_nae_sat_is_right_in_every_order_one_token_a_call() -> None:
    law = NaeSat(6, 12)
    rows = list(puzzles.of_nae_sat(puzzles.truth(law), law, 16))
    assert [row["given"] for row in rows] == ["nothing"] * 5 + ["the observations"] * 5
    assert all(row["right"] == 1 and row["all_right"]["part"] == 1 for row in rows)
    guessing = puzzles.of_nae_sat(unmask.EnumeratedOracle(torch.full((2,) * 4, 1 / 16)), NaeSat(3, 1), 64)
    assert 0.3 < next(guessing)["right"] < 0.7  # the measure can say no: of fair bits half are right
