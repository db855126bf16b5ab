"""Orders that depend on the network: what they choose, what they leave alone, and the known distributions.

Fixed seeds; false-alarm rates of 1e-6.
"""

import math
from functools import partial

import pytest
import torch
from scipy import stats

from tests.helpers import FALSE_ALARM, Counting, chi_square, frequencies, generator, oracle, same_law
from tests.small_models import TOKENIZERS, network
from unmask import EnumeratedOracle, Model, apply, plan, sample, stream
from unmask.draw import Pick
from unmask.networks.oracles.enumerated import TimeDependent
from unmask.noise import Streams
from unmask.sampler import Task
from unmask.samplers import decoding, remasking
from unmask.samplers.planned import Planned
from unmask.samplers.remasking import by_confidence
from unmask.schedule import Cosine, Linear, LogLinear

PACED = {
    "confidence": decoding.confidence(),
    "low-confidence": decoding.low_confidence(),
    "margin": decoding.margin(),
    "noisy margin": decoding.margin(noise=0.3),
    "entropy": decoding.entropy(),
    "random": decoding.random_order(),
    "left-to-right": Planned(plan.left_to_right),
    "blocks of confidence": decoding.blocks(2, decoding.confidence()),
    "dream": decoding.dream("maskgit_plus", alg_temp=0.2),
}
REMASKING = {
    "cap": remasking.remdm_cap(0.3),
    "rescale": remasking.remdm_rescale(0.5),
    "remdm confidence": remasking.remdm_confidence(),
    "no remasking": remasking.remdm_cap(0.0),
}
BOUNDED = {
    "bounded": decoding.entropy_bounded(0.7),
    "threshold": decoding.threshold(0.6),
    "blocks, threshold": decoding.blocks(2, decoding.threshold(0.6)),
    "blocks, bounded": decoding.blocks(2, decoding.entropy_bounded(0.7)),
}
EVERY = PACED | REMASKING | BOUNDED
M = 3  # the mask of oracle(3, ...)


def steps_for(name, steps):
    return None if name in BOUNDED else steps


def run(how, model, **options):
    return sample(model, sampler=how, **options)


def canvas():
    """Ragged: empty, with visible tokens, with one masked position, with none."""
    return torch.tensor([[M, M, M, M, M], [M, 1, M, M, 0], [2, 2, 0, M, 1], [0, 1, 2, 0, 1]])


@pytest.mark.parametrize("steps", [1, 2, 4, 11])
@pytest.mark.parametrize("name", EVERY)
def test_no_mask_is_left_visible_tokens_stay_and_steps_replay(name, steps):
    model, before = Counting(TimeDependent(oracle(3, 5), strength=1.0)), canvas()
    if name.startswith("blocks") and name not in BOUNDED and steps < 3:
        steps = 3  # at least one for each block
    made = run(EVERY[name], model, canvas=before, steps=steps_for(name, steps), seed=4)
    visible = before != M
    assert torch.equal(made.tokens[visible], before[visible])
    assert bool((made.tokens != M).all())
    tokens = before.clone()
    for step in made.trace:
        hidden = step.hidden
        if hidden is not None:  # nothing that was visible is ever hidden
            row, column = (hidden >= 0).nonzero(as_tuple=True)
            assert not bool(visible[step.sequences[row], hidden[row, column]].any())
        apply(step, tokens, M)
    assert torch.equal(tokens, made.tokens)
    assert made.calls == len(made.trace) == len(model.calls) == int(made.nfe.max())
    assert [step.calls for step in made.trace] == list(range(1, made.calls + 1))
    assert all(made.calls <= step.planned for step in made.trace)
    assert made.nfe[3] == made.ncs[3] == 0
    if name in PACED:
        assert made.trace[0].planned == made.calls <= min(steps, 5)


@pytest.mark.parametrize("name", EVERY)
def test_a_sequence_depends_on_its_seed_and_number_alone(name):
    model, how = TimeDependent(oracle(3, 5), strength=1.0), EVERY[name]
    before = torch.cat([canvas(), canvas()[:2]])
    options = {"steps": steps_for(name, 4), "schedule": Cosine()}
    whole = run(how, model, canvas=before, seed=9, **options).tokens
    assert torch.equal(run(how, model, canvas=before, seed=9, batch=1, **options).tokens, whole)
    assert torch.equal(run(how, model, canvas=before, seed=9, batch=4, **options).tokens, whole)
    assert torch.equal(run(how, model, canvas=before[:2], seed=9, **options).tokens, whole[:2])
    alone = [run(how, model, canvas=row.unsqueeze(0), seed=7, **options).tokens for row in before[:2]]
    assert torch.equal(run(how, model, canvas=before[:2], seed=[7, 7], **options).tokens, torch.cat(alone))
    streamed = before.clone()
    for step in stream(model, before, sampler=how, seed=9, **options):
        apply(step, streamed, M)
    assert torch.equal(streamed, whole)


