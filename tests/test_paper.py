"""Every fast path has the distribution of the paper's algorithm, for networks that read the time and any canvas.

Two samples are compared by a chi-square test of homogeneity. Seeds are fixed; each test's false-alarm rate is 1e-6.
"""

from itertools import combinations

import pytest
import torch

from tests.helpers import FALSE_ALARM, chi_square, frequencies, generator, oracle, same_law
from unmask import paper, plan, predict, sample
from unmask.draw import exponential_race
from unmask.networks.oracles.enumerated import TimeDependent
from unmask.noise import Streams
from unmask.schedule import Cosine, Linear, LogLinear

M = 2


class Invented:
    """A network whose output depends strongly on the time, on how much is visible and on what; it is not an oracle.

    So the distributions of the five samplers differ. Its output at visible positions means nothing.
    """

    vocab_size, mask_id = 2, M

    def __call__(self, tokens, time=None, rows=None):
        visible = tokens != M
        level = 10 * (0.4 - visible.double().mean(1)) + 0.5 * torch.where(visible, 2 * tokens - 1, 0).sum(1)
        logit = level.unsqueeze(1) + torch.where(rows % 2 == 0, 6.0, 3.0) * (time - 0.5).unsqueeze(1)
        logit = torch.where(visible.gather(1, rows), 0.0, logit)
        return torch.stack([torch.zeros_like(logit), logit], -1)


ROWS = 800  # of a printed algorithm; four times as many of ours
MODEL = Invented()
CANVASES = torch.tensor([[M, M, M, M], [M, 1, M, M]])
FAST = {
    "Algorithm 1": (paper.first_hitting, {"plan": plan.first_hitting}),
    "Algorithm 2": (paper.parallel_decoding, {"plan": plan.parallel}),
    "Algorithm 3": (paper.extrapolation, {"plan": plan.parallel, "predict": predict.extrapolate}),
    "Algorithm 4": (paper.predictor_corrector, {"plan": plan.parallel, "predict": predict.correct}),
    "Equation 10": (paper.ancestral, {"plan": plan.ancestral}),
}


def printed(algorithm, canvas, steps, schedule, seed=1):
    """ROWS sequences of a paper's algorithm, one by one."""
    g, x = generator(seed), torch.tensor(canvas)
    options = (steps,) if steps else ()
    return torch.stack([algorithm(MODEL, x, *options, generator=g, schedule=schedule) for _ in range(ROWS)])


@pytest.mark.parametrize(
    ("name", "steps", "schedule"),
    [
        ("Algorithm 1", None, Linear()),
        ("Algorithm 2", 2, Cosine()),
        ("Algorithm 3", 2, Linear()),
        ("Algorithm 4", 3, Linear()),
        ("Equation 10", 1, Linear()),
        ("Algorithm 3", 2, Cosine()),
        ("Algorithm 4", 4, Cosine()),
        ("Equation 10", 3, Cosine()),
        ("Equation 10", 2, LogLinear(0.2)),
    ],
)
def test_the_fast_path_has_the_distribution_of_the_printed_algorithm(name, steps, schedule):
    """In batches of 100, in which empty and partly filled canvases are mixed.

    LogLinear(0.2) has alpha_0 = 0.8: what is masked at time 0 is unmasked there.
    """
    algorithm, options = FAST[name]
    canvas = CANVASES.repeat(4 * ROWS, 1)
    ours = sample(MODEL, canvas=canvas, steps=steps, schedule=schedule, batch=100, seed=5, **options).tokens
    for i, x in enumerate(CANVASES.tolist()):
        theirs = printed(algorithm, tuple(x), steps, schedule)
        assert same_law(ours[i :: len(CANVASES)], theirs, 2) > FALSE_ALARM / len(CANVASES)


def test_correcting_first_hitting_is_algorithm_4_with_a_step_per_token():
    """And so is parallel decoding with more steps than masked positions."""
    ours, more, plain = (
        sample(MODEL, num=50, length=4, plan=planner, steps=steps, predict=predict.correct, seed=1).tokens
        for planner, steps in ((plan.first_hitting, None), (plan.parallel, 9), (plan.parallel, 4))
    )
    assert torch.equal(ours, plain) and torch.equal(more, plain)


@pytest.mark.parametrize(("name", "steps"), [("Algorithm 1", ()), ("Algorithm 3", (3,))])
def test_the_printed_algorithms_give_the_joint_where_they_must(name, steps):
    """Algorithm 1 always, Algorithms 2 and 3 with a step per token; 1,500 samples over 8 outcomes."""
    model, (algorithm, _), g = oracle(2, 3, seed=1), FAST[name], generator(3)
    x = torch.full((3,), M)
    tokens = torch.stack([algorithm(model, x, *steps, generator=g) for _ in range(1500)])
    assert chi_square(frequencies(tokens, 2), model.joint) > FALSE_ALARM


