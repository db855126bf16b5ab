"""What decoding several tokens per call costs: the formula against enumeration, the best sizes against all others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import permutations, product

import numpy as np
import pytest
import torch

from tests.helpers import generator, oracle
from unmask import plan
from unmask.networks.oracles.enumerated import EnumeratedOracle
from unmask.networks.oracles.hidden_markov import HiddenMarkovOracle
from unmask.noise import Streams
from unmask.theory import equal_sizes, optimal_sizes, parallel_costs, parallel_loss, smoothed


def compositions(length: int) -> Iterator[tuple[int, ...]]:
    """All ways to cut a sequence into groups: 2^(L - 1)."""
    for cuts in product([False, True], repeat=length - 1):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut]
        yield tuple(np.diff([0, *ends, length]).tolist())


def conditionals(model, every: torch.Tensor) -> np.ndarray:
    """log p(x^l | x^S) of all sets S, as bits, all sequences x and all positions l: [2^L, V^L, L]."""
    length = every.shape[1]
    table = np.empty((2**length, *every.shape))
    for bits in range(2**length):
        hidden = torch.tensor([not bits >> i & 1 for i in range(length)])
        logits = model(torch.where(hidden, model.mask_id, every))
        table[bits] = logits.gather(2, every.unsqueeze(2)).squeeze(2)
    return table


class Enumerated:
    """Everything about one known joint, by enumeration; ``network`` may be the optimal one of another joint."""

    def __init__(self, truth: EnumeratedOracle, network: EnumeratedOracle) -> None:
        self.length = truth.length
        every = torch.cartesian_prod(*[torch.arange(truth.vocab_size)] * truth.length).view(-1, truth.length)
        self.p = truth.joint.flatten().numpy()
        self.table = conditionals(network, every)
        self.orders = np.array(list(permutations(range(self.length))))
        # The positions before each place of each order, as bits: [orders, L + 1].
        self.before = np.pad(np.cumsum(1 << self.orders, axis=1), ((0, 0), (1, 0)))
        # The mean of -log p(x^l | x^S): a conditional entropy, or a cross-entropy for another joint's network.
        self.entropy = -np.einsum("x,sxl->sl", self.p, self.table)

    def log_q(self, sizes: tuple[int, ...]) -> np.ndarray:
        """The log-density of every sequence under the sampler along every order: [orders, V^L]."""
        total = np.zeros((len(self.orders), len(self.p)))
        for place, start in enumerate(np.repeat(np.cumsum(sizes) - sizes, sizes)):
            seen = self.before[:, start, None]
            total += self.table[seen, np.arange(len(self.p)), self.orders[:, place, None]]
        return total

    def profile(self) -> np.ndarray:
        """h(n): the mean over sets S of n positions and over l outside."""
        h = []
        for n in range(self.length):
            pairs = [
                self.entropy[bits, i]
                for bits in range(2**self.length)
                for i in range(self.length)
                if bits.bit_count() == n and not bits >> i & 1
            ]
            h.append(np.mean(pairs))
        return np.array(h)


@cache
def known(vocab: int, length: int, another: bool = False) -> Enumerated:
    truth = oracle(vocab, length, seed=length)
    return Enumerated(truth, oracle(vocab, length, seed=99) if another else truth)


@pytest.mark.parametrize(("vocab", "length"), [(2, 1), (2, 2), (2, 3), (3, 4), (2, 5), (2, 6)])
def test_the_formula_is_the_mean_divergence_over_all_orders(vocab, length):
    """KL(truth || sampler) along each of the L! orders from its whole density, for every composition of L."""
    case = known(vocab, length)
    h, log_p = case.profile(), np.log(case.p)
    for sizes in compositions(length):
        log_q = case.log_q(sizes)
        assert np.exp(log_q).sum(1) == pytest.approx(1)
        divergence = (log_p - log_q) @ case.p
        assert divergence.min() > -1e-12
        loss = parallel_loss(h, sizes)
        assert divergence.mean() == pytest.approx(loss, rel=0, abs=1e-10)
        # The order is not part of the sample: the distribution is the mixture.
        mixture = np.exp(log_q).mean(0)
        of_mixture = float(case.p @ (log_p - np.log(mixture)))
        if max(sizes) == 1:
            assert loss == pytest.approx(0, abs=1e-14) and of_mixture == pytest.approx(0, abs=1e-12)
        elif len(sizes) == 1:  # all at once: every order has the same distribution
            assert of_mixture == pytest.approx(loss)
        else:
            assert 1e-4 < of_mixture < loss - 1e-4


@pytest.mark.parametrize("length", [7, 8])
def test_the_formula_at_greater_lengths(length):
    """As above, with the mean log-density of each order summed from the conditional entropies of its groups."""
    case = known(2, length)
    h, joint_entropy = case.profile(), -float(case.p @ np.log(case.p))
    assert h.sum() == pytest.approx(joint_entropy, rel=1e-12)
    for sizes in compositions(length):
        starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
        mean = case.entropy[case.before[:, starts], case.orders].sum(1).mean() - joint_entropy
        assert mean == pytest.approx(parallel_loss(h, sizes), rel=0, abs=1e-10)


def test_a_network_that_is_not_the_truth_loses_as_much_against_itself():
    """Its profile is a cross-entropy, and the loss is against the same network with one token per call."""
    case = known(2, 5, another=True)
    h = case.profile()
    alone = (case.log_q((1,) * 5) @ case.p).mean()
    for sizes in compositions(5):
        lost = alone - (case.log_q(sizes) @ case.p).mean()
        assert lost == pytest.approx(parallel_loss(h, sizes), rel=0, abs=1e-10)


def test_entropies_never_rise():
    for vocab, length in [(3, 4), (2, 6), (2, 8)]:
        assert np.all(np.diff(known(vocab, length).profile()) <= 1e-12)  # Han's inequality


@pytest.mark.parametrize("length", [1, 2, 5, 9, 12])
@pytest.mark.parametrize("falling", [True, False])
def test_optimal_sizes_are_the_best_of_all_compositions(length, falling):
    rng = np.random.default_rng(length)
    h = rng.exponential(size=length) if not falling else np.sort(rng.exponential(size=length))[::-1]
    best = dict.fromkeys(range(1, length + 1), np.inf)
    for sizes in compositions(length):
        best[len(sizes)] = min(best[len(sizes)], parallel_loss(h, sizes))
    for steps, least in best.items():
        sizes = optimal_sizes(h, steps)
        assert len(sizes) == steps and sum(sizes) == length and min(sizes) >= 1
        assert parallel_loss(h, sizes) == pytest.approx(least, rel=0, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_optimal_sizes_are_never_worse_than_equal_ones(seed):
    h = np.random.default_rng(seed).normal(size=100).cumsum()
    if seed % 2:
        h = np.sort(h)[::-1]
    costs = parallel_costs(h, range(1, 101))
    assert [cost.steps for cost in costs] == list(range(1, 101))
    for cost in costs:
        assert cost.optimal <= cost.equal + 1e-9
        assert cost.sizes == optimal_sizes(h, cost.steps)
        assert (cost.equal, cost.optimal) == (
            parallel_loss(h, equal_sizes(100, cost.steps)),
            parallel_loss(h, cost.sizes),
        )
    assert costs[0].optimal == costs[0].equal and costs[-1].optimal == costs[-1].equal == 0
    if seed % 2:  # for a falling profile another call always helps
        assert np.all(np.diff([cost.optimal for cost in costs]) <= 1e-9)


def test_early_groups_are_small_where_the_profile_falls_early():
    sizes = optimal_sizes(np.exp(-np.arange(64) / 8), 8)
    assert sizes == tuple(sorted(sizes)) and sizes[0] < 8 < sizes[-1]


def test_a_profile_without_dependence_costs_nothing():
    assert parallel_loss([0.7] * 10, [10]) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("length", [1, 2, 7, 16, 100])
def test_equal_sizes_are_the_groups_of_the_plan(length):
    tokens = torch.full((1, length), 5)
    for steps in range(1, length + 1):
        made = plan.parallel(tokens, mask_id=5, streams=Streams.of(0, 1), steps=steps)
        assert equal_sizes(length, steps) == tuple(made.step[0].bincount().tolist())
        assert len(equal_sizes(length, steps)) == steps


HIDDEN = HiddenMarkovOracle(
    torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64),
    torch.tensor([[0.90, 0.05, 0.05], [0.02, 0.88, 0.10], [0.10, 0.05, 0.85]], dtype=torch.float64),
    torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.05, 0.8, 0.1, 0.05], [0.05, 0.05, 0.3, 0.6]], dtype=torch.float64),
)


def test_the_formula_on_a_hidden_markov_model_exactly():
    """Its joint at L = 6, enumerated: the same formula, from the oracle's own conditionals."""
    every = torch.cartesian_prod(*[torch.arange(4)] * 6)
    p = HIDDEN.log_likelihood(every).exp()
    case = Enumerated(EnumeratedOracle(p.view([4] * 6)), HIDDEN)
    h = case.profile()
    for sizes in compositions(6):
        starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
        mean = case.entropy[case.before[:, starts], case.orders].sum(1).mean() + float(torch.xlogy(p, p).sum())
        assert mean == pytest.approx(parallel_loss(h, sizes), rel=0, abs=1e-10)