@pytest.mark.parametrize("name", EVERY)
def test_nothing_to_do(name):
    options = {"steps": steps_for(name, 3)}
    assert run(EVERY[name], network(TOKENIZERS["bytes"]), num=2, length=0, **options).tokens.shape == (2, 0)
    assert run(EVERY[name], oracle(3, 4), num=0, length=4, **options).calls == 0


@pytest.mark.parametrize("name", ["low-confidence", "bounded", "rescale"])
def test_a_self_conditioned_network_remembers_the_right_rows(name):
    model = network(TOKENIZERS["characters"], length=8, self_conditioning=True)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
        model.self_condition.weight.normal_(std=0.5)
    # On an empty canvas all positions are alike, and rounding would rank them.
    canvas = torch.full((3, 8), model.mask_id)
    canvas[:, [1, 4]] = torch.tensor([[3, 5], [7, 2], [4, 9]])
    options = {"seed": 5, "steps": steps_for(name, 5)}
    together = run(EVERY[name], model, canvas=canvas, **options).tokens
    assert torch.equal(run(EVERY[name], model, canvas=canvas, batch=1, **options).tokens, together)


class TestLaws:
    rows = 4000

    def test_random_remasking_unmasks_any_two_of_four(self):
        """LLaDA's remasking="random" in two steps: all 6 pairs are as likely, and the distribution is parallel's."""
        model = oracle(3, 4, seed=2)
        made = run(decoding.random_order(), model, num=self.rows, steps=2, seed=3)
        pairs = made.trace[0].positions @ torch.tensor([4, 1])
        assert chi_square(torch.bincount(pairs)[[1, 2, 3, 6, 7, 11]], torch.full((6,), 1 / 6)) > FALSE_ALARM
        parallel = sample(model, num=self.rows, steps=2, seed=4)
        assert same_law(made.tokens, parallel.tokens, 3) > FALSE_ALARM

    def test_dreams_origin_unmasks_each_by_chance(self):
        """From t to s with probability 1 - s/t, the last step all: with eps = 0.4 and two steps a position is in the
        first with 0.3 and in the second with 0.7, whatever the others do."""
        made = sample(oracle(3, 4), num=self.rows, plan=partial(plan.ancestral, eps=0.4), steps=2, seed=3)
        first = torch.zeros(self.rows, 4, dtype=torch.int64)
        for step in made.trace:
            assert step.positions.shape[1]
        times = torch.stack([torch.zeros(self.rows)] * 4, 1)
        for step in made.trace:
            real = step.positions >= 0
            row, column = real.nonzero(as_tuple=True)
            times[step.sequences[row], step.positions[row, column]] = step.tau[row, column].float()
        first = (times > 0.7).long()
        pattern = torch.bincount(first @ torch.tensor([8, 4, 2, 1]), minlength=16)
        law = torch.stack([torch.tensor(0.3**n * 0.7 ** (4 - n)) for n in (bin(i).count("1") for i in range(16))])
        assert chi_square(pattern, law) > FALSE_ALARM
        calls = torch.bincount(made.nfe, minlength=3)[1:]
        assert chi_square(calls, torch.tensor([0.3**4 + 0.7**4, 1 - 0.3**4 - 0.7**4])) > FALSE_ALARM

    @pytest.mark.parametrize(
        "how",
        [
            Planned(plan.left_to_right),
            decoding.blocks(2, decoding.margin(noise=0.5)),
            decoding.margin(noise=0.5),
            decoding.entropy(),
            decoding.entropy_bounded(0.0),
        ],
        ids=["left to right", "blocks", "margin", "entropy", "bounded"],
    )
    def test_one_token_per_call_at_a_place_chosen_before_the_draw_is_exact(self, how):
        """The chain rule in an order that the visible tokens decide: 4,000 samples over the joint's 81 outcomes."""
        model = oracle(3, 4, seed=2)
        made = run(how, model, num=self.rows, seed=3)
        assert chi_square(frequencies(made.tokens, 3), model.joint) > FALSE_ALARM
        assert bool((made.nfe == 4).all() and (made.ncs == 4).all())

    def test_choosing_by_the_token_drawn_is_not(self):
        """Confidence prefers likely tokens with one token per call too; the same test finds it."""
        model = oracle(3, 4, seed=2)
        made = run(decoding.low_confidence(), model, num=self.rows, seed=3)
        assert chi_square(frequencies(made.tokens, 3), model.joint) < FALSE_ALARM
        assert float(model.log_likelihood(made.tokens).mean()) > -model.entropy() + 0.1

    def test_left_to_right_in_two_steps_draws_pairs_as_if_independent(self):
        """The distribution is p(x1) p(x2) p(x3 | x1 x2) p(x4 | x1 x2), which is not the joint."""
        p = oracle(3, 4, seed=2).joint
        made = run(Planned(plan.left_to_right), oracle(3, 4, seed=2), num=self.rows, steps=2, seed=3)
        first = p.sum((1, 2, 3))[:, None] * p.sum((0, 2, 3))
        given = p / p.sum((2, 3), keepdim=True)
        law = first[:, :, None, None] * given.sum(3, keepdim=True) * given.sum(2, keepdim=True)
        assert chi_square(frequencies(made.tokens, 3), law) > FALSE_ALARM
        assert chi_square(frequencies(made.tokens, 3), p) < FALSE_ALARM

    @pytest.mark.parametrize("eta_zero", [remasking.remdm_cap, remasking.remdm_rescale, remasking.remdm_confidence])
    def test_without_remasking_it_is_ancestral_sampling(self, eta_zero):
        """Homogeneity of two samples of 4,000 over 27 outcomes, for a network that reads the time."""
        model = TimeDependent(oracle(3, 3, seed=4), strength=1.5)
        options = {"num": self.rows, "length": 3, "steps": 3, "schedule": Cosine()}
        ours = run(eta_zero(0.0), model, seed=7, **options)
        plain = sample(model, plan=plan.ancestral, seed=8, **options)
        assert same_law(ours.tokens, plain.tokens, 3) > FALSE_ALARM
        calls = torch.stack([torch.bincount(made.nfe, minlength=4)[1:] for made in (ours, plain)])
        assert stats.chi2_contingency(calls.numpy()).pvalue > FALSE_ALARM
        assert all(step.hidden is None for step in ours.trace)

    def test_without_remasking_an_infill_is_ancestral_too(self):
        """As above, with one visible token and a schedule that leaves some masked at time 0."""
        model, before = oracle(3, 3, seed=4), torch.tensor([[M, 1, M]]).expand(self.rows, -1)
        options = {"canvas": before, "steps": 2, "schedule": LogLinear(0.2)}
        ours = run(remasking.remdm_cap(0.0), model, seed=7, **options)
        plain = sample(model, plan=plan.ancestral, **options)
        assert same_law(ours.tokens[:, [0, 2]], plain.tokens[:, [0, 2]], 3) > FALSE_ALARM

    @pytest.mark.parametrize("how", [remasking.remdm_cap(0.2), remasking.remdm_rescale(0.6)], ids=["cap", "rescale"])
    def test_remasking_hides_as_often_as_it_should(self, how):
        """One position: expected fills are sum_k a_s - (1 - sigma) a_t, to 5 standard errors; tokens follow mu."""
        model, steps = EnumeratedOracle(torch.tensor([0.2, 0.3, 0.5])), 6
        made = run(how, model, num=self.rows, length=1, steps=steps, seed=2)
        expected = 0.0
        for k in range(steps, 0, -1):
            a_t, a_s = 1 - k / steps, 1 - (k - 1) / steps
            largest = min(1.0, (1 - a_s) / a_t) if a_t else 1.0
            sigma = min(0.2, largest) if how == remasking.remdm_cap(0.2) else 0.6 * largest
            expected += a_s - (1 - sigma) * a_t
        fills = made.ncs.double()
        assert abs(float(fills.mean()) - expected) < 5 * float(fills.std()) / math.sqrt(self.rows)
        assert chi_square(frequencies(made.tokens, 3), model.joint) > FALSE_ALARM
        assert any(step.hidden is not None for step in made.trace)

    def test_remasking_by_confidence_hides_the_unlikely_first(self):
        """Position 0 has tokens of probability 1/4, position 1 one of 1; a binomial test against equal odds."""
        psi = torch.tensor([[0.25, 1.0, math.inf]], dtype=torch.float64)
        sigma = by_confidence(0.5, torch.tensor([[0.8]], dtype=torch.float64), psi)
        total = math.exp(-0.25) + math.exp(-1)
        assert sigma.tolist()[0] == pytest.approx([0.4 * math.exp(-0.25) / total, 0.4 * math.exp(-1) / total, 0.0])
        model = EnumeratedOracle(torch.tensor([[1.0, 0, 0, 0]] * 4) / 4)
        hidden, shown = torch.zeros(2, dtype=torch.int64), torch.full((self.rows, 2), 4)
        for step in stream(model, shown.clone(), sampler=remasking.remdm_confidence(), steps=6, seed=2):
            if step.hidden is not None:  # only where both were filled, and one of them is hidden
                row, column = (step.hidden >= 0).nonzero(as_tuple=True)
                alone = (shown[step.sequences[row]] != 4).all(1) & ((step.hidden >= 0).sum(1)[row] == 1)
                hidden += torch.bincount(step.hidden[row, column][alone], minlength=2)
            apply(step, shown, 4)
        assert stats.binomtest(int(hidden[0]), int(hidden.sum()), alternative="greater").pvalue < FALSE_ALARM

    def test_noise_draws_the_position_by_softmax(self):
        """Dream's alg_temp: the first of three positions is drawn by softmax(score / T); 4,000 draws."""
        p = [torch.tensor([0.9, 0.1]), torch.tensor([0.6, 0.4]), torch.tensor([0.7, 0.3])]
        model = EnumeratedOracle(torch.einsum("i,j,k->ijk", *p))
        made = run(decoding.dream("topk_margin", alg_temp=0.5), model, num=self.rows, steps=3, temperature=0.0, seed=6)
        assert [step.positions.shape[1] for step in made.trace] == [1, 2]  # Dream's first step unmasks none
        law = torch.softmax(torch.tensor([0.8, 0.2, 0.4], dtype=torch.float64) / 0.5, 0)
        assert chi_square(torch.bincount(made.trace[0].positions[:, 0], minlength=3), law) > FALSE_ALARM

    def test_maskgits_noise_falls_to_none(self):
        """Gumbels at noise (1 - k/N): the first of three positions is drawn by softmax(log mu / (noise 2/3))."""
        p = [torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])]
        model = EnumeratedOracle(torch.einsum("i,j,k->ijk", *p))
        made = run(decoding.confidence(noise=1.5, pace=decoding.even), model, num=self.rows, steps=3, seed=6)
        law = torch.softmax(torch.tensor([0.0, 0.0, math.log(0.5)], dtype=torch.float64) / (1.5 * 2 / 3), 0)
        assert chi_square(torch.bincount(made.trace[0].positions[:, 0], minlength=3), law) > FALSE_ALARM


