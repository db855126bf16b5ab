"""Numbers that belong to their place: uniform, independent in every direction, and the same in any company.

Fixed seeds; every statistical test has a false-alarm rate of 1e-6.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tests.helpers import FALSE_ALARM, generator, hidden_markov
from unmask import EnumeratedOracle, plan, predict, sample
from unmask.noise import AT_ONCE, BITS, KeptNoise, Noise, Streams, _columns, _mixed, word
from unmask.noise import generator as stream_generator
from unmask.samplers import decoding, remasking

S, L, V = 40, 25, 30  # sequences, positions, columns


def uniforms(seed=0, sequences=S, purpose="token", visits=0):
    return Streams.of(seed, sequences).at(purpose, L).again(visits).uniform(V)


def independent(a, b):
    """The p-value of two sets of uniforms' being independent: a chi-square test over a table of 16 x 16 cells."""
    cells = (a.flatten() * 16).long() * 16 + (b.flatten() * 16).long()
    table = torch.bincount(cells, minlength=256).reshape(16, 16)
    return float(stats.chi2_contingency(table.numpy()).pvalue)


PAIRS = {
    "neighbouring positions": lambda: (uniforms()[:, :-1], uniforms()[:, 1:]),
    "positions two apart": lambda: (uniforms()[:, :-2], uniforms()[:, 2:]),
    "neighbouring sequences": lambda: (uniforms()[:-1], uniforms()[1:]),
    "neighbouring columns": lambda: (uniforms()[..., :-1], uniforms()[..., 1:]),
    "the same column of the next position": lambda: (uniforms()[:, :-1, :-1], uniforms()[:, 1:, 1:]),
    "a place and its next sequence and position": lambda: (uniforms()[:-1, :-1], uniforms()[1:, 1:]),
    "the first visit and the second": lambda: (uniforms(), uniforms(visits=1)),
    "the second visit and the third": lambda: (uniforms(visits=1), uniforms(visits=2)),
    "neighbouring seeds": lambda: (uniforms(), uniforms(seed=1)),
    "large seeds one bit apart": lambda: (uniforms(seed=2**40), uniforms(seed=2**40 + 2**39)),
    "purposes": lambda: (uniforms(), uniforms(purpose="hitting time")),
    "seed s, sequence 1 and seed s + 1, sequence 0": lambda: (uniforms()[1:], uniforms(seed=1)[:-1]),
    "one number of a place and its first column": lambda: (
        Streams.of(0, 2000).at("token", L).uniform(),
        Streams.of(0, 2000).at("token", L).uniform(1)[..., 0],
    ),
}


@pytest.mark.parametrize("what", PAIRS)
def test_numbers_are_independent_between(what):
    """256 cells of 22,000 pairs or more."""
    assert independent(*PAIRS[what]()) > FALSE_ALARM