@pytest.mark.parametrize("steps", [2, 5])
@pytest.mark.parametrize("optimal", [False, True])
def test_the_formula_is_the_divergence_measured_on_a_hidden_markov_model(steps, optimal):
    """L = 24: log p(x) - log q_sigma(x) of the model's own samples, for the orders that ``plan`` draws, against h from
    other samples. |z| < 4.9: false alarm 1e-6 each; the seeds are fixed.
    """
    length, num = 24, 3000
    x = HIDDEN.sample(num, length, generator(1))
    values = along(HIDDEN, x, np.arange(length), seed=2, whole=True)
    h = values.mean(0)
    sizes = optimal_sizes(h, steps) if optimal else equal_sizes(length, steps)
    x = HIDDEN.sample(num, length, generator(3))
    start = np.repeat(np.cumsum(sizes) - sizes, sizes)
    measured = along(HIDDEN, x, start, seed=4).sum(1) + HIDDEN.log_likelihood(x).numpy()
    expected = np.array([parallel_loss(row, sizes) for row in values])
    error = np.hypot(measured.std() / num**0.5, expected.std() / num**0.5)
    assert measured.mean() > 20 * measured.std() / num**0.5  # the loss is there to be seen
    assert abs(measured.mean() - parallel_loss(h, sizes)) < 4.9 * error


