import itertools
import math

import pytest
import torch
from scipy import stats

import unmask
from tests.helpers import FALSE_ALARM, generator, oracle
from tests.small_models import TOKENIZERS, network
from unmask import objective
from unmask.likelihood import Passes, along_orders, exact
from unmask.networks.oracles.enumerated import HiddenMarkovOracle, TimeDependent
from unmask.schedule import Cosine


def chain(states: int = 3) -> HiddenMarkovOracle:
    table = torch.full((states, states), 0.1, dtype=torch.float64) + (0.9 - 0.1 * (states - 1)) * torch.eye(states)
    table = table / table.sum(1, keepdim=True)
    return HiddenMarkovOracle(torch.full((states,), 1 / states, dtype=torch.float64), table, table)


@pytest.mark.parametrize("by", ["count", "time"])
def test_the_bound_of_an_oracle_is_minus_log_p(by):
    """Within 5 of its own standard errors, over 40 sequences together. False alarm below 1e-6."""
    model = oracle(3, 4)
    x0 = model.sample(40, generator=generator(0))
    bound = unmask.nelbo(model, x0, by=by, passes=40, generator=generator(1))
    off = (bound.nats + model.log_likelihood(x0)).sum() / bound.errors.square().sum().sqrt()
    assert abs(float(off)) < 5
    assert bound.nats_per_token == pytest.approx(float(bound.nats.mean()) / 4)
    assert bound.perplexity == pytest.approx(math.exp(bound.nats_per_token))


def test_both_bounds_agree_where_they_are_loose():
    """Of a network that reads the time and is not Prop. 3.2's. Their difference is within 5 of its standard errors, and
    the one by count lies above -log p by more than 5 of its own. False alarm below 1e-6."""
    truth, schedule = oracle(3, 4), Cosine()
    model = TimeDependent(truth, 1.9)
    x0 = truth.sample(50, generator=generator(2))
    count, time = (unmask.nelbo(model, x0, by=by, passes=40, schedule=schedule, seed=3) for by in ("count", "time"))
    error = math.hypot(count.error_of_estimate, time.error_of_estimate)
    assert abs(count.nats_per_token - time.nats_per_token) < 5 * error
    entropy = -float(truth.log_likelihood(x0).mean()) / 4
    assert count.nats_per_token - entropy > 5 * count.error_of_estimate


def test_over_all_counts_the_bound_of_an_oracle_is_minus_log_p_to_the_last_digit():
    """By order each pass sees every count, and Prop. 3.2's network has the same value along every order."""
    model = oracle(3, 4)
    x0 = model.sample(12, generator=generator(0))
    for by in ("order", "mixture"):
        bound = unmask.nelbo(model, x0, by=by, passes=3)
        torch.testing.assert_close(bound.nats, -model.log_likelihood(x0), rtol=0, atol=1e-12)
        assert float(bound.errors.max()) < 1e-12
    in_turn = unmask.nelbo(model, x0, by="left-to-right")
    torch.testing.assert_close(in_turn.nats, -model.log_likelihood(x0), rtol=0, atol=1e-6)
    assert in_turn.exact
    every = along_orders(model, x0, torch.tensor(list(itertools.permutations(range(4)))))
    assert every.shape == (12, 24)
    torch.testing.assert_close(every, -model.log_likelihood(x0).unsqueeze(1).expand(12, 24), rtol=0, atol=1e-12)


class Sharpened:
    """A network whose answers are not those of one distribution: p(x) differs from order to order.

    Where the first token is visible, logits are multiplied by ``after``.
    """

    vocab_size, mask_id = 3, 3

    def __init__(self, after=2.0):
        self.truth, self.after = oracle(3, 4), after

    def __call__(self, tokens, time=None, rows=None):
        return torch.where(tokens[:, :1, None] == 3, 2.0, self.after) * self.truth(tokens, time, rows)


def test_the_bound_by_count_is_the_mean_over_all_orders():
    """For any network: Eq. 7 is the chain rule averaged over orders. Within 5 standard errors, false alarm 1e-6."""
    model, x0 = Sharpened(), torch.tensor([[2, 1, 2, 0]])
    mean = along_orders(model, x0, torch.tensor(list(itertools.permutations(range(4))))).mean()
    counted, ordered = (unmask.nelbo(model, x0, by=by, passes=200, seed=1) for by in ("count", "order"))
    for bound in (counted, ordered):
        assert abs(float(bound.nats - mean)) < 5 * float(bound.errors)
    assert float(ordered.errors) < float(counted.errors)


