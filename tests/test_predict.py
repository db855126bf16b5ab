import pytest
import torch
from scipy import stats

from tests.helpers import FALSE_ALARM, frequencies, generator, oracle, total_variation
from unmask import plan, predict, sample
from unmask.models.oracles.enumerated import MarkovOracle, TimeDependent
from unmask.predict import Prediction, lagrange, log_mean
from unmask.sampling import generators
from unmask.schedule import Linear

MASK = 3


def test_log_mean_is_normalised_in_float64_whatever_comes_in():
    """Equation 4: a bfloat16 softmax over 50,257 ids does not sum to 1; ours does."""
    logits = torch.randn(2, 50_257, generator=generator(0)).bfloat16()
    mu = log_mean(logits).exp()
    assert mu.dtype == torch.float64
    torch.testing.assert_close(mu.sum(-1), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_log_mean_refuses_what_is_no_distribution(bad):
    with pytest.raises(ValueError, match="no distribution"):
        log_mean(torch.tensor([[0.0, bad]]))
    with pytest.raises(ValueError, match="no distribution"):
        log_mean(torch.full((1, 2), -torch.inf))


class TestLagrange:
    mu = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    last = torch.tensor([[0.4, 0.2, 0.4]], dtype=torch.float64)

    def at(self, tau):
        now = Prediction(self.mu.log(), torch.tensor([0.6], dtype=torch.float64))
        before = Prediction(self.last.log(), torch.tensor([0.8], dtype=torch.float64))
        weights = lagrange(now, before, torch.tensor([tau], dtype=torch.float64)).exp()
        return weights

    def test_passes_through_both_predictions(self):
        torch.testing.assert_close(self.at(0.6), self.mu)
        torch.testing.assert_close(self.at(0.8), self.last)

    def test_is_the_paper_s_formula_between_and_beyond(self):
        for tau in (0.7, 0.55, 0.5):
            expected = (tau - 0.8) / (0.6 - 0.8) * self.mu + (tau - 0.6) / (0.8 - 0.6) * self.last
            torch.testing.assert_close(self.at(tau), expected.clamp(min=0))
            assert float(expected.sum()) == pytest.approx(1)

    def test_what_falls_below_zero_is_put_at_zero(self):
        weights = self.at(0.3)
        assert float(weights[0, 2]) == 0
        assert bool((weights[0, :2] > 0).all())

    def test_one_time_twice_keeps_the_newer_prediction(self):
        now = Prediction(self.mu.log(), torch.tensor([0.5], dtype=torch.float64))
        before = Prediction(self.last.log(), torch.tensor([0.5], dtype=torch.float64))
        torch.testing.assert_close(lagrange(now, before, torch.tensor([0.4], dtype=torch.float64)).exp(), self.mu)

    def test_the_first_call_has_nothing_to_extrapolate(self):
        now = Prediction(self.mu.log(), torch.tensor([0.5], dtype=torch.float64))
        assert torch.equal(lagrange(now, None, torch.tensor([0.1], dtype=torch.float64)), self.mu.log())


def test_auto_is_the_paper_s_rule():
    assert predict.auto(128) is predict.extrapolate
    assert predict.auto(129) is predict.correct


def reference_extrapolation(model, the_plan, rows, seed):
    """Algorithm 3, position by position in plain Python, from the same plan; its own multinomial."""
    g = generator(seed)
    out = []
    for row in range(rows):
        x = torch.full((1, 4), model.mask_id)
        mu_last, tau_last = None, None
        for s in range(int(the_plan.calls[row])):
            tau = the_plan.call_time[row, s : s + 1]
            mu = torch.softmax(model(x, time=tau), -1)[0]
            x = x.clone()
            for slot in (the_plan.step[row] == s).nonzero().flatten().tolist():
                k, hit = int(the_plan.order[row, slot]), the_plan.times[row, slot]
                hat = mu[k]
                if mu_last is not None:
                    hat = (hit - tau_last) / (tau - tau_last) * mu[k] + (hit - tau) / (tau_last - tau) * mu_last[k]
                x[0, k] = torch.multinomial(hat.clamp(min=0), 1, generator=g)
            mu_last, tau_last = mu, tau
        out.append(x)
    return torch.cat(out)


def reference_correction(model, length, steps, rows, seed):
    """Algorithm 4 as printed, with its own uniform choices of positions."""
    g = generator(seed)
    sizes = torch.bincount(torch.arange(length) * steps // length).tolist()

    def choose(x):
        holes = (x == model.mask_id).nonzero().flatten()
        return int(holes[torch.randint(len(holes), (1,), generator=g)])

    out = []
    for _ in range(rows):
        x, hat, tau = torch.full((length,), model.mask_id), None, 1.0
        left = length
        for n, size in enumerate(sizes):
            for i in range(size):
                u = float(torch.rand(1, generator=g, dtype=torch.float64))
                tau, left = tau * u ** (1 / left), left - 1
                if i == 0:
                    shown = x.clone()
                    time = torch.tensor([tau], dtype=torch.float64)
                    mu = torch.softmax(model(shown.unsqueeze(0), time=time), -1)[0]
                    visible = shown != model.mask_id
                    mu[visible] = torch.nn.functional.one_hot(shown[visible], mu.shape[1]).double()
                    if n > 0:
                        x = hat.clone()
                        for _ in range(sizes[n - 1]):
                            k = choose(x)
                            x[k] = torch.multinomial(mu[k], 1, generator=g)
                    hat = x.clone()
                k = choose(x)
                x[k] = torch.multinomial(mu[k], 1, generator=g)
        out.append(x)
    return torch.stack(out)


def same_law(ours, theirs, vocab):
    both = torch.stack([frequencies(ours, vocab), frequencies(theirs, vocab)])
    both = both[:, both.sum(0) >= 10]
    return stats.chi2_contingency(both.numpy()).pvalue > FALSE_ALARM


def timed():
    return TimeDependent(oracle(2, 4, seed=6), strength=1.0)


def test_extrapolation_is_algorithm_3():
    """Against Algorithm 3 written out, for a network that reads the time: homogeneity at 1e-6."""
    model, rows = timed(), 3000
    canvas = torch.full((rows, 4), model.mask_id)
    the_plan = plan.parallel(canvas, mask_id=2, generators=generators(5, rows), schedule=Linear(), steps=2)
    ours = sample(model, num=rows, length=4, plan=plan.parallel, steps=2, predict=predict.extrapolate, seed=5).tokens
    assert same_law(ours, reference_extrapolation(model, the_plan, rows, seed=1), 2)


@pytest.mark.parametrize("steps", [2, 4])
def test_correction_is_algorithm_4(steps):
    """Against Algorithm 4 written out, positions chosen again and all: homogeneity at 1e-6."""
    model, rows = timed(), 3000
    ours = sample(model, num=rows, length=4, plan=plan.parallel, steps=steps, predict=predict.correct, seed=5).tokens
    assert same_law(ours, reference_correction(model, 4, steps, rows, seed=2), 2)


def test_correction_costs_no_calls_and_carries_over_what_the_network_was_shown():
    model = oracle(3, 6, seed=2)
    plain = sample(model, num=40, length=6, plan=plan.parallel, steps=3, seed=1)
    ours = sample(model, num=40, length=6, plan=plan.parallel, steps=3, predict=predict.correct, seed=1)
    assert torch.equal(ours.nfe, plain.nfe)
    shown = torch.full((40, 6), model.mask_id)
    carried = 0
    for step in ours.trace:
        before = shown.clone()
        for b in range(40):
            if step.hidden is not None:
                shown[b, [p for p in step.hidden[b].tolist() if p >= 0]] = model.mask_id
            for position, token, drawn in zip(
                step.positions[b].tolist(), step.tokens[b].tolist(), step.drawn[b].tolist(), strict=True
            ):
                if position >= 0:
                    assert shown[b, position] == model.mask_id, "filled once per state"
                    assert drawn == (before[b, position] == model.mask_id)
                    if not drawn:
                        assert token == before[b, position]
                        carried += 1
                    shown[b, position] = token
    assert torch.equal(shown, ours.tokens)
    assert carried > 0
    assert int(ours.ncs.sum()) == sum(int(step.drawn.sum()) for step in ours.trace)


@pytest.mark.parametrize(("name", "switch", "steps"), [("extrapolate", 0.3, 2), ("correct", 0.1, 6)])
def test_the_second_order_reduces_the_bias_of_parallel_decoding(name, switch, steps):
    """Total variation to a Markov chain's joint over 8 positions, where each variant is at its best.

    Extrapolation with few steps, correction with many, as in the paper. Over 8,000 samples a distance has a standard
    error below 0.006; the differences are 0.09 and 0.03.
    """
    chain = torch.tensor([[1 - switch, switch], [switch, 1 - switch]], dtype=torch.float64)
    model = MarkovOracle(torch.tensor([0.5, 0.5], dtype=torch.float64), chain)
    truth = model.log_likelihood(torch.cartesian_prod(*[torch.arange(2)] * 8)).exp()

    def distance(how):
        tokens = sample(model, num=8000, length=8, plan=plan.parallel, steps=steps, predict=how, seed=3).tokens
        return total_variation(frequencies(tokens, 2) / 8000, truth)

    assert distance(getattr(predict, name)) < distance(predict.first_order) - 0.01
