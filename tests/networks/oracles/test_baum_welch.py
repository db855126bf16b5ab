"""EM for hidden Markov chains: exact counts, a likelihood that only rises, and a start that lets it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tests.helpers import generator
from tests.networks.oracles.test_oracles import hidden_markov, random_table
from unmask.networks.oracles import baum_welch
from unmask.networks.oracles.enumerated import HiddenMarkovOracle
from unmask.networks.oracles.tables import normalise


def teacher() -> HiddenMarkovOracle:
    """Three states that stay for a while, with emissions that overlap in half of the twelve ids."""
    transition = 0.85 * torch.eye(3) + 0.15 * torch.tensor([[0, 1, 0], [0, 0, 1], [1.0, 0, 0]])
    emission = random_table(3, 12, seed=60) * 0.3
    for state in range(3):
        emission[state, 4 * state : 4 * state + 4] += 0.7 / 4
    return HiddenMarkovOracle(torch.tensor([0.6, 0.3, 0.1]), transition, emission)


def random_start(states: int, vocab_size: int, seed: int) -> HiddenMarkovOracle:
    """Nearly equal states: the start that hardly moves."""
    return HiddenMarkovOracle(
        *(
            normalise(0.5 + torch.rand(*shape, dtype=torch.float64, generator=generator(seed)))
            for shape in ((states,), (states, states), (states, vocab_size))
        )
    )


def test_expected_counts_are_the_sum_over_paths() -> None:
    model = hidden_markov(2, 3, seed=70)
    x, length = torch.tensor([[2, 0, 3, 1]]), 4  # with a masked position
    first, moves, emitted = (torch.zeros(*shape, dtype=torch.float64) for shape in ((2,), (2, 2), (2, 3)))
    total = 0.0
    for z in itertools.product(range(2), repeat=length):
        p = float(model.initial[z[0]])
        for position, v in enumerate(x[0].tolist()):
            p *= float(model.emission[z[position], v]) if v < 3 else 1.0
            p *= float(model.transition[z[position - 1], z[position]]) if position else 1.0
        total += p
        first[z[0]] += p
        for position, v in enumerate(x[0].tolist()):
            if position:
                moves[z[position - 1], z[position]] += p
            if v < 3:
                emitted[z[position], v] += p
    got = baum_welch.expected_counts(x, model.initial, model.transition, model._likelihood)
    torch.testing.assert_close(got[0], first / total, rtol=1e-12, atol=0)
    torch.testing.assert_close(got[1], moves / total, rtol=1e-12, atol=0)
    torch.testing.assert_close(got[2][:, :3], emitted / total, rtol=1e-12, atol=0)
    assert got[3] == pytest.approx(math.log(total), rel=1e-12)


def test_em_never_lowers_the_likelihood_and_comes_near_the_truth() -> None:
    truth = teacher()
    train, held_out = truth.sample(300, 40, generator(1)), truth.sample(100, 40, generator(2))
    history: list[float] = []
    fitted = HiddenMarkovOracle.fit(train, 12, 3, iterations=40, callback=lambda i, nats: history.append(nats))
    history.append(float(fitted.log_likelihood(train).sum()))
    assert len(history) == 41
    assert all(b >= a - 1e-9 * abs(a) for a, b in itertools.pairwise(history))
    # At the maximum the training likelihood passes the truth's by about half a nat for each of the 41 free parameters.
    ours, best = history[-1], float(truth.log_likelihood(train).sum())
    assert 0 < ours - best < 60
    gap = (truth.log_likelihood(held_out) - fitted.log_likelihood(held_out)).sum() / held_out.numel()
    assert float(gap) < 0.01


def test_em_needs_a_start_that_is_not_symmetric() -> None:
    """At a large vocabulary, five iterations gain much over single tokens from classes and little from chance."""
    states, vocab_size = 4, 2000
    transition = 0.02 + 0.92 * torch.eye(4).roll(1, 1)
    emission = torch.full((4, vocab_size), 0.05 / vocab_size, dtype=torch.float64)
    zipf = 1 / torch.arange(1, 501, dtype=torch.float64)
    for state in range(states):
        emission[state, state::states] += 0.95 * zipf / zipf.sum()
    truth = HiddenMarkovOracle(torch.full((4,), 0.25), transition, emission)
    x = truth.sample(60, 256, generator(3))
    share = torch.bincount(x.flatten(), minlength=vocab_size).double() / x.numel()
    unigram = float(torch.xlogy(share, share).sum())

    def history(start: HiddenMarkovOracle | None) -> list[float]:
        nats: list[float] = []
        HiddenMarkovOracle.fit(
            x, vocab_size, states, iterations=6, start=start, callback=lambda i, total: nats.append(total / x.numel())
        )
        return nats

    ours, random = history(None), history(random_start(states, vocab_size, seed=4))
    best = float(truth.log_likelihood(x).sum()) / x.numel()
    assert ours[0] - unigram > 0.5 * (best - unigram)
    assert ours[-1] - unigram > 0.95 * (best - unigram)
    assert random[-1] - unigram < 0.05 * (best - unigram)


def test_em_continues_from_a_start() -> None:
    x = teacher().sample(50, 30, generator(4))
    whole = HiddenMarkovOracle.fit(x, 12, 3, iterations=6)
    half = HiddenMarkovOracle.fit(x, 12, 3, iterations=3)
    continued = HiddenMarkovOracle.fit(x, 12, 3, iterations=3, start=half)
    torch.testing.assert_close(continued.emission, whole.emission, rtol=1e-9, atol=1e-12)


def test_em_is_a_function_of_tokens_and_seed() -> None:
    x = teacher().sample(20, 30, generator(5))
    before = torch.get_rng_state()
    a, b, c = (HiddenMarkovOracle.fit(x, 12, 3, iterations=2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(a.emission, b.emission) and not torch.equal(a.emission, c.emission)
    assert torch.equal(torch.get_rng_state(), before)


def test_em_takes_streams_and_missing_tokens() -> None:
    stream = teacher().sample(1, 1500, generator(6))[0]
    history: list[float] = []
    fitted = HiddenMarkovOracle.fit(stream, 12, 3, iterations=5, callback=lambda i, nats: history.append(nats))
    rows = torch.cat([stream, torch.full((548,), 12)]).view(2, 1024)
    same = HiddenMarkovOracle.fit(rows, 12, 3, iterations=5)
    assert torch.equal(fitted.emission, same.emission)
    assert all(b > a for a, b in itertools.pairwise(history))
    short = HiddenMarkovOracle.fit(stream[:7], 12, 2, iterations=1)
    assert short.vocab_size == 12


def test_em_smoothing_makes_unseen_tokens_possible() -> None:
    """It is added after the last iteration, so EM itself goes the same way with it and without."""
    x = torch.tensor([[0, 1, 0, 1, 0, 2]])
    history: list[float] = []

    def fit(smoothing: float) -> HiddenMarkovOracle:
        return HiddenMarkovOracle.fit(
            x, 6, 2, iterations=3, mask_id=4, smoothing=smoothing, callback=lambda i, nats: history.append(nats)
        )

    plain, smoothed = fit(0.0), fit(0.1)
    assert history[:3] == history[3:]
    unseen = torch.tensor([[0, 5, 0]])
    assert plain.log_likelihood(unseen) == -torch.inf and smoothed.log_likelihood(unseen) > -torch.inf
    assert smoothed.emission[:, 4].sum() == 0 and bool((smoothed.transition > 0).all())
    with pytest.raises(ValueError, match=r"tokens\[0\] is impossible.*\[0, 5, 0\]"):
        plain(unseen)


def test_em_with_more_states_than_kinds_of_token() -> None:
    """A cycle 0 0 1 1, whose pairs are all equally frequent, needs four states: twins must not stay twins."""
    cycle = torch.tensor([0, 0, 1, 1]).repeat(50)
    x = torch.stack([cycle[i : i + 100] for i in range(20)])
    fitted = HiddenMarkovOracle.fit(x, 2, 4, iterations=60)
    # All that is left to chance is where the cycle starts.
    assert float(fitted.log_likelihood(x).mean()) == pytest.approx(-math.log(4), abs=1e-3)