@pytest.mark.parametrize("visits", [0, 1, 5])
@pytest.mark.parametrize("seed", [0, 1, 12_345_678_901_234])
def test_numbers_are_uniform(seed, visits):
    """Kolmogorov-Smirnov over 30,000 numbers, and over the smallest of every 30."""
    u = uniforms(seed, visits=visits)
    assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > FALSE_ALARM
    assert stats.kstest(u.amin(-1).flatten().numpy(), stats.beta(1, V).cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_direction_is_uniform_by_itself(axis):
    """The first 20,000 along each axis: sequences, positions, columns."""
    shape = [1, 1, 1]
    shape[axis] = 20_000
    u = Streams.of(3, shape[0]).at("token", shape[1]).uniform(shape[2])
    assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > FALSE_ALARM
    assert independent(u.flatten()[:-1], u.flatten()[1:]) > FALSE_ALARM


def test_every_bit_is_a_fair_coin():
    """53 bits of 30,000 numbers, each by a binomial test."""
    words = (uniforms().flatten() * 2**53).long()
    for bit in range(53):
        ones = int((words >> bit & 1).sum())
        assert stats.binomtest(ones, len(words), 0.5).pvalue > FALSE_ALARM / 53


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_numbers_lie_on_the_grid_of_their_type_and_are_never_1(dtype):
    """Multiples of 2^-24 in float32, as torch.rand draws them, odd ones among them."""
    u = Streams.of(0, 100).at("token", 100).uniform(30, dtype=dtype)
    assert u.dtype == dtype
    ticks = u.double() * 2 ** BITS[dtype]
    assert bool((ticks == ticks.floor()).all())
    assert float(u.min()) >= 0 and float(u.max()) < 1
    assert stats.binomtest(int((ticks % 2).sum()), ticks.numel(), 0.5).pvalue > FALSE_ALARM
    assert BITS[dtype] == 1 - math.log2(torch.finfo(dtype).eps)


def test_the_largest_float32_is_reached():
    """The top of the grid, 1 - 2^-24, is drawn: it is what sets the largest Gumbel of Table 1."""
    top = (float(Streams.of(seed, 100).at("token", 100).uniform(100, dtype=torch.float32).max()) for seed in range(200))
    assert any(largest == 1 - 2.0**-24 for largest in top)  # one number in 17 million


class TestPlaces:
    whole = Streams.of(7, 9).at("token", 12)

    def test_a_sequence_has_its_noise_alone_and_in_any_batch(self):
        for num in (1, 2, 20):
            ours = Streams.of(7, num).at("token", 12)
            both = min(num, 9)
            assert torch.equal(ours.keys[:both], self.whole.keys[:both])
        some = Streams.of(7, 9).take([8, 0, 3]).at("token", 12)
        assert torch.equal(some.keys, self.whole.keys[[8, 0, 3]])

    def test_a_separate_seed_is_the_first_sequence_of_that_seed(self):
        each = Streams.of([5, 7, 5], 3).at("token", 12)
        for row, seed in enumerate((5, 7, 5)):
            assert torch.equal(each.keys[row], Streams.of(seed, 1).at("token", 12).keys[0])

    def test_a_position_has_its_noise_in_any_length(self):
        assert torch.equal(Streams.of(7, 9).at("token", 5).keys, self.whole.keys[:, :5])

    def test_a_column_has_its_number_in_any_vocabulary(self):
        assert torch.equal(self.whole.uniform(40)[..., :10], self.whole.uniform(10))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_many_numbers_at_once_are_those_of_each_place(self, dtype):
        columns = AT_ONCE // 3
        rows = Streams.of(7, 8).at("token", 1)[:, 0]
        alone = torch.cat([rows[i : i + 1].uniform(columns, dtype=dtype) for i in range(8)])
        assert torch.equal(rows.uniform(columns, dtype=dtype), alone)

    def test_an_index_picks_places(self):
        u, row, at = self.whole.uniform(6), torch.tensor([3, 0, 3]), torch.tensor([1, 11, 2])
        assert torch.equal(self.whole[row, at].uniform(6), u[row, at])
        assert torch.equal(self.whole[2].uniform(6), u[2])
        assert torch.equal(self.whole[:, 4].uniform(6), u[:, 4])
        assert torch.equal(self.whole.take(row).uniform(6), u[row])
        assert len(self.whole) == 9 and len(self.whole[row, at]) == 3

    def test_no_visit_before_changes_nothing(self):
        assert self.whole.again(0) is self.whole
        visits = torch.zeros(9, 12, dtype=torch.int64)
        assert torch.equal(self.whole.again(visits).keys, self.whole.keys)
        visits[2, 3] = 1
        again = self.whole.again(visits).keys != self.whole.keys
        assert again.nonzero().tolist() == [[2, 3]]

    def test_a_visit_has_a_key_that_is_no_column_of_an_earlier_one(self):
        """The word of column k - 1 is what number k has: visits have a constant of their own."""
        keys = self.whole.keys[0]
        columns = {
            word
            for visit in range(4)
            for word in _mixed(Noise(keys).again(visit).keys.unsqueeze(1) ^ _columns(1_000, torch.device("cpu")))
            .flatten()
            .tolist()
        }
        assert not columns & {key for visit in range(1, 5) for key in Noise(keys).again(visit).keys.tolist()}
        assert set(Noise(keys).numbered(3).keys.tolist()) <= columns

    def test_a_visit_s_noise_does_not_depend_on_the_other_visits(self):
        visits = torch.arange(9 * 12).view(9, 12) % 4
        together = self.whole.again(visits).keys
        for count in range(4):
            assert torch.equal(together[visits == count], self.whole.again(count).keys[visits == count])

    def test_nothing_is_nothing(self):
        assert Streams.of(0, 0).at("token", 4).uniform(3).shape == (0, 4, 3)
        assert Streams.of(0, 2).at("token", 0).uniform().shape == (2, 0)

    def test_no_two_places_of_many_have_one_key(self):
        """A million places, and two visits of each: by chance a pair of 64-bit words coincides once in 10^7 tries."""
        keys = Streams.of(0, 1000).at("token", 1000)
        every = torch.cat([keys.keys.flatten(), keys.again(1).keys.flatten()])
        assert len(every.unique()) == 2_000_000

    @pytest.mark.parametrize("seed", [-1, 1.5, True, "0"])
    def test_bad_seeds_are_named(self, seed):
        with pytest.raises(ValueError, match="seed must be a whole number of at least 0"):
            Streams.of([seed], 1)

    def test_global_random_numbers_are_left_alone(self):
        torch.manual_seed(0)
        state = torch.get_rng_state()
        self.whole.uniform(5)
        assert torch.equal(torch.get_rng_state(), state)


class TestClocks:
    def test_they_are_exponential_and_never_0(self):
        clocks = Streams.of(0, S).at("token", L).exponential(V)
        assert stats.kstest(clocks.flatten().numpy(), "expon").pvalue > FALSE_ALARM
        assert float(clocks.min()) > 0

    def test_kept_clocks_are_the_same_until_and_after_they_are_forgotten(self):
        plain = Streams.of(0, 3).at("token", 4)
        kept = KeptNoise(plain.keys)
        row, at = torch.tensor([0, 2, 0]), torch.tensor([1, 3, 1])
        expected = plain[row, at].exponential(5).log()
        for _ in range(2):
            assert torch.equal(torch.cat(list(kept[row, at].log_clocks(5))), expected)
        assert len(kept.clocks) == 2
        kept.forget(torch.tensor([[1], [-1], [-1]]))
        assert len(kept.clocks) == 1
        assert torch.equal(torch.cat(list(kept[row, at].log_clocks(5))), expected)

    @pytest.mark.parametrize("columns", [1, 5, 30_000, 70_000])
    def test_they_come_in_pieces_that_are_those_of_the_whole(self, columns):
        whole = Streams.of(0, 1).at("token", 9)[0]
        pieces = list(whole.log_clocks(columns))
        assert len(pieces) == {1: 1, 5: 1, 30_000: 5, 70_000: 9}[columns]
        assert torch.equal(torch.cat(pieces), whole.exponential(columns).log())


class TestGenerators:
    """For code that needs a torch.Generator: data, training and the published samplers."""

    def test_those_of_one_key_are_all_different(self):
        assert len({stream_generator(i, 3, "data").initial_seed() & 0xFFFFFFFF for i in range(20_000)}) == 20_000

    def test_numpy_s_integers_are_integers(self):
        assert word(np.int64(3), "a") == word(3, "a") != word(4, "a")


ALONE = EnumeratedOracle(
    torch.einsum("i,j,k,l->ijkl", *torch.softmax(torch.randn(4, 3, generator=generator(0), dtype=torch.float64), -1))
)
"""Four positions that do not depend on each other."""


WAYS = {
    "all at once": {"plan": plan.parallel, "steps": 1},
    "parallel": {"plan": plan.parallel, "steps": 3},
    "one ancestral step": {"plan": plan.ancestral, "steps": 1},
    "ancestral": {"plan": plan.ancestral, "steps": 7},
    "many ancestral steps": {"plan": plan.ancestral, "steps": 100_000},
    "left to right": {"plan": plan.left_to_right},
    "extrapolated": {"plan": plan.parallel, "steps": 2, "predict": predict.extrapolate},
    "margin": {"sampler": decoding.margin(noise=0.5)},
    "entropy-bounded": {"sampler": decoding.entropy_bounded(1.0)},
    "without remasking": {"sampler": remasking.remdm_cap(0.0), "steps": 5},
    "small batches": {"batch": 7},
}


class TestTheDesign:
    """With one seed a position's token is a function of its noise and of its distribution, and of nothing else."""

    @pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
    def test_every_plan_gives_the_tokens_of_first_hitting_where_positions_are_independent(self, options):
        plain = sample(ALONE, num=60, length=4, seed=4).tokens
        assert torch.equal(sample(ALONE, num=60, length=4, seed=4, **options).tokens, plain)

    def test_a_token_that_was_given_changes_no_other(self):
        plain = sample(ALONE, num=60, length=4, seed=4).tokens
        canvas = torch.full((60, 4), ALONE.mask_id)
        canvas[:, 2] = 1
        tokens = sample(ALONE, canvas=canvas, seed=4).tokens
        assert torch.equal(tokens[:, [0, 1, 3]], plain[:, [0, 1, 3]])

    def test_another_seed_gives_other_tokens(self):
        one, two = (sample(ALONE, num=60, length=4, seed=seed).tokens for seed in (4, 5))
        assert 0.2 < float((one != two).double().mean()) < 0.8

    @pytest.mark.parametrize("how", [{}, *WAYS.values()], ids=["first hitting", *WAYS])
    def test_a_sequence_is_the_same_alone_in_any_batch_and_in_another_order(self, how):
        model = hidden_markov()
        whole = sample(model, num=9, length=6, seed=3, **how).tokens
        assert torch.equal(sample(model, num=1, length=6, seed=3, **how).tokens, whole[:1])
        for batch in (1, 4):
            assert torch.equal(sample(model, num=9, length=6, seed=3, **how | {"batch": batch}).tokens, whole)
        seeds = [11, 12, 13]
        first, second = (sample(model, num=3, length=6, seed=s, **how).tokens for s in (seeds, seeds[::-1]))
        assert torch.equal(first, second.flip(0))


def test_a_place_is_a_hash_and_has_no_state():
    noise = Noise(torch.tensor([5]))
    assert torch.equal(noise.uniform(3), noise.uniform(3))
