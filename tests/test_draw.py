import math

import pytest
import torch
from scipy import stats

from tests.helpers import FALSE_ALARM, chi_square, generator, noise
from unmask import draw, theory

EXACT = {
    "inverse_cdf": draw.inverse_cdf,
    "exponential_race": draw.exponential_race,
    "gumbel_float64": draw.gumbel(torch.float64),
}
EVERY = EXACT | {
    "gumbel_float32": draw.gumbel(torch.float32),
    "gumbel_bfloat16": draw.gumbel(torch.bfloat16),
    "truncated": draw.truncated(theory.maximum_gumbel("float32")),
}


def drawn(how, logits, rows, seed=0):
    return how(logits.expand(rows, -1), noise(seed, rows))


@pytest.mark.parametrize("how", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize(
    "p",
    [[0.5, 0.25, 0.125, 0.125], [0.97, 0.01, 0.0, 0.02], [1 / 7] * 7, [1e-3, 1 - 1e-3], [0.0, 0.3, 0.0, 0.7, 0.0]],
    ids=str,
)
def test_exact_draws_match_their_target(how, p):
    """Chi-square over 30,000 draws. False alarm 1e-6."""
    p = torch.tensor(p, dtype=torch.float64)
    counts = torch.bincount(drawn(how, p.log(), 30_000), minlength=len(p))
    assert chi_square(counts, p) > FALSE_ALARM


@pytest.mark.parametrize("how", EXACT.values(), ids=EXACT)
def test_exact_draws_at_the_paper_s_vocabulary(how):
    """A near-certain class beside 50,256 tiny ones: what leaves it is binomial. False alarm 1e-6."""
    rest = 0.05
    p = torch.full((50_257,), rest / 50_256, dtype=torch.float64)
    p[-1] = 1 - rest
    ids = torch.cat([drawn(how, p.log(), 100, seed) for seed in range(10)])
    left = int((ids != 50_256).sum())
    assert chi_square(torch.tensor([left, 1000 - left]), torch.tensor([rest, 1 - rest])) > FALSE_ALARM
    assert len(set(ids[ids != 50_256].tolist())) > 0.9 * left


@pytest.mark.parametrize("maximum", [3.0, 1.0, 0.0])
def test_truncated_draws_match_the_closed_form_and_not_the_target(maximum):
    """Prop. 5.2, every class. False alarm 1e-6, and the target itself is rejected at that level."""
    p = torch.tensor([0.02, 0.08, 0.1, 0.3, 0.5], dtype=torch.float64)
    shifted = torch.from_numpy(theory.shifted_probabilities(p.numpy(), maximum))
    counts = torch.bincount(drawn(draw.truncated(maximum), p.log(), 20_000), minlength=len(p))
    assert chi_square(counts, shifted) > FALSE_ALARM
    assert chi_square(counts, p) < FALSE_ALARM


def leaving(dtype, bits, classes, rest):
    """The chance that Gumbel-max leaves a class at 1 - rest for one of many flat ones, with u on the grid k / 2^bits.

    A sum over the grid's levels, no more: P(the largest of the flat classes' Gumbels is g) P(the sure one's is lower).
    """
    u = torch.arange(2**bits, dtype=torch.float64).div(2**bits).to(dtype).clamp(min=torch.finfo(dtype).tiny)
    g = (-torch.log(-torch.log(u))).double().sort().values
    below = torch.arange(1, 2**bits + 1, dtype=torch.float64) / 2**bits
    largest = below.pow(classes).diff(prepend=torch.zeros(1, dtype=torch.float64))
    gap = math.log((1 - rest) * classes / rest)
    return float((largest * torch.searchsorted(g, g - gap, right=True) / 2**bits).sum())


@pytest.mark.parametrize(
    ("dtype", "name", "bits", "classes", "rest", "rows"),
    [
        (torch.bfloat16, "bfloat16", 8, 80, 0.4, 10_000),
        (torch.float16, "float16", 11, 200, 0.1, 10_000),
        pytest.param(torch.float32, "float32", 24, 50_257, 1e-3, 25_000, marks=pytest.mark.slow),
    ],
)
def test_low_precision_gumbels_differ_from_the_target(dtype, name, bits, classes, rest, rows):
    """The mask's class at 1 - rest beside many tiny ones, as in the coupled step of Sec. 5: draws seldom leave it.

    The number that do is binomial: likely (1e-6, two-sided) with the enumerated grid's probability, impossible (1e-6)
    with the true one. Prop. 5.2 conditions on g <= M where a grid rounds down to M, so it is lower still: the fault
    is at most what it says.
    """
    p = torch.full((classes + 1,), rest / classes, dtype=torch.float64)
    p[-1] = 1 - rest
    left = sum(int((drawn(draw.gumbel(dtype), p.log(), 250, seed) != classes).sum()) for seed in range(rows // 250))
    leave = leaving(dtype, bits, classes, rest)
    assert 2 * min(stats.binom.cdf(left, rows, leave), stats.binom.sf(left - 1, rows, leave)) > FALSE_ALARM
    assert stats.binom.cdf(left, rows, rest) < FALSE_ALARM
    assert 1 - theory.shifted_probabilities(p.numpy(), theory.maximum_gumbel(name))[-1] < leave < rest


@pytest.mark.parametrize("how", EVERY.values(), ids=EVERY)
class TestEveryDraw:
    def test_an_id_of_probability_zero_is_never_drawn(self, how):
        logits = torch.tensor([-torch.inf, 0.0, -torch.inf, -3.0, -torch.inf])
        assert set(drawn(how, logits, 5000).tolist()) <= {1, 3}

    def test_one_hot_rows(self, how):
        logits = torch.full((7, 7), -torch.inf)
        logits.fill_diagonal_(-12.0)
        assert how(logits, noise(0, 7)).tolist() == list(range(7))

    def test_one_class(self, how):
        assert how(torch.zeros(3, 1), noise(0, 3)).tolist() == [0, 0, 0]

    def test_no_rows(self, how):
        assert how(torch.zeros(0, 5), noise(0, 0)).shape == (0,)

    def test_a_constant_added_to_the_logits_changes_nothing(self, how):
        logits = torch.randn(50, 9, generator=generator(1), dtype=torch.float64)
        assert torch.equal(how(logits, noise(0, 50)), how(logits + 700, noise(0, 50)))

    def test_a_row_depends_on_its_own_noise_alone(self, how):
        logits = torch.randn(12, 40, generator=generator(2), dtype=torch.float64)
        together = how(logits, noise(0, 12))
        alone = torch.cat([how(logits[i : i + 1], noise(0, 12)[i : i + 1]) for i in range(12)])
        assert torch.equal(together, alone)
        shuffled = torch.randperm(12, generator=generator(3))
        assert torch.equal(how(logits[shuffled], noise(0, 12)[shuffled]), together[shuffled])

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf])
    def test_what_is_no_distribution_is_refused(self, how, bad):
        with pytest.raises(ValueError, match="logits must have no NaN"):
            how(torch.tensor([[0.0, bad]]), noise(0, 1))

    def test_rows_without_any_id_are_refused(self, how):
        with pytest.raises(ValueError, match="at least one id"):
            how(torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]]), noise(0, 2))

    def test_wrong_dtype_or_shape_is_refused(self, how):
        with pytest.raises(ValueError, match="floating-point"):
            how(torch.zeros(2, 3, dtype=torch.int64), noise(0, 2))
        with pytest.raises(ValueError, match=r"\[rows, classes\]"):
            how(torch.zeros(3), noise(0, 1))