def test_decoding_in_a_random_order_draws_from_the_mixture_over_orders():
    """All 81 sequences, whose probabilities are the means over all 24 orders: chi-square, false alarm 1e-6.

    The geometric means, which the bound by count has, are no distribution, and normalised they fail the same test.
    """
    model, every = Sharpened(after=-1.0), torch.tensor(list(itertools.product(range(3), repeat=4)))
    nats = along_orders(model, every, torch.tensor(list(itertools.permutations(range(4)))))
    mixture, geometric = (-nats).exp().mean(1), (-nats.mean(1)).exp()
    assert float(mixture.sum()) == pytest.approx(1, abs=1e-12) and float(geometric.sum()) < 0.99
    drawn = unmask.sample(model, num=40_000, length=4, seed=0).tokens
    counts = torch.bincount(drawn @ torch.tensor([27, 9, 3, 1]), minlength=81)
    right, wrong = (stats.chisquare(counts, 40_000 * p / p.sum()).pvalue for p in (mixture, geometric))
    assert right > FALSE_ALARM > wrong


def test_the_error_of_a_mixture_needs_three_orders():
    """The jackknife of two is the error of their mean, as by order, and too small. With four it is not."""
    model, x0 = Sharpened(after=-1.0), torch.tensor([[2, 1, 2, 0]]).expand(500, 4)
    for passes in (1, 2):
        assert bool(unmask.nelbo(model, x0[:3], by="mixture", passes=passes).errors.isinf().all())
    found = unmask.nelbo(model, x0, by="mixture", passes=4)
    assert 1 < float(found.errors.square().mean().sqrt()) / float(found.nats.std()) < 1.35
    assert (Passes("mixture").fewest, Passes("order").fewest) == (3, 2)


def test_the_bound_of_a_mixture_lies_between_minus_log_p_and_the_bound_by_order():
    """With K orders it falls to -log p as K grows. Each comparison is by 5 standard errors, false alarm 1e-6."""
    model, x0 = Sharpened(after=-1.0), torch.tensor([[2, 1, 2, 0]])
    nats = along_orders(model, x0, torch.tensor(list(itertools.permutations(range(4)))))
    exact_nats, repeated = math.log(24) - float(torch.logsumexp(-nats, 1)), x0.expand(2_000, 4)

    def mean(passes):
        found = unmask.nelbo(model, repeated, by="mixture", passes=passes).nats
        return float(found.mean()), float(found.std()) / len(found) ** 0.5

    (one, e1), (two, e2), (eight, e8) = (mean(passes) for passes in (1, 2, 8))
    assert abs(one - float(nats.mean())) < 5 * e1
    assert one - two > 5 * math.hypot(e1, e2) and two - eight > 5 * math.hypot(e2, e8)
    assert eight - exact_nats > 5 * e8
    many = unmask.nelbo(model, x0, by="mixture", passes=4_000)
    assert abs(float(many.nats) - exact_nats) < 5 * float(many.errors) < 0.1


def test_the_jackknife_has_the_spread_of_the_mixture():
    """Of 16 orders, 2,000 times: the mean of its variance is the variance, within a fifth."""
    bound = unmask.nelbo(Sharpened(after=-1.0), torch.tensor([[2, 1, 2, 0]]).expand(2_000, 4), by="mixture", passes=16)
    assert float(bound.errors.square().mean() / bound.nats.var()) == pytest.approx(1, abs=0.2)


def test_the_errors_cover_the_truth_at_their_rate():
    """300 evaluations of 10 sequences in 8 passes each: nats per token within 1.96 of its error 95% of the time.

    The number of hits is within the binomial's 1e-6 tails of 0.95 (and of 0.93: 40 degrees of freedom in an error).
    """
    model = chain()
    x0 = model.sample(10, 12, generator=generator(0)).repeat(300, 1)
    bound = unmask.nelbo(model, x0, passes=8, seed=1)
    nats, variance = bound.nats.view(300, 10).sum(1), bound.errors.square().view(300, 10).sum(1)
    truth = -model.log_likelihood(x0[:10]).sum()
    hits = int(((nats - truth).abs() < 1.96 * variance.sqrt()).sum())
    assert stats.binom.ppf(FALSE_ALARM / 2, 300, 0.93) <= hits <= stats.binom.isf(FALSE_ALARM / 2, 300, 0.95)
    assert float(variance.mean() / nats.var()) == pytest.approx(1, abs=0.5)  # 5 standard errors of a variance


