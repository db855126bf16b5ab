from dataclasses import replace
from itertools import combinations, permutations
from math import comb

import pytest
import torch
from scipy import stats

from tests.helpers import Counting, generator, joint, oracle
from unmask import objective, timing
from unmask.masking import Masking, beta_alpha, in_order, maskgit_count
from unmask.networks.oracles.enumerated import EnumeratedOracle, MarkovOracle, TimeDependent
from unmask.processes.process import data_tokens
from unmask.schedule import Cosine, Geometric, Linear, LogLinear, Polynomial

SCHEDULES = [Linear(), Cosine(), Polynomial(2), Geometric(1e-8, 40.0), LogLinear(1e-9)]


def masked_at(x0, positions):
    masked = torch.zeros_like(x0, dtype=torch.bool)
    masked[:, list(positions)] = True
    return Masking(masked, torch.ones(len(x0)), torch.ones(len(x0)))


def enumerated_nelbo(model, x0):
    """Equation 7 with its expectation over q~ written out as an average over all subsets: no randomness at all."""
    length, total = x0.shape[1], torch.zeros(len(x0), dtype=torch.float64)
    for n in range(1, length + 1):
        subsets = list(combinations(range(length), n))
        for subset in subsets:
            total += objective.cross_entropy(model, x0, masked_at(x0, subset)) / n / len(subsets)
    return total


def nodes(a, b, num=4000):
    """Midpoints of equal parts of a..b."""
    return a + (b - a) * (torch.arange(num, dtype=torch.float64) + 0.5) / num


def over_subsets(model, x0, holes, times):
    """(n, the mean over the subsets of n positions of the summed cross-entropy at each of the times [n][K])."""
    for n in range(1, len(holes) + 1):
        at = times[n - 1]
        rows, subsets = x0.expand(len(at), -1), list(combinations(holes, n))
        maskings = [replace(masked_at(rows, subset), time=at) for subset in subsets]
        yield n, torch.stack([objective.cross_entropy(model, rows, one) for one in maskings]).mean(0)


def nelbo_over_counts(model, x0, holes, schedule, beyond=0):
    """Equation 7 with Equation 8's mixture, both expectations written out, for the masked positions of one canvas.

    ``beyond`` positions more are masked throughout: 1 - alpha is the (n + beyond)-th smallest of that many uniforms.
    """
    count, length = len(holes) + beyond, x0.shape[1]
    laws = [stats.beta(n + beyond, count - (n + beyond) + 1) for n in range(1, len(holes) + 1)]
    times = [schedule.inverse(1 - torch.tensor(law.ppf(nodes(0, 1).numpy())) * count / length) for law in laws]
    return sum(float(loss.mean()) / n for n, loss in over_subsets(model, x0, holes, times))


def nelbo_over_time(model, x0, holes, schedule):
    """Equation 6 over (0, t_start), written out: a position is masked with (1 - alpha_t) / (1 - alpha_{t_start})."""
    start = float(schedule.inverse(1 - len(holes) / x0.shape[1]))
    t = nodes(0, start)
    p = (1 - schedule.alpha(t)) / (1 - schedule.alpha(start))
    total = torch.zeros_like(t)
    for n, loss in over_subsets(model, x0, holes, [t] * len(holes)):
        total += comb(len(holes), n) * p**n * (1 - p) ** (len(holes) - n) * loss
    return float((-schedule.weight(t) * total).mean()) * start


def everything(vocab, length):
    return torch.cartesian_prod(*[torch.arange(vocab)] * length)


def within(estimates, target, z=5.0):
    """Monte-Carlo agreement of a mean: z = 5 has a false-alarm rate of 6e-7."""
    error = estimates.std() / len(estimates) ** 0.5
    return abs(float(estimates.mean() - target)) < z * float(error)


def test_the_discrete_nelbo_of_an_oracle_is_minus_log_p():
    """Proposition 3.1 and 3.2: for each of the 81 sequences, to 1e-9."""
    model, x0 = oracle(3, 4), everything(3, 4)
    torch.testing.assert_close(enumerated_nelbo(model, x0), -model.log_likelihood(x0), rtol=0, atol=1e-9)