def test_the_race_hardly_moves_with_the_distribution():
    """Two distributions 1e-6 apart differ in about one of 10^6 ids for the same noise: none of 5,000 here."""
    logits = torch.randn(5000, 20, generator=generator(6), dtype=torch.float64)
    nearly = logits + 1e-8 * torch.randn(5000, 20, generator=generator(7), dtype=torch.float64)
    assert torch.equal(draw.exponential_race(logits, noise(0, 5000)), draw.exponential_race(nearly, noise(0, 5000)))


class TestPick:
    logits = torch.randn(200, 6, generator=generator(8), dtype=torch.float64)

    @pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.7}], ids=str)
    def test_it_draws_from_the_shaped_distribution_and_returns_the_probability(self, options):
        ids, probabilities = draw.Pick(**options)(self.logits, noise(0, 200))
        law = torch.softmax(draw.shaped(self.logits, **options), -1)
        assert torch.equal(ids, draw.exponential_race(law.log(), noise(0, 200)))
        torch.testing.assert_close(probabilities, law.gather(1, ids.unsqueeze(1)).squeeze(1))

    @pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"top_k": 2}], ids=str)
    def test_that_log_weights_are_normalised_changes_nothing(self, options):
        log_mu, pick = self.logits.log_softmax(-1), draw.Pick(**options)
        told, worked_out = (pick(log_mu, noise(0, 200), normalised=known) for known in (True, False))
        assert torch.equal(told[0], worked_out[0])
        torch.testing.assert_close(told[1], worked_out[1])

    def test_bad_options_are_named_when_it_is_made(self):
        with pytest.raises(ValueError, match="top_p"):
            draw.Pick(top_p=2.0)