def test_the_error_over_sequences_covers_the_entropy_of_their_source():
    """Of 400 samples of 20 sequences of an oracle, exactly evaluated, 95% have the entropy within Student's interval.
    The hits are within the binomial's 1e-6 tails of 0.95, and of 0.90, because the law is skewed."""
    model = oracle(3, 4)
    x0 = model.sample(8000, generator=generator(3))
    nats = -model.log_likelihood(x0).view(400, 20)
    zero, four = torch.zeros(20, dtype=torch.float64), torch.full((20,), 4)
    bounds = [unmask.Bound(some, zero, four) for some in nats]
    reach = float(stats.t.ppf(0.975, 19))
    hits = sum(abs(b.nats_per_token - model.entropy() / 4) < reach * b.error_over_sequences for b in bounds)
    assert stats.binom.ppf(FALSE_ALARM / 2, 400, 0.90) <= hits <= stats.binom.isf(FALSE_ALARM / 2, 400, 0.95)


def test_stratified_passes_are_better_than_independent_ones():
    """Of a chain whose tokens depend on their neighbours, so that the counts matter: two passes have one part."""
    model = chain()
    x0 = model.sample(1, 16, generator=generator(0)).expand(300, 16)
    spread, alone = (unmask.nelbo(model, x0, passes=passes, seed=1) for passes in (16, 2))
    assert float(spread.nats.var()) < 0.5 * float(alone.nats.var()) / 8