def test_the_chain_rule_of_an_oracle_is_minus_log_p_along_every_order():
    model, x0 = oracle(2, 4, seed=1), everything(2, 4)
    for order in permutations(range(4)):
        nats = objective.along_order(model, x0, torch.tensor(order).expand(16, 4))
        torch.testing.assert_close(nats, -model.log_likelihood(x0), rtol=0, atol=1e-9)


def test_the_chain_rule_along_part_of_an_order_is_conditional():
    model, x0 = oracle(3, 4), everything(3, 4)
    nats = objective.along_order(model, x0, torch.tensor([3, 1]).expand(81, 2))
    holes = x0.clone()
    holes[:, [1, 3]] = model.mask_id
    torch.testing.assert_close(nats, model.log_likelihood(holes) - model.log_likelihood(x0), rtol=0, atol=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_the_continuous_nelbo_agrees_under_every_schedule(schedule):
    """Equation 6, stratified over t, within its Monte-Carlo error of -log p. False alarm 6e-7 each."""
    model = oracle(3, 4)
    x0 = torch.tensor([[0, 2, 1, 1]]).expand(20_000, 4)
    t = timing.independent(20_000, generator(0))
    estimates = objective.nelbo_by_time(model, x0, t, generator=generator(1), schedule=schedule)
    assert within(estimates, -model.log_likelihood(x0[:1])[0])


def test_the_discrete_nelbo_by_sampling_agrees():
    model = oracle(3, 4)
    x0 = torch.tensor([[0, 2, 1, 1]]).expand(20_000, 4)
    n = timing.count(timing.independent(20_000, generator(2)), 4)
    estimates = objective.nelbo_by_count(model, x0, n, generator=generator(3))
    assert within(estimates, -model.log_likelihood(x0[:1])[0])


@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=repr)
def test_a_network_that_reads_the_time_gets_the_beta_mixture(schedule):
    """Equation 7 with Equation 8 equals Equation 6 for a time-dependent network; with one fixed time it does not."""
    model = TimeDependent(oracle(3, 4), strength=1.5)
    rows = 60_000
    x0 = torch.tensor([[0, 2, 1, 1]]).expand(rows, 4)
    t = timing.stratified(rows, generator(4))[torch.randperm(rows, generator=generator(5))]
    by_time = objective.nelbo_by_time(model, x0, t, generator=generator(6), schedule=schedule)
    by_count = objective.nelbo_by_count(model, x0, timing.count(t, 4), generator=generator(7), schedule=schedule)
    error = (by_time.var() / rows + by_count.var() / rows).sqrt()
    assert abs(float(by_time.mean() - by_count.mean())) < 5 * float(error)
    fixed = objective.along_order(model, x0[:1], torch.arange(4).unsqueeze(0), time=torch.ones(1, 4))
    assert abs(float(fixed - by_time.mean())) > 10 * float(error)


def uniform(rows, length, seed):
    return torch.rand(rows, length, dtype=torch.float64, generator=generator(seed))


def test_beta_alpha_has_the_beta_distribution():
    for n in (1, 3, 6):
        alpha = beta_alpha(torch.full((4000,), n), uniform(4000, 6, n))
        assert stats.kstest(alpha.numpy(), stats.beta(6 - n + 1, n).cdf).pvalue > 1e-6 / 3


def test_an_infill_s_times_start_where_its_masked_positions_say():
    alpha = beta_alpha(torch.full((2000,), 3), uniform(2000, 10, 1), holes=torch.full((2000,), 3))
    assert 0.7 <= float(alpha.min()) < 0.71


WEIGHTS = {
    "nelbo": lambda n, length: 1 / n,
    "mask_predict": lambda n, length: 1 / length,
    "maskgit": lambda n, length: float((maskgit_count(torch.linspace(0, 1, 10_001), length) == n).double().mean()),
    "steep": lambda n, length: 10.0**n,
}


