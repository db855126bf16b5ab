"""The oracle of listed sequences against the one of a full table, and 4 x 4 Sudoku in every order."""

import numpy as np
import pytest
import torch
from recipes.corpora import sudoku
from recipes.corpora.listed import ListedOracle

import unmask
from unmask.samplers import decoding

FOUR = sudoku.Shape(2, 2)
GRIDS = torch.from_numpy(sudoku.everything(FOUR)).long()


@pytest.mark.parametrize("mask_id", [None, 3])
def test_it_says_what_the_oracle_of_a_full_table_says(mask_id: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    joint = torch.rand((4,) * 4, generator=generator, dtype=torch.float64) ** 4
    joint[joint < 0.1] = 0
    for axis in range(4):
        joint.select(axis, 3).zero_()
    joint /= joint.sum()
    listed = joint.nonzero()
    ours = ListedOracle(listed, 4, probabilities=joint[tuple(listed.T)], mask_id=mask_id)
    full = unmask.EnumeratedOracle(joint, mask_id=mask_id)
    tokens = ours.sample(50, generator=generator)
    tokens[torch.rand(tokens.shape, generator=generator) < 0.6] = full.mask_id
    rows = torch.tensor([[2, 0]]).expand(50, 2)
    torch.testing.assert_close(ours(tokens), full(tokens))
    torch.testing.assert_close(ours(tokens, rows=rows), full(tokens, rows=rows))
    torch.testing.assert_close(ours.log_likelihood(tokens), full.log_likelihood(tokens))
    assert ours.entropy() == pytest.approx(full.entropy())
    impossible = (joint == 0).nonzero()[:1]
    with pytest.raises(ValueError, match="impossible"):
        ours(impossible)


def test_sequences_must_be_different() -> None:
    with pytest.raises(ValueError, match="different"):
        ListedOracle(torch.tensor([[0, 1], [0, 1]]), 2)


@pytest.mark.parametrize(
    "options",
    [{}, {"sampler": decoding.margin()}, {"sampler": decoding.entropy()}, {"sampler": decoding.low_confidence()}],
    ids=["random", "margin", "entropy", "low confidence"],
)
def test_an_exact_network_solves_in_any_order(options: dict) -> None:
    """One token per call, whatever the order: every grid is valid, from nothing and from a puzzle's clues."""
    oracle = ListedOracle(GRIDS, 4)
    free = unmask.sample(oracle, num=60, length=16, seed=0, **options).tokens.numpy()
    assert sudoku.is_valid(free, FOUR).all() and len(np.unique(free, axis=0)) > 20
    clues = torch.where(torch.arange(16) % 5 == 0, GRIDS[::7], oracle.mask_id)
    solved = unmask.sample(oracle, canvas=clues, seed=1, **options).tokens
    assert sudoku.is_valid(solved.numpy(), FOUR).all()
    assert torch.equal(solved[clues != 4], clues[clues != 4])


def test_several_cells_at_once_do_not_always_solve() -> None:
    made = unmask.sample(ListedOracle(GRIDS, 4), num=60, length=16, steps=1, seed=0).tokens.numpy()
    assert not sudoku.is_valid(made, FOUR).all()
