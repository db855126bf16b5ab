"""The law of a bound is that of ``sample``, for every kind of network: all sequences of tiny ones are enumerated."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

import unmask
from tests.helpers import FALSE_ALARM, generator
from tests.samplers.strings import StringsOracle
from tests.small_models import small
from unmask.likelihood import along_orders
from unmask.model import Model
from unmask.networks.causal import Causal
from unmask.networks.ddit import DDiT
from unmask.processes import Insertion, process_of
from unmask.tokenizers.vocabularies import characters

ROWS, IDS, LENGTH = 6_000, 3, 3
LETTERS = characters("ab", eos=True)
SIZES: dict[str, Any] = {"vocab_size": IDS, "mask_id": IDS, "length": 4, "width": 16, "layers": 1, "heads": 2}
EVERY = torch.tensor(list(itertools.product(range(IDS), repeat=LENGTH)))
ANY = list(itertools.permutations(range(LENGTH)))
IN_BLOCKS, FROM_LEFT = [(0, 1, 2), (1, 0, 2)], [(0, 1, 2)]
ADAPTED: dict[str, Any] = {"adaln": False, "adapters": 4}
BLOCKED: dict[str, Any] = {"attention": "block", "block": 2}

# The networks, the orders that ``sample`` takes by default, and what the law is called.
NETWORKS: dict[str, tuple[Any, list[tuple[int, ...]], str]] = {
    "masked": (small(DDiT, std=0.12, **SIZES), ANY, "in a random order"),
    "any order": (small(DDiT, std=0.12, **SIZES, attention="order"), ANY, "in a random order"),
    "blocks": (small(DDiT, std=0.12, **SIZES, **BLOCKED), IN_BLOCKS, "block by block, each in a random order"),
    "left to right": (small(Causal, std=0.12, **SIZES), FROM_LEFT, "from left to right"),
    "adapters": (small(DDiT, std=0.2, **SIZES, **ADAPTED), FROM_LEFT, "from left to right"),
    "adapters of blocks": (small(DDiT, std=0.2, **SIZES, **ADAPTED, **BLOCKED), FROM_LEFT, "from left to right"),
}


def nats(network: Any, orders: list[tuple[int, ...]]) -> Tensor:
    """-log p of every sequence along each of the orders: [27, orders]."""
    if process_of(network).exact:
        return unmask.likelihood.exact(network, EVERY).nats.unsqueeze(1)
    with torch.inference_mode():
        return along_orders(network, EVERY, torch.tensor(orders))


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_default_bound_is_of_the_law_that_sample_draws_from(kind: str) -> None:
    """sample draws from p(x) = E p(x | order); the bound is E[-log p(x | order)] over the same orders.

    A chi-square over all 27 sequences and the bounds within 5 of their errors together: false alarm below 1e-5.
    """
    network, orders, law = NETWORKS[kind]
    each = nats(network, orders)
    p, expected = (-each).exp().mean(1), each.mean(1)
    drawn = unmask.sample(network, num=ROWS, length=LENGTH, seed=2).tokens
    counts = torch.bincount(drawn @ torch.tensor([9, 3, 1]), minlength=27)
    assert stats.chisquare(counts, ROWS * p / p.sum()).pvalue > FALSE_ALARM
    bound = unmask.nelbo(network, EVERY, passes=200, seed=1)
    assert bound.law == law and f"tokens drawn {law}" in repr(bound)
    if len(orders) == 1:
        assert bound.exact
        torch.testing.assert_close(bound.nats, -p.log(), rtol=0, atol=1e-5)
    else:
        assert not bound.exact and float((expected + p.log()).max()) > 0.01, "there is a gap to see"
        off = (bound.nats - expected) / bound.errors
        assert abs(float(off.sum())) < 5 * len(off) ** 0.5 and float(off.abs().max()) < 6


def test_the_laws_differ_where_the_default_order_is_from_left_to_right() -> None:
    """What ``by="count"`` bounds is another law there, so the default matters, and the bound says which law it has."""
    for kind in ("adapters", "adapters of blocks"):
        network, orders, _ = NETWORKS[kind]
        other = ANY if kind == "adapters" else IN_BLOCKS
        own, expected = nats(network, orders)[:, 0], nats(network, other).mean(1)
        assert float((expected - own).min()) < -0.05, "no upper bound on the other's -log p"
        bound = unmask.nelbo(network, EVERY, by="count", passes=200, seed=1)
        assert abs(float(((bound.nats - expected) / bound.errors).sum())) < 5 * 27**0.5
        assert bound.law.endswith("(by default, sampling draws from left to right)")


def test_the_law_of_insertion_is_that_of_its_strings() -> None:
    """The optimal network of a distribution over strings: its bound has no gap. False alarm below 1e-5."""
    strings = [one for n in range(3) for one in itertools.product(range(2), repeat=n)]
    weights = torch.rand(len(strings), dtype=torch.float64, generator=generator(3))
    oracle = StringsOracle(strings, weights / weights.sum(), 2, 3)
    oracle.process = Insertion()  # type: ignore[attr-defined]
    drawn = unmask.sample(oracle, num=ROWS, length=3, seed=1).tokens
    index = {one: k for k, one in enumerate(strings)}
    counts = torch.bincount(torch.tensor([index[tuple(row[row < 2].tolist())] for row in drawn]), minlength=7)
    assert stats.chisquare(counts, ROWS * oracle.probabilities).pvalue > FALSE_ALARM
    bound = unmask.nelbo(oracle, oracle.padded(), passes=400, seed=1)
    off = (bound.nats + oracle.probabilities.log()) / bound.errors
    assert bound.law == "by insertions in a random order" and abs(float(off.sum())) < 5 * 7**0.5


def test_a_text_is_bounded_by_the_same_law() -> None:
    """``Model.bound`` of a model that is sampled from left to right is exact by default, and says so."""
    sizes = {**SIZES, "vocab_size": LETTERS.vocab_size, "mask_id": LETTERS.vocab_size, "length": 6}
    model = Model(small(DDiT, std=0.2, **sizes, **ADAPTED), LETTERS)
    default, counted = model.bound(["abab"]), model.bound(["abab"], by="count", passes=64)
    assert default.exact and default.law == "from left to right" and not counted.exact
    assert float(default.nats) == float(model.bound(["abab"], by="left-to-right").nats) != float(counted.nats)