def test_a_sequences_numbers_depend_on_its_index_and_the_seed_alone():
    model = network(TOKENIZERS["bytes"], length=6)
    x0 = torch.randint(200, (9, 6), generator=generator(0))
    together = unmask.nelbo(model, x0, passes=5, seed=7)
    for options in ({"batch": 1}, {"batch": 4}, {"batch": 1000}):
        torch.testing.assert_close(unmask.nelbo(model, x0, passes=5, seed=7, **options).nats, together.nats)
    some = torch.tensor([7, 2])
    apart = unmask.nelbo(model, x0[some], passes=5, seed=7, index=some)
    torch.testing.assert_close(apart.nats, together.nats[some])
    torch.testing.assert_close(apart.errors, together.errors[some])
    assert not torch.allclose(unmask.nelbo(model, x0, passes=5, seed=8).nats, together.nats, atol=1e-3)
    drawn = [unmask.nelbo(model, x0, passes=5, generator=generator(s)).nats for s in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_two_passes_fall_into_each_part():
    how = Passes("count", 7)
    parts = how.stratum(torch.arange(14)).tolist()
    assert how.strata == 3 and parts == [0, 1, 2, 0, 1, 2, 0] * 2
    values = torch.tensor([[1.0, 10.0, 100.0, 3.0, 10.0, 200.0, 5.0]], dtype=torch.float64)
    nats, errors = how.combined(values)
    assert float(nats) == pytest.approx((3 + 10 + 150) / 3)
    assert float(errors) == pytest.approx(math.sqrt(4 / 3 + 0 + 5000 / 2) / 3)


def test_one_pass_has_no_error_to_report():
    bound = unmask.nelbo(oracle(2, 3), torch.zeros(2, 3, dtype=torch.int64), passes=1)
    assert bound.errors.tolist() == [math.inf] * 2 and bound.error_of_estimate == math.inf


def test_a_prompt_is_given():
    """-log p(rest | prompt), within 5 standard errors by count and by time, and exactly by order; false alarm 1e-6."""
    model = oracle(3, 4)
    x0 = model.sample(20, generator=generator(5))
    where = torch.tensor([False, True, False, True]).expand(20, 4)
    known = torch.where(where, model.mask_id, x0)
    truth = model.log_likelihood(known) - model.log_likelihood(x0)
    for by in ("count", "time"):
        bound = unmask.nelbo(model, x0, by=by, passes=60, where=where)
        assert abs(float((bound.nats - truth).sum() / bound.errors.square().sum().sqrt())) < 5
        assert bound.tokens.tolist() == [2] * 20
    torch.testing.assert_close(unmask.nelbo(model, x0, by="order", passes=2, where=where).nats, truth)


class TestLeftToRight:
    def test_its_likelihood_is_exact(self):
        model = network(TOKENIZERS["bytes"], length=6, causal=True)
        x0 = torch.randint(200, (5, 6), generator=generator(0))
        with torch.no_grad():
            truth = objective.left_to_right(model, x0).double()
        bound = unmask.nelbo(model, x0, batch=2)
        torch.testing.assert_close(bound.nats, truth)
        assert bound.exact and bound.error_of_estimate == 0 and bound.errors.tolist() == [0.0] * 5
        order = torch.arange(6).unsqueeze(0)
        torch.testing.assert_close(along_orders(model, x0, order)[:, 0], truth)

    def test_a_prompt_is_given(self):
        model = network(TOKENIZERS["bytes"], length=6, causal=True)
        x0 = torch.randint(200, (5, 6), generator=generator(0))
        where = torch.arange(6).expand(5, 6) >= torch.tensor([[1], [2], [3], [4], [5]])
        rest, begun = exact(model, x0, where=where), exact(model, x0, where=~where)
        torch.testing.assert_close(rest.nats + begun.nats, exact(model, x0).nats)
        assert rest.tokens.tolist() == [5, 4, 3, 2, 1]

    def test_a_masked_model_has_no_exact_likelihood(self):
        with pytest.raises(ValueError, match="no exact likelihood"):
            exact(oracle(3, 4), torch.zeros(1, 4, dtype=torch.int64))


class TestBound:
    def test_units(self):
        nats, errors = torch.tensor([10.0, 30.0]).double(), torch.tensor([0.3, 0.4]).double()
        bound = unmask.Bound(nats, errors, torch.tensor([4, 6]), torch.tensor([20.0, 20.0]).double())
        assert bound.nats_per_token == pytest.approx(4) and bound.perplexity == pytest.approx(math.exp(4))
        assert bound.bits_per_token == pytest.approx(4 / math.log(2))
        assert bound.bits_per_character == pytest.approx(1 / math.log(2))
        assert bound.error_of_estimate == pytest.approx(0.05)
        # The residuals 10 - 16 and 30 - 24 are those of a ratio of sums.
        assert bound.error == bound.error_over_sequences == pytest.approx(math.sqrt(2 * 72) / 10)
        assert bound.bits_per_character_error == pytest.approx(math.sqrt(2 * 200) / 40 / math.log(2))
        assert list(bound.units()) == ["nats per token", "perplexity", "bits per token", "bits per character"]
        value, estimate, over = bound.units()["perplexity"]
        assert (estimate, over) == pytest.approx((value * 0.05, value * 1.2))

    def test_the_error_over_equal_lengths_is_that_of_a_mean(self):
        nats = torch.rand(9, dtype=torch.float64, generator=generator(0))
        bound = unmask.Bound(nats, torch.zeros(9).double(), torch.full((9,), 5))
        assert bound.error_over_sequences == pytest.approx(float(nats.std()) / 3 / 5)
        assert bound.bits_per_character is None and "bits per character" not in bound.units()

    def test_one_sequence_has_the_error_of_its_estimate(self):
        bound = unmask.Bound(torch.tensor([8.0]), torch.tensor([0.4]), torch.tensor([4]))
        assert bound.error_over_sequences == math.inf and bound.error == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "tokens"}, "by must be"),
        ({"passes": 0}, "passes"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"tokens": torch.full((1, 4), 3)}, "must not contain the mask id"),
        ({"tokens": torch.zeros(4, dtype=torch.int64)}, "tokens must be token ids"),
        ({"where": torch.ones(1, 3, dtype=torch.bool)}, "where must be bool"),
        ({"where": torch.zeros(1, 4, dtype=torch.bool)}, "one position at least"),
    ],
)
def test_bad_input_is_named(options, message):
    tokens = options.pop("tokens", torch.zeros(1, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=message):
        unmask.nelbo(oracle(3, 4), tokens, **options)


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (torch.zeros(4, dtype=torch.int64), "orders must be int64"),
        (torch.tensor([[0, 4]]), "positions in 0..3"),
        (torch.tensor([[0, 1, 0]]), "twice"),
    ],
)
def test_bad_orders_are_named(orders, message):
    with pytest.raises(ValueError, match=message):
        along_orders(oracle(3, 4), torch.zeros(1, 4, dtype=torch.int64), orders)


def test_what_is_no_number_is_refused_with_its_sequence():
    class Broken:
        vocab_size, mask_id = 3, 3

        def __call__(self, tokens):
            logits = torch.zeros(*tokens.shape, 3)
            logits[(tokens == 2).any(1)] = math.nan
            return logits

    x0 = torch.tensor([[0, 1, 1], [0, 0, 1], [2, 2, 2]])
    with pytest.raises(ValueError, match="for sequence 2 are not numbers"):
        unmask.nelbo(Broken(), x0)
