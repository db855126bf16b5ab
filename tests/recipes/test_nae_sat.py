"""Latents and observations: the rule, the distribution, and the true posterior."""

import math

import numpy as np
import pytest
import torch
from recipes.corpora.listed import ListedOracle
from recipes.corpora.nae_sat import NaeSat
from scipy import stats


def test_an_observation_is_whether_its_three_latents_differ() -> None:
    law = NaeSat(6, 20, seed=1)
    drawn = law.draw(200)
    assert sorted(map(tuple, law.triples.tolist())) == sorted({tuple(sorted(set(t))) for t in law.triples.tolist()})
    for row in drawn.tolist():
        for j, (a, b, c) in enumerate(law.triples):
            assert row[6 + j] == (len({row[a], row[b], row[c]}) > 1)
    assert law.right(drawn).all()
    assert not law.right(np.concatenate((drawn[:, :6], 1 - drawn[:, 6:]), 1)).any()


def test_latents_are_fair_and_independent() -> None:
    law = NaeSat(4, 4)
    drawn = law.draw(16_000)
    counts = np.bincount(drawn[:, :4] @ 2 ** np.arange(4), minlength=16)
    assert stats.chisquare(counts).pvalue > 1e-6
    assert np.array_equal(law.draw(7), drawn[:7]) and not np.array_equal(law.draw(7, part="valid"), drawn[:7])


def test_the_list_is_the_distribution() -> None:
    law = NaeSat(5, 9)
    oracle = ListedOracle(torch.from_numpy(law.everything()).long(), 2)
    drawn = torch.from_numpy(law.draw(64)).long()
    torch.testing.assert_close(oracle.log_likelihood(drawn), torch.full((64,), -law.nats, dtype=torch.float64))
    assert oracle.entropy() == pytest.approx(5 * math.log(2))


def test_more_observations_than_triples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"from 1 to 4 observations"):
        NaeSat(4, 5)
    with pytest.raises(ValueError, match="at most 20"):
        NaeSat(21, 5).everything()