@pytest.mark.parametrize(
    ("steps", "names"),
    [(2, ("Algorithm 1", "Algorithm 2", "Algorithm 3", "Equation 10")), (3, ("Algorithm 2", "Algorithm 4"))],
)
def test_the_distributions_differ_enough_to_be_distinguished(steps, names):
    """Samples of the sizes that are compared above: each pair is distinguished at 1e-6."""
    tokens = [
        sample(MODEL, num=4 * ROWS, length=4, steps=None if name == "Algorithm 1" else steps, seed=i, **FAST[name][1])
        for i, name in enumerate(names)
    ]
    for one, other in combinations(tokens, 2):
        assert same_law(one.tokens, other.tokens[:ROWS], 2) < FALSE_ALARM


@pytest.mark.parametrize("name", FAST)
def test_the_printed_algorithms_keep_what_is_visible_and_leave_no_mask(name):
    algorithm, _ = FAST[name]
    for x in [*CANVASES, torch.tensor([0, 1, 1, 0])]:
        given = x.clone()
        out = algorithm(MODEL, x, *(() if name == "Algorithm 1" else (2,)), generator=generator(0))
        assert torch.equal(x, given), "the caller's canvas is not written to"
        assert torch.equal(out[x != M], x[x != M])
        assert not bool((out == M).any())


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7, 16, 99])
def test_the_decoding_schedule_is_the_plan_s(steps):
    for length in (1, 4, 7, 10, 16):
        canvas = torch.full((1, length), M)
        whole = plan.parallel(canvas, mask_id=M, streams=Streams.of(0, 1), steps=steps)
        assert torch.bincount(whole.step[0]).tolist() == paper.decoding_schedule(length, steps)


class ByHand:
    """One sequence through a plan, position by position, with the plan and the noise that ``unmask.sample`` draws."""

    def __init__(self, canvas, seed):
        self.x, self.noise = canvas.clone(), Streams.of(seed, 1).at("token", len(canvas))[0]
        self.visits = [0] * len(canvas)

    def draw(self, k, weights):
        noise = self.noise[k : k + 1].numbered(self.visits[k])
        self.visits[k] += 1
        return int(exponential_race(weights.log()[None], noise))

    def fill(self, positions, mu):
        """Draw from mu; what the network was shown is carried over."""
        for k in positions:
            self.x[k] = int(mu[k].argmax()) if float(mu[k].max()) == 1 else self.draw(k, mu[k])


def by_hand(model, canvas, planner, how, seed, **options):
    """Groups, times and choices as the plan has them; the predictors as the paper prints them."""
    streams, self = Streams.of(seed, 1), ByHand(canvas, seed)
    whole = how.prepare(planner(canvas[None], mask_id=model.mask_id, streams=streams, **options), streams)
    hat, mu_last, tau_last, corrected = self.x, None, None, []
    for s in range(int(whole.calls[0])):
        slots, tau = (whole.step[0] == s).nonzero().flatten(), whole.call_time[0, s]
        mu = paper.mean(model, self.x, tau)
        if how is predict.correct:
            self.x = hat.clone()
            self.fill(corrected, mu)
            hat, corrected = self.x.clone(), whole.order[0, slots].tolist()
            self.fill(whole.tentative[0, slots].tolist(), mu)
            continue
        for k, hit in zip(whole.order[0, slots].tolist(), whole.times[0, slots], strict=True):
            if how is predict.extrapolate and mu_last is not None:
                line = (hit - tau_last) / (tau - tau_last) * mu[k] + (hit - tau) / (tau_last - tau) * mu_last[k]
                self.x[k] = self.draw(k, line.clamp(min=0))
            else:
                self.x[k] = self.draw(k, mu[k])
        mu_last, tau_last = mu, tau
    return self.x


@pytest.mark.parametrize("how", ["first_order", "extrapolate", "correct"])
@pytest.mark.parametrize("planner", ["first_hitting", "parallel", "ancestral", "left_to_right"])
def test_the_tokens_are_those_of_the_plan_and_the_noise_by_hand(planner, how):
    """Every plan with every predictor, in a ragged batch: not only in distribution, but token by token."""
    model, seeds = TimeDependent(oracle(3, 6, seed=2), strength=1.5), list(range(16))
    canvas = torch.where(torch.arange(6) < torch.arange(16).unsqueeze(1) % 7, 3, torch.arange(6) % 3)
    made, how = getattr(plan, planner), getattr(predict, how)
    options = {"steps": None if planner == "first_hitting" else 3, "schedule": Cosine()}
    together = sample(model, canvas=canvas, plan=made, predict=how, seed=seeds, batch=8, **options).tokens
    for i, seed in enumerate(seeds):
        assert torch.equal(together[i], by_hand(model, canvas[i], made, how, seed, **options))


def test_first_hitting_is_algorithm_1_given_its_plan_and_its_noise():
    canvas = CANVASES.repeat(10, 1)
    streams = Streams.of(9, len(canvas))
    whole, noise = plan.first_hitting(canvas, mask_id=M, streams=streams), streams.at("token", 4)
    ours = sample(MODEL, canvas=canvas, seed=9).tokens
    for i, holes in enumerate(whole.holes.tolist()):
        order, times = whole.order[i, :holes].tolist(), whole.times[i, :holes].tolist()

        def draw(l, mu, i=i):  # noqa: E741
            return int(exponential_race(mu.log()[None], noise[i, l : l + 1]))

        assert torch.equal(paper.given(MODEL, canvas[i], order, times, draw), ours[i])
