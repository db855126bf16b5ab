"""The exact laws of 4 x 4 Sudoku against the samplers themselves."""

import numpy as np
import torch
from benchmarks import sudoku as exact
from scipy import stats

import unmask
from unmask.data import sudoku
from unmask.samplers import decoding

NUM = 6_000


def drawn(**options: object) -> np.ndarray:
    return unmask.sample(exact.oracle(), num=NUM, length=16, batch=1000, seed=0, **options).tokens.numpy()


def counts_of(grids: np.ndarray, listed: np.ndarray) -> np.ndarray:
    place = {tuple(grid): i for i, grid in enumerate(listed.tolist())}
    found = [place[tuple(grid)] for grid in grids.tolist() if tuple(grid) in place]
    return np.bincount(found, minlength=len(listed))


def test_the_product_along_the_path_is_the_law_of_margin() -> None:
    p, calls = exact.by_path(exact.oracle(), exact.ranked(decoding.gap, 1))
    assert (calls == 16).all()
    counts = counts_of(drawn(sampler=decoding.margin()), exact.oracle().sequences.numpy())
    assert stats.chisquare(counts, p.numpy() * NUM).pvalue > 1e-6


def test_the_sum_over_subsets_is_the_law_of_low_confidence() -> None:
    """By the 12 classes of grids that are equal but for the names of the values."""
    model, reduced = exact.oracle(), sudoku.reduced(exact.FOUR)
    few = [0, 5]
    p = 24 * np.array([exact.by_subsets(model, torch.from_numpy(reduced[i]).long()) for i in few])
    grids = drawn(sampler=decoding.low_confidence())
    named = np.take_along_axis(np.argsort(grids[:, :4], 1), grids, 1)
    counts = counts_of(named, reduced)
    assert counts.sum() == NUM
    for i, expected in zip(few, p, strict=True):
        assert stats.binomtest(int(counts[i]), NUM, float(expected)).pvalue > 1e-6


def test_with_one_cell_a_call_no_order_that_looks_at_what_is_visible_changes_the_law() -> None:
    model = exact.oracle()
    orders = [exact.fixed(torch.randperm(16, generator=torch.Generator().manual_seed(i)), 1) for i in range(5)]
    orders += [exact.ranked(decoding.gap, 1), exact.ranked(decoding.negative_entropy, 1), exact.bounded(0.0)]
    for choose in orders:
        p, _ = exact.by_path(model, choose)
        torch.testing.assert_close(p, torch.full_like(p, 1 / 288))
