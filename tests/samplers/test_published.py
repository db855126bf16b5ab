"""The published samplers' distributions, each against its exact one. Fixed seeds; false-alarm rates of 1e-6."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tests.helpers import FALSE_ALARM, chi_square, frequencies, generator, noise, oracle, same_law
from unmask import apply, plan, sample, theory
from unmask.networks.oracles.enumerated import MarkovOracle, TimeDependent
from unmask.samplers.published import (
    Coupled,
    ancestral_law,
    euler_law,
    race,
    sedd_euler,
    sedd_tweedie,
    tweedie_law,
    winner,
)
from unmask.schedule import Cosine, Geometric, Linear, LogLinear, Polynomial

SCHEDULES = [Linear(), Cosine(), Polynomial(2), Geometric(), LogLinear()]
SAMPLERS = {"ancestral": Coupled, "euler": sedd_euler, "tweedie": sedd_tweedie}
M = theory.maximum_gumbel("float32")


def chain():
    transition = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], dtype=torch.float64)
    return MarkovOracle(torch.full((3,), 1 / 3, dtype=torch.float64), transition)


OWN = ("precision", "eps", "cache", "denoise", "end")


def run(how, model, **options):
    own = {name: options.pop(name) for name in OWN if name in options}
    return sample(model, sampler=how(**own), **options)


class TestFloat64HasTheLawOfThePlan:
    """Homogeneity of two samples of 4,000 over 27 outcomes."""

    rows = 4000

    @pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=repr)
    @pytest.mark.parametrize("steps", [1, 4])
    def test_without_the_cache_for_a_network_that_reads_the_time(self, schedule, steps):
        model = TimeDependent(oracle(3, 3, seed=4), strength=1.5)
        options = {"num": self.rows, "length": 3, "steps": steps, "schedule": schedule}
        theirs = run(Coupled, model, precision="float64", cache=False, seed=7, **options)
        ours = sample(model, plan=plan.ancestral, seed=8, **options)
        assert same_law(theirs.tokens, ours.tokens, 3) > FALSE_ALARM

    @pytest.mark.parametrize("how", SAMPLERS.values(), ids=SAMPLERS)
    def test_with_the_cache(self, how):
        model = oracle(3, 3, seed=4)
        theirs = run(how, model, num=self.rows, length=3, steps=3, precision="float64", cache=True, seed=7)
        ours = sample(model, num=self.rows, length=3, plan=plan.ancestral, steps=3, seed=8)
        assert same_law(theirs.tokens, ours.tokens, 3) > FALSE_ALARM

    def test_with_many_steps_it_is_the_joint(self):
        model = oracle(3, 3, seed=4)
        theirs = run(Coupled, model, num=1000, length=3, steps=200, precision="float64")
        assert chi_square(frequencies(theirs.tokens, 3), model.joint) > FALSE_ALARM

    def test_an_infill_and_a_mask_inside_the_vocabulary(self):
        p = torch.zeros(4, 4, 4, dtype=torch.float64)
        keep = torch.tensor([0, 2, 3])
        p[keep.view(3, 1, 1), keep.view(1, 3, 1), keep] = oracle(3, 3).joint
        model = type(oracle())(p, mask_id=1)
        canvas = torch.tensor([[1, 2, 1]]).expand(1000, 3)
        theirs = run(Coupled, model, canvas=canvas, steps=100, precision="float64").tokens
        assert bool((theirs[:, 1] == 2).all())
        conditional = p[:, 2, :] / p[:, 2, :].sum()
        assert chi_square(frequencies(theirs[:, [0, 2]], 4), conditional) > FALSE_ALARM


class TestLowPrecision:
    """One coupled step over tokens of two probabilities beside the mask, in the tail of the uniforms where it matters.

    A token at p = 4e-8 can only win with u above 1 - 2^-16 (otherwise the mask's clock would have to pass 380), so of K
    uniforms those above are drawn, as many as a Poisson(K 2^-16) says, and the others left out: a race of two million
    classes costs what one of a hundred does, and has the same distribution.
    """

    bits, slots, rows = 16, 48, 2**17
    tokens = ((1_000_000, 4e-8), (1_000_000, 1e-8))  # (how many, their probability): c = 1.5 and 6

    def races(self, tail, dtype):
        """Who wins: 0 the mask, 1 and 2 the tokens of each probability. Fill the slots of each kind from the left."""
        g = generator(3)
        stay = 1 - sum(k * p for k, p in self.tokens)
        parts, weights = [torch.rand(self.rows, 1, generator=g, dtype=dtype)], [torch.full((1,), stay)]
        for k, p in self.tokens:
            count = torch.poisson(torch.full((self.rows, 1), k * 2.0**-self.bits), generator=g)
            assert int(count.max()) <= self.slots
            u = tail(torch.rand(self.rows, self.slots, generator=g, dtype=torch.float64)).to(dtype)
            parts.append(torch.where(torch.arange(self.slots) < count, u, 0.5))
            weights.append(torch.full((self.slots,), p))
        ids = winner(torch.cat(weights).expand(self.rows, -1), torch.cat(parts, 1))
        return torch.bincount((ids + self.slots - 1) // self.slots, minlength=3)

    def grid_law(self):
        """On a grid tokens ring only at the times k e / p, e = e^-M; at one time all of a kind together."""
        e = math.exp(-M)
        stay = 1 - sum(k * p for k, p in self.tokens)
        times = [(j * e / p, kind) for kind, (_, p) in enumerate(self.tokens) for j in range(1, 400)]
        law, hazard = [0.0, 0.0], 0.0
        for time, kind in sorted(times):
            law[kind] += math.exp(-hazard - stay * time) * -math.expm1(-self.tokens[kind][0] * e)
            hazard += self.tokens[kind][0] * e
        return torch.tensor([1 - sum(law), *law], dtype=torch.float64)

    def closed_form(self):
        p = np.concatenate([np.full(k, p) for k, p in self.tokens])
        shifted = theory.shifted_probabilities(np.r_[p, 1 - p.sum()], M)
        first = self.tokens[0][0]
        return torch.tensor([shifted[-1], shifted[:first].sum(), shifted[first:-1].sum()], dtype=torch.float64)

    @pytest.fixture(scope="class")
    def float32(self):
        levels = 2 ** (24 - self.bits)  # the top of the grid k / 2^24
        return self.races(lambda u: 1 - (1 + (u * levels).floor()) / 2**24, torch.float32)

    @pytest.fixture(scope="class")
    def truncated(self):
        return self.races(lambda u: (1 - u * 2.0**-self.bits) * theory.largest_below_one("float32"), torch.float64)

    @pytest.fixture(scope="class")
    def float64(self):
        return self.races(lambda u: 1 - u * 2.0**-self.bits, torch.float64)

    def test_float32_follows_the_grid(self, float32):
        """The chance to be unmasked and the tokens' shares, by a chi-square; neither the truth nor Prop. 5.2 fits."""
        assert chi_square(float32, self.grid_law()) > FALSE_ALARM
        assert chi_square(float32, self.closed_form()) < FALSE_ALARM
        assert chi_square(float32, self.truth()) < FALSE_ALARM

    def test_float64_truncated_follows_proposition_5_2(self, truncated):
        assert chi_square(truncated, self.closed_form()) > FALSE_ALARM
        assert chi_square(truncated, self.grid_law()) < FALSE_ALARM

    def test_float64_follows_the_truth(self, float64):
        assert chi_square(float64, self.truth()) > FALSE_ALARM

    def truth(self):
        shares = [k * p for k, p in self.tokens]
        return torch.tensor([1 - sum(shares), *shares], dtype=torch.float64)

    def test_both_unmask_too_seldom_and_prefer_the_likelier_tokens(self):
        truth, grid, closed = self.truth(), self.grid_law(), self.closed_form()
        assert closed[1:].sum() < grid[1:].sum() < 0.6 * truth[1:].sum()
        assert closed[1] / closed[2] > grid[1] / grid[2] > 5 * truth[1] / truth[2]

    def test_one_kind_of_token_has_the_closed_forms_of_the_module(self):
        k, p = 50_000, 2e-8
        self.tokens = ((k, p),)
        r, c = k * p, math.exp(-M) / p
        assert float(1 - self.grid_law()[0]) == pytest.approx(math.expm1(r * c) / math.expm1(c), rel=1e-9)
        shifted = theory.shifted_probabilities(np.r_[np.full(k, p), 1 - r], M)
        assert shifted[:-1].sum() == pytest.approx(r * math.exp(-(1 - r - p) * c), rel=1e-9)

    def test_torch_draws_float32_uniforms_from_that_grid(self):
        """Multiples of 2^-24, and odd ones among them: the grid is not coarser, and none is 1."""
        u = torch.rand(2**20, generator=generator(0)).double() * 2**24
        assert bool((u == u.floor()).all())
        assert float(u.max()) < 2**24
        assert stats.binomtest(int((u % 2).sum()), len(u), 0.5).pvalue > FALSE_ALARM

    def test_the_race_is_made_of_these_parts(self):
        weights = torch.rand(50, 30, generator=generator(1), dtype=torch.float64)
        for precision, dtype, scale in (
            ("float32", torch.float32, 1.0),
            ("float64", torch.float64, 1.0),
            ("float64-truncated", torch.float64, theory.largest_below_one("float32")),
        ):
            u = noise(2, 50).uniform(30, dtype=dtype) * scale
            ids = race(precision)(weights, noise(2, 50))
            assert torch.equal(ids, winner(weights, u))
            assert torch.equal(ids, (weights.to(dtype).log() - (-u.log()).log()).argmax(-1))

    def test_the_constants_guard_the_ends_and_leave_the_largest_gumbel(self):
        top = torch.tensor([0.0, 1 - 2.0**-24])
        clock = 1e-10 - torch.log(top + 1e-10)
        assert bool(clock.isfinite().all())
        assert -math.log(float(clock[1])) == pytest.approx(M, abs=2e-3)
        weights = torch.tensor([[0.0, 1.0, 0.0]])
        assert winner(weights, torch.zeros(1, 3), eps=1e-10).tolist() == [1]


class TestSEDD:
    grid = torch.linspace(1, 0, 9, dtype=torch.float64)

    def laws(self, law, schedule):
        return torch.stack(law(schedule, self.grid[1:], self.grid[:-1]))

    def test_euler_is_tweedie_is_ancestral_under_the_linear_schedule(self):
        expected = self.laws(ancestral_law, Linear())
        for law in (euler_law, tweedie_law):
            torch.testing.assert_close(self.laws(law, Linear()), expected, rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
    def test_tweedie_is_ancestral_under_every_schedule(self, schedule):
        expected = self.laws(ancestral_law, schedule)
        torch.testing.assert_close(self.laws(tweedie_law, schedule), expected, rtol=1e-9, atol=1e-12)

    def test_euler_differs_elsewhere_and_never_goes_negative(self):
        assert not torch.allclose(self.laws(euler_law, Cosine()), self.laws(ancestral_law, Cosine()), rtol=1e-2)
        leave, stay = euler_law(Polynomial(8), torch.tensor(0.0).double(), torch.tensor(1.0).double())
        assert float(leave) > 1 and float(stay) == 0

    @pytest.mark.parametrize("how", [sedd_euler, sedd_tweedie])
    def test_the_same_seed_gives_the_same_sequences_as_the_ancestral_sampler(self, how):
        options = {"num": 5, "length": 8, "steps": 20, "precision": "float64", "seed": 3}
        expected = run(Coupled, chain(), cache=False, **options)
        assert torch.equal(run(how, chain(), **options).tokens, expected.tokens)


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_the_calls_under_the_cache_follow_the_expected_nfe(batch):
    """Sec. 4.1: N (1 - (1 - 1/N)^{BL}), as the mean of 150 batches, by a z-test."""
    steps, length, runs = 12, 5, 150
    options = {"num": runs * batch, "length": length, "steps": steps, "precision": "float64", "batch": batch}
    out = run(Coupled, chain(), seed=5, **options)
    calls = out.nfe.view(runs, batch)
    assert bool((calls == calls[:, :1]).all())
    assert out.calls == int(calls[:, 0].sum()) == len(out.trace)
    mean, error = float(calls[:, 0].double().mean()), float(calls[:, 0].double().std()) / runs**0.5
    z = (mean - theory.expected_nfe(steps, length, batch)) / error
    assert 2 * stats.norm.sf(abs(z)) > FALSE_ALARM


class TestTheRun:
    def test_without_the_cache_every_step_calls(self):
        out = run(Coupled, chain(), num=3, length=4, steps=50, cache=False)
        assert out.calls == 50
        assert out.nfe.tolist() == [50] * 3
        assert out.ncs.tolist() == [50 * 4] * 3
        assert [step.calls for step in out.trace] == list(range(1, 51))

    @pytest.mark.parametrize("cache", [True, False])
    def test_the_trace_replays_the_run(self, cache):
        seen = []
        out = run(Coupled, chain(), num=4, length=6, steps=30, cache=cache, batch=3, callback=seen.append)
        canvas = torch.full((4, 6), 3)
        for step in out.trace:
            before = canvas.clone()
            apply(step, canvas, 3)
            at = step.positions >= 0
            assert int((canvas != before).sum()) == int(at.sum()) == int(step.drawn.sum())
            assert bool((step.probabilities[at] > 0).all()) and bool((step.tau[at] < 1).all())
            assert step.calls <= step.planned
        assert torch.equal(canvas, out.tokens)
        assert seen == list(out.trace)
        assert int(out.tokens.max()) < 3

    def test_the_cache_changes_the_calls_and_not_the_sequences(self):
        runs = [run(Coupled, chain(), num=3, length=6, steps=40, cache=cache) for cache in (True, False)]
        assert torch.equal(runs[0].tokens, runs[1].tokens)
        assert runs[0].calls < runs[1].calls

    def test_a_sequence_does_not_depend_on_its_batch(self):
        together = run(Coupled, chain(), num=5, length=6, steps=15, seed=9).tokens
        apart = run(Coupled, chain(), num=5, length=6, steps=15, seed=9, batch=2).tokens
        assert torch.equal(together, apart)
        assert torch.equal(run(Coupled, chain(), num=2, length=6, steps=15, seed=9).tokens, together[:2])

    def test_final_denoising(self):
        """One step that ends where little is unmasked: the rest is the mode, or a draw from mu."""
        model = oracle(3, 1, seed=2)
        options = {"num": 2000, "length": 1, "steps": 1, "end": 0.999, "precision": "float64"}
        mode = run(Coupled, model, denoise="argmax", **options)
        assert int((mode.tokens == int(model.joint.argmax())).sum()) > 1950
        assert mode.calls <= 2  # the step's own, and the last one's if anything changed
        drawn = run(Coupled, model, denoise="draw", **options)
        assert chi_square(frequencies(drawn.tokens, 3), model.joint) > FALSE_ALARM

    def test_a_schedule_that_leaves_masks_at_time_0_is_finished(self):
        out = run(Coupled, chain(), num=20, length=5, steps=4, schedule=Geometric(0.5, 20.0))
        assert int(out.tokens.max()) < 3

    def test_nothing_to_fill_costs_nothing(self):
        canvas = torch.tensor([[0, 1, 2]])
        out = run(Coupled, chain(), canvas=canvas, steps=5)
        assert out.calls == 0 and torch.equal(out.tokens, canvas)
        assert run(Coupled, chain(), num=0, length=3, steps=5).tokens.shape == (0, 3)

    @pytest.mark.parametrize(
        "options",
        [
            {"steps": 0},
            {"steps": 2.5},
            {"precision": "float16"},
            {"denoise": "no"},
            {"end": 1.0},
            {"eps": -1.0},
            {"batch": 0},
        ],
    )
    def test_bad_options_are_named(self, options):
        with pytest.raises(ValueError, match=next(iter(options))):
            run(Coupled, chain(), num=1, length=3, **{"steps": 5} | options)
