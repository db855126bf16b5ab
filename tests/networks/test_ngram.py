"""The Kneser-Ney model: a distribution, the textbook's, and as good as the truth where the truth is an n-gram model."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.evaluate.files import chain, entropy
from tests.helpers import generator
from unmask.networks.ngram import KneserNey, NgramDenoiser, kneser_ney

V = 6
Documents = list[list[int]]


def documents(num: int = 60, seed: int = 0) -> Documents:
    """Skewed tokens that repeat what came before, so that small and large counts all occur; 5 never does."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(num):
        tokens = list(rng.choice(5, size=rng.integers(0, 25), p=[0.5, 0.25, 0.15, 0.08, 0.02]))
        made.append([int(t) for t in tokens + tokens[: rng.integers(0, 4)]])
    return made


def arrays(texts: Documents) -> list[NDArray[np.int64]]:
    return [np.array(text, dtype=np.int64) for text in texts]


class Textbook:
    """Chen and Goodman's formulas by dictionaries of tuples, slow and literal."""

    def __init__(self, texts: Documents, order: int) -> None:
        self.order = order
        padded = [("<s>", *text) for text in texts]
        plain = Counter(
            text[i : i + k] for text in padded for k in range(1, order + 1) for i in range(len(text) - k + 1)
        )
        before: dict[tuple, set] = defaultdict(set)
        for gram in plain:
            before[gram[1:]].add(gram[0])
        self.counts = {
            gram: count if len(gram) == order or gram[0] == "<s>" else len(before[gram])
            for gram, count in plain.items()
            if gram != ("<s>",)
        }
        self.after: dict[tuple, dict] = defaultdict(dict)
        for gram, count in self.counts.items():
            self.after[gram[:-1]][gram[-1]] = count

    def discount(self, k: int, count: int) -> float:
        if count == 0:
            return 0.0
        sizes = Counter(c for gram, c in self.counts.items() if len(gram) == k)
        n1, n2, n3, n4 = (sizes[i] for i in (1, 2, 3, 4))
        if min(n1, n2, n3, n4) > 0:
            y = n1 / (n1 + 2 * n2)
            estimates = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
            if min(estimates) > 0:
                return estimates[min(count, 3) - 1]
        return min(count, 3) / 2

    def p(self, token: int, context: tuple) -> float:
        lower = self.p(token, context[1:]) if context else 1 / V
        seen = self.after.get(context)
        if not seen:
            return lower
        k, total = len(context) + 1, sum(seen.values())
        left = sum(self.discount(k, count) for count in seen.values()) / total
        own = seen.get(token, 0)
        return (own - self.discount(k, own)) / total + left * lower

    def log_prob(self, text: list[int]) -> list[float]:
        padded = ("<s>", *text)
        return [float(np.log(self.p(padded[i], padded[max(0, i - self.order + 1) : i]))) for i in range(1, len(padded))]


def over_vocabulary(model: KneserNey, context: list[int]) -> NDArray[np.float64]:
    """p(. | a document that begins with this context)."""
    rows = np.array([[*context, token] for token in range(V)])
    return np.exp(model.log_prob(rows)[:, -1])


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_it_is_the_textbooks(order: int) -> None:
    train, held_out = documents(), [*documents(20, seed=1), [5, 5, 0], [5]]
    model, book = kneser_ney(arrays(train), order, V), Textbook(train, order)
    found = model.log_prob(arrays(held_out))
    np.testing.assert_allclose(found, [x for text in held_out for x in book.log_prob(text)], rtol=1e-12)
    if order > 2:
        assert any(not np.array_equal(one.discounts, [0, 0.5, 1, 1.5]) for one in model.orders)


@pytest.mark.parametrize("order", [1, 2, 3, 5, 30])
@pytest.mark.parametrize("context", [[], [0], [5], [0, 1, 0], [5, 5, 5, 5, 0], [3, 3, 3, 3, 3]])
def test_it_sums_to_one_and_nothing_is_impossible(order: int, context: list[int]) -> None:
    p = over_vocabulary(kneser_ney(arrays(documents()), order, V), context)
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert (p > 0).all()


def test_no_n_gram_reaches_into_the_next_document() -> None:
    train = arrays(documents())
    model, other = kneser_ney(train, 3, V), kneser_ney(train[::-1], 3, V)
    np.testing.assert_array_equal(model.log_prob(train[:7]), other.log_prob(train[:7]))
    assert not np.array_equal(kneser_ney([np.concatenate(train)], 3, V).orders[2].keys, model.orders[2].keys)


def test_rows_and_lists_are_the_same_documents() -> None:
    rows = np.random.default_rng(0).integers(V, size=(50, 9))
    model = kneser_ney(rows, 4, V)
    assert model.tokens == 450
    one_by_one = kneser_ney(list(rows), 4, V).log_prob(list(rows)).reshape(50, 9)
    np.testing.assert_array_equal(model.log_prob(rows.astype(np.uint8)), one_by_one)
    np.testing.assert_array_equal(model.log_prob(rows[3]), one_by_one[3])


def test_it_comes_to_the_entropy_of_a_markov_chain() -> None:
    """Its cross-entropy exceeds the entropy by what 20 parameters cost on 40,000 tokens, and by noise."""
    train, held_out = (chain().sample(4_000, 10, generator=generator(seed)).numpy() for seed in (0, 1))
    nats = -kneser_ney(train, 2, 4).log_prob(held_out).sum(1)
    error = nats.std() / np.sqrt(len(nats))
    assert abs(nats.mean() - entropy(chain(), 10)) < 5 * error + 0.02


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(ValueError, match="order=0: it must be at least 1"):
        kneser_ney(arrays(documents()), 0, V)
    with pytest.raises(ValueError, match=r"they must be token ids in 0\.\.4"):
        kneser_ney([np.array([0, 5])], 2, 5)
    with pytest.raises(ValueError, match="token ids"):
        kneser_ney([np.array([0.5])], 2, 5)
    with pytest.raises(ValueError, match="no token"):
        kneser_ney([], 2, 5)


class TestCountsAsADenoiser:
    """A position given the visible tokens to its left, up to the first masked one: the same probabilities."""

    @pytest.fixture(scope="class")
    def counts(self) -> NgramDenoiser:
        return NgramDenoiser(kneser_ney(arrays(documents(300)), 3, V), V)

    def test_of_whole_texts_are_the_likelihood(self, counts: NgramDenoiser) -> None:
        rows = np.random.default_rng(1).integers(0, V, (20, 9))
        logits = counts(torch.from_numpy(rows))
        assert torch.allclose(logits.exp().sum(-1), torch.ones(20, 9, dtype=torch.float64))
        chosen = logits.gather(2, torch.from_numpy(rows).unsqueeze(2)).squeeze(2)
        assert np.allclose(chosen.numpy(), counts.model.log_prob(rows))

    def test_see_nothing_beyond_a_masked_position(self, counts: NgramDenoiser) -> None:
        x = torch.tensor([[0, 1, V, 2, V, V]])
        given = counts(x, rows=torch.tensor([[2, 4, 5]]))[0].exp().numpy()
        expected = counts.model.following(np.array([[0, 1], [-1, 2], [-1, -1]]))
        assert np.allclose(given, expected)
        shorter = NgramDenoiser(kneser_ney(arrays(documents(300)), 1, V), V)
        assert np.allclose(shorter.model.following(np.zeros((1, 0), dtype=int))[0].sum(), 1)