SCORES = {
    "low-confidence": lambda mu: mu.max(1).values,
    "margin": lambda mu: mu.topk(2).values @ torch.tensor([1.0, -1.0], dtype=torch.float64),
    "entropy": lambda mu: (mu * mu.log()).sum(1),
    "left-to-right": lambda mu: -torch.arange(len(mu), dtype=torch.float64),
}


class TestChoices:
    """What is unmasked, against the definitions written out for one sequence."""

    @pytest.mark.parametrize("steps", [None, 1, 2, 3, 7])
    @pytest.mark.parametrize("name", SCORES)
    def test_the_best_are_unmasked_first(self, name, steps):
        model, x = oracle(3, 5, seed=1), torch.tensor([[M, 0, M, M, M]])
        made = run(EVERY[name], model, canvas=x, steps=steps, temperature=0.0)
        for step, size in zip(
            made.trace, {None: [1] * 4, 1: [4], 2: [2, 2], 3: [2, 1, 1], 7: [1] * 4}[steps], strict=True
        ):
            holes = (x[0] == M).nonzero().squeeze(1)
            mu = model(x)[0, holes].exp()
            best = holes[SCORES[name](mu).topk(size).indices].sort().values
            assert torch.equal(step.positions, best.unsqueeze(0))
            x[0, best] = model(x)[0, best].argmax(1)
        assert torch.equal(made.tokens, x)

    def test_entropy_bounded_takes_as_many_as_the_bound_allows(self):
        model, x = oracle(3, 5, seed=1), torch.full((1, 5), M)
        gamma = 1.2
        for step in stream(model, x.clone(), sampler=decoding.entropy_bounded(gamma), seed=3):
            holes = (x[0] == M).nonzero().squeeze(1)
            mu = model(x)[0, holes].exp()
            entropy, at = (-(mu * mu.log()).sum(1)).sort()
            size = step.positions.shape[1]
            assert entropy[:size].sum() - entropy[:size].max() <= gamma
            assert size == len(holes) or entropy[: size + 1].sum() - entropy[: size + 1].max() > gamma
            assert set(step.positions[0].tolist()) == set(holes[at[:size]].tolist())
            apply(step, x, M)
        assert bool((run(decoding.entropy_bounded(0.0), model, num=2).nfe == 5).all())
        assert run(decoding.entropy_bounded(100.0), model, num=2).calls == 1

    def test_a_threshold_keeps_what_is_likelier_and_one_at_least(self):
        model, x, sizes = oracle(3, 5, seed=1), torch.full((1, 5), M), []
        for step in stream(model, x.clone(), sampler=decoding.threshold(0.4), temperature=0.0, seed=3):
            holes = (x[0] == M).nonzero().squeeze(1)
            best, ids = model(x)[0, holes].exp().max(1)
            kept = (best >= 0.4) | (best == best.max())
            assert step.positions[0].tolist() == holes[kept].tolist()
            assert step.tokens[0].tolist() == ids[kept].tolist()
            sizes.append(int(kept.sum()))
            apply(step, x, M)
        assert max(sizes) > 1 and len(sizes) > 1
        assert bool((run(decoding.threshold(1.0), model, num=2).nfe == 5).all())
        assert run(decoding.threshold(0.0), model, num=2).calls == 1

    def test_blocks_are_of_masked_positions_and_from_left_to_right(self):
        model = oracle(3, 7, seed=1)
        x = torch.tensor([[M, 0, M, M, M, 1, M]])
        made = run(decoding.blocks(2, decoding.entropy()), model, canvas=x, steps=5)
        groups = [sorted(step.positions[0].tolist()) for step in made.trace]
        assert groups[0] + groups[1] in ([0, 2], [2, 0]) and groups[2] + groups[3] in ([3, 4], [4, 3])
        assert groups[4:] == [[6]]
        with pytest.raises(ValueError, match="steps=2: 3 blocks take at least one each, so give 3 or more"):
            run(decoding.blocks(2, decoding.entropy()), model, canvas=x, steps=2)

    def test_a_block_requests_only_its_rows(self):
        model = Counting(oracle(3, 6))
        run(decoding.blocks(2, decoding.margin()), model, num=3, length=6)
        assert [rows.shape[1] for _, _, rows in model.calls] == [2, 1, 2, 1, 2, 1]
        run(Planned(plan.left_to_right), model, num=3, length=6)
        assert [rows.shape[1] for _, _, rows in model.calls[6:]] == [1] * 6

    def test_the_network_gets_the_time_of_the_canvas(self):
        model = Counting(oracle(3, 4))
        run(decoding.margin(), model, num=1, length=4, schedule=Cosine())
        for tokens, time, _ in model.calls:
            assert float(Cosine().alpha(time)) == pytest.approx(1 - float((tokens == M).double().mean()))

    def test_rows_drawn_are_counted(self):
        model = oracle(3, 4)
        assert run(decoding.low_confidence(), model, num=1).ncs.tolist() == [10]
        assert run(decoding.entropy(), model, num=1).ncs.tolist() == [4]