class TestProposition32:
    """The optimal network minimises every positively weighted loss: no perturbation of the oracle does better."""

    def loss(self, model, p, weight):
        x0 = everything(2, 3)
        total = torch.zeros(len(x0), dtype=torch.float64)
        for n in range(1, 4):
            subsets = list(combinations(range(3), n))
            for subset in subsets:
                total += weight(n, 3) * objective.cross_entropy(model, x0, masked_at(x0, subset)) / len(subsets)
        return float((p.flatten() * total).sum())

    @pytest.mark.parametrize("name", WEIGHTS)
    def test_no_perturbation_does_better(self, name):
        p = joint(2, 3, seed=5)
        truth = EnumeratedOracle(p)
        weight = WEIGHTS[name]
        best = self.loss(truth, p, weight)
        for seed in range(20):

            class Perturbed:
                vocab_size, mask_id = 2, 2

                def __call__(self, tokens, time=None, rows=None, seed=seed):
                    logits = truth(tokens)
                    code = (tokens * torch.tensor([9, 3, 1])).sum(1)  # the same change for the same canvas
                    table = torch.randn(27, 3, 2, generator=generator(seed), dtype=torch.float64)
                    logits = logits + 10.0 ** (-seed % 3) * table[code]
                    return logits.gather(1, rows.unsqueeze(-1).expand(-1, -1, 2)) if rows is not None else logits

            assert self.loss(Perturbed(), p, weight) > best


class TestScoreEntropy:
    def test_equals_the_nelbo_for_normalised_outputs(self):
        """DWDSE = Equation 6, term by term, when e^f / D sums to 1."""
        truth = oracle(3, 4)

        class Scores:
            vocab_size, mask_id = 3, 3

            def __call__(self, tokens, time=None, rows=None):
                return truth(tokens, time, rows) + torch.log(torch.tensor(3.0, dtype=torch.float64))

        x0, t = everything(3, 4), timing.stratified(81, generator(0))
        nelbo = objective.nelbo_by_time(truth, x0, t, generator=generator(1), schedule=Cosine())
        dwdse = objective.score_entropy(Scores(), x0, t, generator=generator(1), schedule=Cosine())
        torch.testing.assert_close(dwdse, nelbo, rtol=1e-9, atol=1e-9)

    def test_unnormalised_outputs_cost_more(self):
        """I(a, b) >= 0: sum e^f - 1 - log sum e^f >= 0, so a score of the wrong total loses to its normalisation."""
        truth, x0, t = oracle(3, 4), everything(3, 4), timing.stratified(81, generator(0))

        class Scaled:
            vocab_size, mask_id = 3, 3

            def __init__(self, shift):
                self.shift = shift

            def __call__(self, tokens, time=None, rows=None):
                return truth(tokens, time, rows) + self.shift

        def loss(shift):
            return objective.score_entropy(Scaled(shift), x0, t, generator=generator(1))

        best = torch.tensor(3.0, dtype=torch.float64).log()
        for shift in (best - 0.5, best + 0.5):
            assert bool((loss(shift) >= loss(best)).all())
            assert float(loss(shift).sum()) > float(loss(best).sum())

    def test_the_mask_is_no_data_token_wherever_its_id_lies(self):
        assert data_tokens(oracle(3, 2)) == 3
        p = torch.zeros(4, 4, dtype=torch.float64)
        p[[0, 1, 3]] = 1
        p[:, 2] = 0
        assert data_tokens(EnumeratedOracle(p / p.sum(), mask_id=2)) == 3


def test_left_to_right_is_the_chain_rule_in_one_pass():
    truth = MarkovOracle(torch.tensor([0.3, 0.7]), torch.tensor([[0.9, 0.1], [0.4, 0.6]]))

    def causal(tokens):
        prefixes = tokens.unsqueeze(1).expand(-1, 5, -1).clone()
        hidden = torch.arange(5) >= torch.arange(5).unsqueeze(1)
        logits = truth(torch.where(hidden, truth.mask_id, prefixes).flatten(0, 1)).view(len(tokens), 5, 5, 2)
        return logits.diagonal(dim1=1, dim2=2).transpose(1, 2)

    x0 = truth.sample(20, 5, generator=generator(0))
    torch.testing.assert_close(objective.left_to_right(causal, x0), -truth.log_likelihood(x0), rtol=1e-9, atol=1e-9)