def along(model, x: torch.Tensor, start: np.ndarray, *, seed: int, whole: bool = False) -> np.ndarray:
    """-log p(x^sigma(j) | x^sigma(< start_j)) for j = 0 .. L - 1, along the orders of first-hitting plans: [B, L].

    With ``whole`` the mean over all positions that are hidden then in place of x^sigma(j).
    """
    hidden = torch.full_like(x, model.mask_id)
    order = plan.first_hitting(hidden, mask_id=model.mask_id, streams=Streams.of(seed, len(x))).order
    rank = order.argsort(1)
    found = np.empty(x.shape)
    for j, n in enumerate(start.tolist()):
        logits = model(torch.where(rank < n, x, model.mask_id))
        nats = -logits.gather(2, x.unsqueeze(2)).squeeze(2)  # 0 where visible
        found[:, j] = nats.sum(1) / (x.shape[1] - n) if whole else nats.gather(1, order[:, j : j + 1]).squeeze(1)
    return found


@pytest.mark.parametrize("sizes", [[], [2, 3], [3], [4, 0], [5, -1], [2.0, 2.0], [[4]], [True] * 4])
def test_wrong_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="sizes"):
        parallel_loss([1.0, 0.9, 0.8, 0.7], sizes)


@pytest.mark.parametrize("profile", [[], [1.0, np.nan], [np.inf, 1.0], [[1.0, 0.5]], 3.0])
def test_wrong_profiles_are_refused(profile):
    for call in (lambda: parallel_loss(profile, [2]), lambda: optimal_sizes(profile, 1)):
        with pytest.raises(ValueError, match="profile"):
            call()


@pytest.mark.parametrize("steps", [0, 5, -1])
def test_wrong_steps_are_refused(steps):
    h = [1.0, 0.9, 0.8, 0.7]
    for call in (lambda: equal_sizes(4, steps), lambda: optimal_sizes(h, steps), lambda: parallel_costs(h, [2, steps])):
        with pytest.raises(ValueError, match="steps"):
            call()


class TestSmoothed:
    def curve(self, length=64):
        return 2 + 4 * np.exp(-np.arange(length) / 20)

    def test_a_noisy_profile_gives_nearly_the_sizes_of_the_true_one(self):
        truth, random = self.curve(), np.random.default_rng(0)
        gained, lost = [], []
        for _ in range(20):
            noisy = truth + random.normal(0, 0.05, len(truth))
            fit = smoothed(noisy, np.full(len(truth), 0.05))
            best = parallel_loss(truth, optimal_sizes(truth, 12))
            gained.append(parallel_loss(truth, optimal_sizes(fit, 12)) - best)
            lost.append(parallel_loss(truth, optimal_sizes(noisy, 12)) - best)
        assert np.mean(gained) < np.mean(lost) / 4

    def test_it_stays_within_the_errors_and_is_smooth(self):
        truth = self.curve()
        noisy = truth + np.random.default_rng(1).normal(0, 0.1, len(truth))
        fit = smoothed(noisy, np.full(len(truth), 0.1))
        assert np.mean((fit - noisy) ** 2) <= 0.01
        assert np.abs(np.diff(fit, 2)).max() < np.abs(np.diff(noisy, 2)).max() / 10

    def test_without_errors_it_is_the_profile(self):
        truth = self.curve()
        assert np.array_equal(smoothed(truth, np.zeros(len(truth))), truth)
        with pytest.raises(ValueError, match="one of at least 0"):
            smoothed(truth, [0.1])