class TestPaces:
    def test_even_gives_the_remainder_to_the_first(self):
        assert decoding.even(10, 4) == [3, 3, 2, 2]
        assert decoding.even(2, 4) == [1, 1, 0, 0]

    @pytest.mark.parametrize("pace", [decoding.even, decoding.cosine, decoding.falling(1e-3)])
    def test_they_sum_to_the_number_of_masked_positions(self, pace):
        for n in range(1, 20):
            for steps in range(1, 25):
                counts = pace(n, steps)
                assert sum(counts) == n and min(counts) >= 0 and len(counts) == steps

    def test_cosine_is_maskgits(self):
        """Masked after each of eight steps of 256: 251, 236, 212, 181, 142, 97, 49, 0."""
        left = 256 - torch.tensor(decoding.cosine(256, 8)).cumsum(0)
        assert left.tolist() == [251, 236, 212, 181, 142, 97, 49, 0]

    def test_falling_lags_behind_even(self):
        """With eps = 1e-3 the first of 8 steps over 8 masked positions unmasks floor(8 * 0.124875) = 0."""
        assert decoding.falling(1e-3)(8, 8) == [0, 1, 1, 1, 1, 1, 1, 2]


def test_temperature_and_truncation_reach_the_draw():
    model = oracle(3, 4, seed=1)
    # With one token left all of Dream's entropies are 0, and random ties would give each sequence another order.
    for how in (decoding.margin(), decoding.low_confidence(), decoding.leftmost(decoding.dream("entropy"))):
        greedy = run(how, model, num=2, steps=4, temperature=0.0)
        assert torch.equal(greedy.tokens[0], greedy.tokens[1])
        assert torch.equal(run(how, model, num=2, steps=4, top_k=1, seed=5).tokens, greedy.tokens)
        assert all(bool((step.probabilities[step.positions >= 0] == 1).all()) for step in greedy.trace)


