"""Insertion: the distribution over lengths and strings, and the bound, which is exact for the optimal network."""

import itertools

import pytest
import torch
from scipy import stats

import unmask
from tests.helpers import FALSE_ALARM, Counting, generator
from tests.samplers.strings import StringsOracle
from unmask import insertion
from unmask.samplers.insertion import InsertionSampler

V, N = 2, 4


@pytest.fixture(scope="module")
def oracle():
    """All strings of two tokens up to length three, in a canvas with room for one more, with uneven probabilities."""
    strings = [one for n in range(4) for one in itertools.product(range(V), repeat=n)]
    weights = torch.rand(len(strings), dtype=torch.float64, generator=generator(3)) ** 2
    return StringsOracle(strings, weights / weights.sum(), V, N)


def numbers(oracle, tokens):
    """Which string each sequence is."""
    index = {tuple(one.tolist()): k for k, one in enumerate(oracle.strings)}
    return torch.tensor([index[tuple(row[row < V].tolist())] for row in tokens])


def test_its_distribution_is_that_of_the_strings(oracle):
    made = unmask.sample(oracle, num=4000, length=N, sampler=InsertionSampler(), seed=1)
    counts = torch.bincount(numbers(oracle, made.tokens), minlength=len(oracle.strings))
    assert stats.chisquare(counts.numpy(), (oracle.probabilities * 4000).numpy()).pvalue > FALSE_ALARM
    assert bool((made.tokens.sort(1).values == made.tokens.where(made.tokens >= V, -1)).any())  # some are short
    tail = made.tokens >= V
    assert bool((tail[:, 1:] >= tail[:, :-1]).all()), "a token behind the end"
    assert torch.equal(made.nfe, N + (made.tokens < V).sum(1)), "one call for each slot and one for each token"


def test_each_way_to_a_string_has_the_same_share_of_its_probability(oracle):
    """-log p(x) = sum of -log q over the decisions and tokens, less log D, for whatever times and slots."""
    x = oracle.padded()
    u = torch.rand(*x.shape, 2, dtype=torch.float64, generator=generator(5))
    total = -insertion.log_ways(x, oracle.mask_id)
    for row in range(len(x)):
        first, last = u[row].amin(1), u[row].amax(1)
        for slot in range(N):
            for time, unmasks in ((first[slot], False), (last[slot], True)):
                state = insertion.noised(x[row : row + 1], oracle.mask_id, (time - 1e-12).reshape(1), u[row : row + 1])
                logits = oracle(state.canvas)
                real = bool(x[row, slot] < V)
                if unmasks and real:
                    seen = int(((x[row, :slot] < V) & (first[:slot] < time)).sum())
                    assert state.target[0, seen] == x[row, slot]
                    total[row] -= logits[0, seen, :V].log_softmax(0)[x[row, slot]]
                elif not unmasks:
                    gaps, none = insertion.log_gaps(insertion.odds_of(logits), state.size)
                    before = int(((x[row, :slot] < V) & (first[:slot] < time)).sum())
                    total[row] -= gaps[0, before] if real else none[0]
    assert torch.allclose(total, -oracle.probabilities.log(), atol=1e-9)


def test_the_bound_is_tight_for_the_optimal_network_and_not_for_another(oracle):
    x = oracle.padded()[torch.arange(4000) % 3 + 4]
    found = insertion.bound(oracle, x, generator=generator(0))
    for k in range(3):
        mine, truth = found[k::3], -float(oracle.probabilities[4 + k].log())
        assert abs(float(mine.mean()) - truth) < 5 * float(mine.std()) / len(mine) ** 0.5
    flat = StringsOracle([tuple(one.tolist()) for one in oracle.strings], torch.full((15,), 1 / 15), V, N)
    other = insertion.bound(flat, x, generator=generator(0))
    assert abs(float(other.mean()) - torch.log(torch.tensor(15.0))) < 5 * float(other.std()) / len(other) ** 0.5


def test_a_state_counts_what_is_missing():
    """By hand: tokens 0 and 2 of three are there, one of them unmasked, and one phantom is decided."""
    u = torch.tensor([[[0.1, 0.2], [0.9, 0.95], [0.3, 0.8], [0.4, 0.6], [0.7, 0.9]]], dtype=torch.float64)
    x = torch.tensor([[0, 1, 0, 2, 2]])
    state = insertion.noised(x, 4, torch.tensor([0.5], dtype=torch.float64), u)
    assert state.canvas.tolist() == [[0, 4, 2, 3, 3]]
    assert state.missing.tolist() == [[0, 1, 0, 0, 0]]
    assert (state.size.item(), state.phantoms.item(), state.target.tolist()) == (2, 1, [[-1, 0, -1, -1, -1]])


def test_a_batch_changes_no_token(oracle):
    whole = unmask.sample(oracle, num=6, length=N, sampler=InsertionSampler(), seed=2)
    parts = unmask.sample(oracle, num=6, length=N, sampler=InsertionSampler(), seed=2, batch=2)
    assert torch.equal(whole.tokens, parts.tokens)


def test_one_call_is_one_decision(oracle):
    counting = Counting(oracle)
    counting.process = oracle.process
    made = unmask.sample(counting, num=1, length=N, sampler=InsertionSampler(), seed=0)
    assert len(counting.calls) == made.calls == int(made.nfe[0])


@pytest.mark.parametrize(
    "options, says",
    [
        ({"canvas": torch.tensor([[0, 4, 4, 4]])}, "empty string"),
        ({"num": 1, "length": 4, "steps": 2}, "takes no steps"),
    ],
)
def test_what_it_does_not_do_is_refused(oracle, options, says):
    with pytest.raises(ValueError, match=says):
        unmask.sample(oracle, sampler=InsertionSampler(), **options)
