"""Entropy, distinct n-grams, repetition, unigrams and MAUVE against values known by hand or by scipy."""

import math
import sys

import numpy as np
import pytest
import torch
from scipy import stats

from tests.helpers import generator
from unmask.evaluate.judge import diversity


@pytest.mark.parametrize("length", [1, 7, 1024])
def test_entropy_of_a_constant_is_zero_and_of_distinct_tokens_log_of_their_number(length: int) -> None:
    tokens = torch.stack([torch.full((length,), 3), torch.randperm(length, generator=generator(0))])
    found = diversity.sequence_entropy(tokens)
    assert found.dtype == torch.float64
    assert float(found[0]) == 0.0
    assert float(found[1]) == pytest.approx(math.log(length), abs=1e-12)


def test_entropy_is_of_each_sequences_own_frequencies() -> None:
    tokens = torch.randint(0, 20, (9, 50), generator=generator(1))
    expected = [stats.entropy(np.unique(row, return_counts=True)[1]) for row in tokens.numpy()]
    assert diversity.sequence_entropy(tokens).tolist() == pytest.approx(expected)


def test_padding_counts_as_nothing_and_an_empty_sequence_has_no_entropy() -> None:
    padded = torch.tensor([[1, 2, -1, -1], [-1, -1, -1, -1]])
    assert diversity.sequence_entropy(padded).tolist() == pytest.approx([math.log(2), 0.0])
    ragged = [torch.tensor([1, 2]), torch.tensor([], dtype=torch.int64)]
    assert diversity.sequence_entropy(ragged).equal(diversity.sequence_entropy(padded))
    assert diversity.self_repetition(padded, 1).tolist() == [0.0, 0.0]
    assert diversity.distinct(padded, 1) == 1.0


def test_distinct_counts_over_all_sequences() -> None:
    tokens = torch.tensor([[1, 2, 1, 2], [1, 2, 3, 4]])
    assert diversity.distinct(tokens, 1) == 4 / 8
    assert diversity.distinct(tokens, 2) == 4 / 6  # 12 21 23 34 of 12 21 12 12 23 34
    assert diversity.distinct(tokens, 4) == 1.0
    assert math.isnan(diversity.distinct(tokens, 5))


def test_repetition_is_of_a_sequence_with_itself() -> None:
    tokens = torch.tensor([[1, 2, 1, 2, 1], [1, 2, 3, 4, 5], [7, 7, 7, 7, 7]])
    assert diversity.self_repetition(tokens, 2).tolist() == [1 - 2 / 4, 0.0, 1 - 1 / 4]
    assert diversity.self_repetition(tokens, 9).tolist() == [0.0, 0.0, 0.0]


def test_unigrams_against_the_datas() -> None:
    tokens, counts = torch.tensor([[0, 0, 1, 2]]), torch.tensor([4, 2, 2, 8])
    p, q = [0.5, 0.25, 0.25, 0.0], np.array([4, 2, 2, 8]) / 16
    assert diversity.unigram_kl(tokens, counts, smoothing=0.0) == pytest.approx(stats.entropy(p, q))
    assert diversity.unigram_kl(tokens, counts[:3], smoothing=0.0) == pytest.approx(0.0, abs=1e-12)
    unseen = torch.tensor([4, 0, 2, 8])
    assert diversity.unigram_kl(tokens, unseen, smoothing=0.0) == math.inf
    assert math.isfinite(diversity.unigram_kl(tokens, unseen))


def test_wrong_arguments() -> None:
    tokens = torch.tensor([[0, 5]])
    with pytest.raises(ValueError, match="below V=3"):
        diversity.unigram_kl(tokens, torch.ones(3))
    with pytest.raises(ValueError, match="not negative"):
        diversity.unigram_kl(tokens, -torch.ones(9))
    with pytest.raises(ValueError, match="at least one token"):
        diversity.unigram_kl(torch.tensor([[-1]]), torch.ones(9))
    with pytest.raises(ValueError, match="n must be at least 1"):
        diversity.distinct(tokens, 0)
    with pytest.raises(ValueError, match=r"\[batch, length\]"):
        diversity.sequence_entropy(tokens[0])


@pytest.mark.filterwarnings("ignore")  # of the package's own libraries
def test_mauve_distinguishes_similar_from_different_texts() -> None:
    pytest.importorskip("mauve")
    normal = torch.randn(3, 200, 8, generator=generator(2))
    options = {"num_buckets": 10, "kmeans_num_redo": 1, "kmeans_max_iter": 50}
    like = diversity.mauve(normal[0], normal[1], **options)
    unlike = diversity.mauve(normal[0], normal[2] + 4, **options)
    assert 0 <= unlike < 0.2 < 0.8 < like <= 1
    assert diversity.mauve(normal[0], normal[1], **options) == like
    with pytest.raises(ValueError, match=r"\[N, D\]"):
        diversity.mauve(normal[0], normal[1, :, :4])


def test_mauve_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mauve", None)
    with pytest.raises(ModuleNotFoundError, match=r"unmask\[mauve\]"):
        diversity.mauve(torch.zeros(2, 2), torch.zeros(2, 2))