def test_a_text_model_takes_an_order_as_its_sampler():
    model = Model(network(TOKENIZERS["characters"], length=12), TOKENIZERS["characters"])
    calls = []
    made = model.sample(2, sampler=decoding.margin(), steps=3, seed=1, callback=calls.append)
    assert made.calls == len(calls) == 3
    filled = model.infill("the ____ and", sampler=decoding.blocks(2, decoding.confidence()), steps=2)
    assert filled.text[0].startswith("the ") and filled.text[0].endswith(" and") and filled.calls == 2


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: decoding.confidence(noise=-1.0), "noise must be a finite number of at least 0, got -1"),
        (lambda: decoding.entropy_bounded(math.nan), "gamma must be"),
        (lambda: decoding.blocks(0, decoding.margin()), "length, the holes of a block, must be"),
        (lambda: decoding.blocks(2, remasking.remdm_cap()), "inner must be an order that ranks positions"),
        (lambda: decoding.dream("origin"), "alg must be one of 'entropy', 'maskgit_plus', 'topk_margin', got 'origin'"),
        (lambda: decoding.dream(eps=0.0), "eps, the last time, must be in"),
        (lambda: remasking.remdm_cap(1.5), r"eta must be in \[0, 1\], got 1.5"),
        (lambda: remasking.remdm_rescale(math.inf), "eta must be in"),
        (lambda: run(remasking.remdm_cap(), oracle(), num=1), "remasking needs steps"),
        (lambda: run(decoding.entropy_bounded(), oracle(), steps=3), "steps=3: this order takes none"),
        (lambda: run(decoding.margin(), oracle(), steps=0), "steps must be a whole number of at least 1, got 0"),
        (lambda: run(decoding.margin(), oracle(), batch=0), "batch must be a whole number of at least 1"),
        (lambda: run(decoding.margin(), oracle(), temperature=-1.0), "temperature must be"),
        (lambda: run(decoding.margin(), oracle(), seed=-1), "seed must be"),
    ],
)
def test_what_is_wrong_is_named(make, what):
    with pytest.raises(ValueError, match=what):
        make()