class TestFaults:
    """On an accelerator what is wrong is collected, and raised when it is looked at."""

    def test_an_error_is_raised_when_it_is_checked(self):
        faults = draw.Faults()
        with faults.collected():
            draw.exponential_race(torch.tensor([[0.0, torch.nan]]), noise(0, 1))
        with pytest.raises(ValueError, match="no NaN"):
            faults.check()

    def test_nothing_wrong_raises_nothing(self):
        faults = draw.Faults()
        with faults.collected():
            draw.exponential_race(torch.zeros(1, 2), noise(0, 1))
        faults.check()
        with pytest.raises(ValueError, match="no NaN"):
            draw.exponential_race(torch.tensor([[0.0, torch.nan]]), noise(0, 1))


def test_low_precision_logits_are_drawn_in_float64():
    """bfloat16 logits give the distribution of their upcast values. False alarm 1e-6."""
    logits = torch.tensor([0.0, 1.0, 2.0], dtype=torch.bfloat16)
    counts = torch.bincount(drawn(draw.inverse_cdf, logits, 20_000), minlength=3)
    assert chi_square(counts, torch.softmax(logits.double(), -1)) > FALSE_ALARM


class TestShaped:
    logits = torch.tensor([[0.1, 2.0, -1.0, 0.5]], dtype=torch.float64)

    def law(self, **options):
        return torch.softmax(draw.shaped(self.logits, **options), -1)[0]

    def test_untouched_by_default(self):
        torch.testing.assert_close(self.law(), torch.softmax(self.logits[0], -1))

    def test_temperature(self):
        torch.testing.assert_close(self.law(temperature=0.5), torch.softmax(self.logits[0] * 2, -1))

    def test_temperature_zero_is_the_mode_and_the_first_among_equals(self):
        assert self.law(temperature=0).tolist() == [0, 1, 0, 0]
        assert torch.softmax(draw.shaped(torch.zeros(1, 3), temperature=0), -1)[0].tolist() == [1, 0, 0]

    def test_top_k_keeps_k(self):
        law = self.law(top_k=2)
        assert (law > 0).tolist() == [False, True, False, True]
        assert float(law[1] / law[3]) == pytest.approx(math.exp(1.5))
        assert (draw.shaped(torch.zeros(1, 5), top_k=2) > -torch.inf).sum() == 2
        assert torch.equal(self.law(top_k=99), self.law())

    def test_top_p_keeps_the_fewest_ids_that_reach_p(self):
        p = torch.softmax(self.logits[0], -1).sort(descending=True).values.cumsum(0)
        for keep in range(1, 4):
            middle = float(p[keep - 1] + p[keep]) / 2 if keep < 4 else 1.0
            assert int((self.law(top_p=middle) > 0).sum()) == keep + 1
        assert int((self.law(top_p=1e-9) > 0).sum()) == 1
        assert torch.equal(self.law(top_p=1.0), self.law())

    @pytest.mark.parametrize(
        "options", [{"temperature": -1}, {"temperature": math.nan}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}]
    )
    def test_bad_options_are_named(self, options):
        with pytest.raises(ValueError, match=next(iter(options))):
            self.law(**options)


class TestGumbelSoftmax:
    def test_the_mode_is_a_categorical_draw(self):
        """argmax of a Gumbel-softmax vector is Gumbel-max. False alarm 1e-6."""
        p = torch.tensor([0.1, 0.6, 0.3], dtype=torch.float64)
        y = draw.gumbel_softmax(p.log().expand(20_000, 3), temperature=0.7, generator=generator(3))
        torch.testing.assert_close(y.sum(-1), torch.ones(20_000, dtype=torch.float64))
        assert chi_square(torch.bincount(y.argmax(-1), minlength=3), p) > FALSE_ALARM

    def test_one_hot_when_cold_and_flat_when_hot(self):
        logits = torch.zeros(100, 4)
        cold = draw.gumbel_softmax(logits, temperature=1e-3, generator=generator(4))
        assert float((cold.amax(-1) > 0.9).double().mean()) > 0.9
        hot = draw.gumbel_softmax(logits, temperature=1e4, generator=generator(4))
        torch.testing.assert_close(hot, torch.full_like(hot, 0.25), rtol=0, atol=1e-2)

    def test_gradients_flow(self):
        logits = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
        draw.gumbel_softmax(logits, temperature=1.0, generator=generator(5))[:, 0].sum().backward()
        assert bool((logits.grad != 0).all())

    def test_temperature_must_be_positive(self):
        with pytest.raises(ValueError, match="temperature"):
            draw.gumbel_softmax(torch.zeros(1, 2), temperature=0, generator=generator(0))


@pytest.mark.parametrize("dtype", [torch.int64, "float32", None])
def test_gumbel_needs_a_named_precision(dtype):
    with pytest.raises(ValueError, match="dtype"):
        draw.gumbel(dtype)


def test_truncated_needs_a_finite_maximum():
    with pytest.raises(ValueError, match="maximum"):
        draw.truncated(math.inf)