def test_losses_are_asked_for_at_masked_rows_alone():
    """The network computes as many rows as the sequence with most masked positions has, and never more."""
    model = Counting(oracle(3, 4))
    x0 = everything(3, 4)[:6]
    objective.nelbo_by_count(model, x0, torch.tensor([1, 2, 1, 2, 1, 1]), generator=generator(0))
    assert [rows.shape for _, _, rows in model.calls] == [(6, 2)]


def test_gradients_reach_the_network():
    class Bigram(torch.nn.Module):
        vocab_size, mask_id = 3, 3

        def __init__(self):
            super().__init__()
            self.table = torch.nn.Parameter(torch.zeros(4, 3))

        def forward(self, tokens, time=None, rows=None):
            logits = self.table[tokens.roll(1, 1)]
            return logits.gather(1, rows.unsqueeze(-1).expand(-1, -1, 3))

    for name in ("nelbo_by_time", "nelbo_by_count", "score_entropy"):
        model = Bigram()
        x0 = everything(3, 3)
        t = timing.stratified(27, generator(0))
        at = timing.count(t, 3) if name == "nelbo_by_count" else t
        getattr(objective, name)(model, x0, at, generator=generator(1)).mean().backward()
        assert bool((model.table.grad != 0).any())


def test_positions_outside_where_are_conditioned_on():
    """The NELBO over some positions of an oracle is their conditional -log p. False alarm 6e-7."""
    model, rows = oracle(3, 4), 20_000
    x0 = torch.tensor([[0, 2, 1, 1]]).expand(rows, 4)
    where = torch.tensor([True, False, True, False]).expand(rows, 4)
    n = timing.count(timing.independent(rows, generator(0)), 2)
    estimates = objective.nelbo_by_count(model, x0, n, generator=generator(1), where=where)
    holes = torch.where(where, model.mask_id, x0)[:1]
    assert within(estimates, (model.log_likelihood(holes) - model.log_likelihood(x0[:1]))[0])


@pytest.mark.parametrize("schedule", [Linear(), Cosine(), LogLinear()], ids=repr)
@pytest.mark.parametrize("holes", [(0, 2), (0, 1, 3)])
def test_time_and_count_start_where_the_masked_positions_say(holes, schedule):
    """For a network that reads the time Eq. 6 on (0, t_start) is Eq. 7 with Eq. 8, and both are what is drawn.

    The written-out integrals agree to their midpoint rule; drawn values within 5 errors, false alarm 6e-7 each.
    """
    model, rows = TimeDependent(oracle(3, 4), strength=1.5), 20_000
    x0 = torch.tensor([[0, 2, 1, 1]]).expand(rows, 4)
    truth = nelbo_over_counts(model, x0[:1], holes, schedule)
    assert nelbo_over_time(model, x0[:1], holes, schedule) == pytest.approx(truth, rel=1e-5)
    where = masked_at(x0, holes).masked
    t = timing.stratified(rows, generator(0))
    by_time = objective.nelbo_by_time(model, x0, t, generator=generator(1), schedule=schedule, where=where)
    n = timing.count(t, len(holes))
    by_count = objective.nelbo_by_count(model, x0, n, generator=generator(2), schedule=schedule, where=where)
    keys, hits = uniform(rows, 4, 3), uniform(rows, 4, 4)
    order, time = in_order(keys, hits, schedule=schedule, where=where)
    for values in (by_time, by_count, objective.along_order(model, x0, order, time=time)):
        assert within(values, truth)


def test_sequences_without_a_masked_token_cost_nothing():
    model = oracle(3, 4)
    x0 = everything(3, 4)[:5]
    nats = objective.nelbo_by_time(model, x0, torch.full((5,), 1e-12), generator=generator(0))
    assert nats.tolist() == [0.0] * 5