def test_the_linear_schedule_is_the_default():
    options = {"num": 20, "steps": 3, "seed": 1, "sampler": remasking.remdm_cap(0.1)}
    made = [sample(oracle(), schedule=schedule, **options).tokens for schedule in (None, Linear())]
    assert torch.equal(*made)


@pytest.mark.parametrize(
    ("make", "share"),
    [
        (lambda: remasking.remdm_cap(0.3), 0.5),
        (lambda: remasking.remdm_rescale(0.3), 0.5),
        (lambda: remasking.remdm_confidence(1.0), 0.183),
    ],
    ids=["cap", "rescale", "confidence"],
)
def test_the_share_of_filled_positions_half_way(make, share):
    """At a = 0.5 of 64 steps on 64 positions: a itself where all positions have one sigma, less by confidence.

    4,000 sequences with the sampler's own probabilities, to within 5 errors of their mean; by confidence to 0.01.
    """
    made, steps, length = make(), 64, 64
    task = Task(3, Streams.of(0, 4_000), Pick(), Linear(), steps)
    state, every = made.begin(torch.full((4_000, length), 3), task), torch.arange(4_000)
    random = generator(1)
    for _ in range(steps // 2):
        leave, sigma = made._probabilities(state, every)
        u, psi = torch.rand(2, 4_000, length, dtype=torch.float64, generator=random)
        filled = state.psi.isfinite()
        state.psi = torch.where(filled & (u < sigma), torch.inf, torch.where(~filled & (u < leave), psi, state.psi))
        state.k -= 1
    filled = state.psi.isfinite().double().mean(1)
    assert abs(float(filled.mean()) - share) < max(5 * float(filled.std()) / 4_000**0.5, 0.01 if share < 0.5 else 0.0)
