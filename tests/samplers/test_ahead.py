"""Looking ahead gives the very tokens of one call per token, in fewer calls, whatever the window."""

import itertools

import pytest
import torch

from tests.helpers import FALSE_ALARM, chi_square, frequencies, generator, oracle
from unmask import OptionError, draw, plan, predict, sample
from unmask.networks.ngram import NgramDenoiser, kneser_ney
from unmask.networks.oracles.enumerated import EnumeratedOracle, HiddenMarkovOracle, MarkovOracle, TimeDependent
from unmask.protocol import LooksAhead
from unmask.samplers import decoding, remasking
from unmask.samplers.ahead import Ahead
from unmask.sampling import apply, stream

WINDOWS = [1, 2, 5, 64, "auto"]


def table(*shape, seed=0, sharpness=4):
    weights = torch.rand(shape, generator=generator(seed), dtype=torch.float64) ** sharpness
    return weights / weights.sum(-1, keepdim=True)


ORACLES = {
    "enumerated": (oracle(3, 5), 5),
    "markov": (MarkovOracle(table(12), table(12, 12, seed=1)), 24),
    "hidden markov": (HiddenMarkovOracle(table(4), table(4, 4, seed=2), table(4, 11, seed=3)), 24),
    "reads the time": (TimeDependent(HiddenMarkovOracle(table(4), table(4, 4, seed=2), table(4, 11, seed=3))), 16),
}


class Canvases:
    """A denoiser without a cache that counts its calls, and the canvases it is shown."""

    def __init__(self, model):
        self.model, self.vocab_size, self.mask_id = model, model.vocab_size, model.mask_id
        self.calls = self.shown = 0

    def __call__(self, tokens, time=None, rows=None):
        self.calls += 1
        self.shown += len(tokens)
        return self.model(tokens, time, rows)


class OrderCausal(Canvases):
    """The same oracle as a network that answers a whole chain in one pass; it checks what it is shown."""

    def __init__(self, model):
        super().__init__(model)
        self.seats, self.rows, self.bytes = 0, 0, 0

    def add(self, count, length):
        self.seats += count

    def leave(self, seat):
        assert 0 <= seat < self.seats
        self.seats -= 1

    def ahead(self, tokens, order, known, *, seats=None):
        assert len(tokens) == self.seats
        self.calls += 1
        canvases, rows, where = [], [], []
        for b, chain in enumerate(order.tolist()):
            real = [position for position in chain if position >= 0]
            is_guess = [bool(tokens[b, position] != self.mask_id) for position in real]
            assert is_guess == [k < int(known[b]) for k in range(len(real))]
            assert int(known[b]) < len(real) or not real, "the last guess has nobody behind it"
            self.rows += len(real) + int(known[b])
            for k, position in enumerate(real):
                canvas = tokens[b].clone()
                canvas[real[k:]] = self.mask_id
                canvases, rows, where = [*canvases, canvas], [*rows, [position]], [*where, (b, k)]
        logits = torch.full((*order.shape, self.vocab_size), torch.nan, dtype=torch.float64)
        b, k = torch.tensor(where).T
        logits[b, k] = self.model(torch.stack(canvases), rows=torch.tensor(rows))[:, 0]
        return logits


INTERFACES = {"canvases": Canvases, "order-causal": OrderCausal}


@pytest.fixture(params=INTERFACES.values(), ids=INTERFACES)
def interface(request):
    return request.param


def ragged(model, length, num=7, seed=3):
    """From one masked position to all, at random places."""
    x = sample(model, num=num, length=length, seed=seed).tokens
    holes = torch.linspace(1, length, num).long()
    ranks = torch.rand(num, length, generator=generator(seed)).argsort(1)
    return torch.where(ranks < holes.unsqueeze(1), model.mask_id, x)


# A network with a cache does not read the time.
PAIRS = [(n, made) for n in ORACLES for made in INTERFACES.values() if (n, made) != ("reads the time", OrderCausal)]


class TestTheSameTokens:
    @pytest.mark.parametrize("window", WINDOWS)
    @pytest.mark.parametrize(("name", "interface"), PAIRS)
    def test_as_one_call_per_token(self, name, window, interface):
        model, length = ORACLES[name]
        for seed in range(12):
            expected = sample(model, num=3, length=length, seed=seed)
            found = sample(interface(model), num=3, length=length, seed=seed, ahead=window)
            assert torch.equal(found.tokens, expected.tokens)
            assert bool((found.nfe <= length).all()) and found.calls <= length

    @pytest.mark.parametrize("window", WINDOWS)
    def test_with_prompts_and_different_numbers_of_masked_positions(self, window, interface):
        model, length = ORACLES["markov"]
        canvas = ragged(model, length)
        expected = sample(model, canvas=canvas, seed=8)
        for batch in (None, 1, 3):
            found = sample(interface(model), canvas=canvas, seed=8, ahead=window, batch=batch)
            assert torch.equal(found.tokens, expected.tokens)
            assert bool((found.nfe <= (canvas == model.mask_id).sum(1)).all())

    @pytest.mark.parametrize("window", WINDOWS)
    @pytest.mark.parametrize(
        "options",
        [
            {"temperature": 0.7},
            {"temperature": 0.0},
            {"top_k": 3},
            {"top_p": 0.8},
            {"draw": draw.inverse_cdf},
            {"draw": draw.gumbel(torch.float64)},
            {"draw": draw.gumbel(torch.float32)},
        ],
        ids=["temperature", "likeliest", "top_k", "top_p", "inverse_cdf", "gumbel 64", "gumbel 32"],
    )
    def test_with_other_ways_to_draw(self, options, window, interface):
        model, length = ORACLES["hidden markov"]
        expected = sample(model, num=5, length=length, seed=2, **options)
        found = sample(interface(model), num=5, length=length, seed=2, ahead=window, **options)
        assert torch.equal(found.tokens, expected.tokens)

    @pytest.mark.parametrize("window", WINDOWS)
    @pytest.mark.parametrize("stop", [2, [0, 2]], ids=["one id", "two ids"])
    def test_with_texts_that_end(self, stop, window, interface):
        """What follows an end is not drawn, so it must not be a condition either: for guesses beyond it, too."""
        p = torch.rand([3] * 6, dtype=torch.float64, generator=generator(0))
        model = EnumeratedOracle(p / p.sum())
        runs = torch.full((40, 6), 3)
        runs[1::2, 2] = 1  # two runs of masked positions, each with an end of its own
        for seed, plan_ in itertools.product(range(3), (plan.first_hitting, plan.left_to_right, plan.Blocks(3))):
            how = {"canvas": runs, "seed": seed, "stop": stop, "plan": plan_}
            expected, found = sample(model, **how), sample(interface(model), **how, ahead=window)
            assert torch.equal(found.tokens, expected.tokens)
            assert bool((found.nfe <= expected.nfe).all())

    @pytest.mark.parametrize("window", WINDOWS)
    def test_with_every_plan_of_one_token_per_step(self, window, interface):
        model, length = ORACLES["markov"]
        for how, steps in ((plan.left_to_right, None), (plan.parallel, length), (plan.parallel, 10_000)):
            expected = sample(model, num=3, length=length, plan=how, steps=steps)
            found = sample(interface(model), num=3, length=length, plan=how, steps=steps, ahead=window)
            assert torch.equal(found.tokens, expected.tokens)

    @pytest.mark.parametrize("window", WINDOWS)
    def test_with_an_ancestral_grid_that_is_fine_enough(self, window):
        """Its network is called at the grid's times, not at the hitting times."""
        length, oracle_ = 16, ORACLES["markov"][0]

        class Sensitive(Canvases):
            def __call__(self, tokens, time=None, rows=None):
                ids = torch.arange(self.vocab_size)
                return self.model(tokens, rows=rows) + 3 * torch.sin(1e5 * time[:, None, None] * (ids + 1))

        model = Sensitive(oracle_)
        options = {"num": 4, "length": length, "plan": plan.ancestral, "steps": 500, "seed": 3}
        expected = sample(model, **options)
        assert expected.calls == length, "no two tokens of this seed share a step"
        assert torch.equal(sample(model, ahead=window, **options).tokens, expected.tokens)

    def test_with_ids_that_are_not_allowed(self, interface):
        model, length = ORACLES["markov"]
        only = torch.zeros(model.vocab_size, dtype=torch.bool)
        only[:2] = True
        allowed = {0: only, 7: only, length - 1: only}
        expected = sample(model, num=5, length=length, allowed=allowed)
        found = sample(interface(model), num=5, length=length, allowed=allowed, ahead=8)
        assert torch.equal(found.tokens, expected.tokens)
        assert int(found.tokens[:, [0, 7, length - 1]].max()) < 2

    def test_one_seed_per_sequence_alone_and_together(self, interface):
        model, length = ORACLES["markov"]
        canvas, seeds = ragged(model, length), [5, 1, 7, 1, 0, 2, 9]
        together = sample(interface(model), canvas=canvas, seed=seeds, ahead=6).tokens
        for i, seed in enumerate(seeds):
            alone = sample(interface(model), canvas=canvas[i : i + 1], seed=[seed], ahead="auto").tokens
            assert torch.equal(alone[0], together[i])

    def test_nothing_to_fill(self, interface):
        model, _ = ORACLES["markov"]
        for canvas in (torch.zeros(2, 5, dtype=torch.int64), torch.zeros(0, 5, dtype=torch.int64)):
            made = sample(interface(model), canvas=canvas, ahead=4)
            assert torch.equal(made.tokens, canvas) and made.calls == 0


class TestADraft:
    """Any model may guess: the tokens are those of one call per token, and a good draft saves calls."""

    LENGTH = 24

    @pytest.fixture(scope="class")
    def model(self):
        return MarkovOracle(table(12), table(12, 12, seed=1))

    @pytest.fixture(scope="class")
    def drafts(self, model):
        text = sample(model, num=400, length=self.LENGTH, seed=99).tokens.numpy()
        counts = NgramDenoiser(kneser_ney(text, 2, model.vocab_size), model.mask_id)
        return {
            "itself": model,
            "counts": counts,
            "another law": MarkovOracle(table(12, seed=5), table(12, 12, seed=6)),
        }

    @pytest.mark.parametrize("how", [plan.first_hitting, plan.left_to_right, plan.Blocks(6)])
    @pytest.mark.parametrize("window", [1, 4, 64, "auto"])
    def test_changes_no_token(self, model, drafts, how, window, interface):
        for canvas in (torch.full((3, self.LENGTH), model.mask_id), ragged(model, self.LENGTH)):
            expected = sample(model, canvas=canvas, plan=how, seed=2, temperature=0.8)
            for draft in drafts.values():
                made = sample(
                    interface(model), canvas=canvas, plan=how, seed=2, temperature=0.8, ahead=window, draft=draft
                )
                assert torch.equal(made.tokens, expected.tokens)

    def test_that_is_the_model_is_always_right(self, model, interface):
        for how in (plan.first_hitting, plan.left_to_right):
            made = sample(interface(model), num=2, length=self.LENGTH, plan=how, ahead=6, draft=model)
            assert made.calls == self.LENGTH // 6

    def test_from_left_to_right_needs_fewer_calls_than_the_models_own_guesses(self, model, drafts):
        how = {"num": 8, "length": self.LENGTH, "plan": plan.left_to_right, "ahead": 4, "seed": 1}
        own, counted = (sample(OrderCausal(model), **how, **more) for more in ({}, {"draft": drafts["counts"]}))
        assert torch.equal(own.tokens, counted.tokens)
        assert int(counted.nfe.sum()) < 0.8 * int(own.nfe.sum())

    def test_with_texts_that_end(self, model, drafts, interface):
        expected = sample(model, num=20, length=self.LENGTH, stop=3)
        made = sample(interface(model), num=20, length=self.LENGTH, stop=3, ahead=5, draft=drafts["counts"])
        assert torch.equal(made.tokens, expected.tokens)

    def test_of_other_ids_is_refused(self, model):
        with pytest.raises(OptionError, match="the draft must have the model's ids, 12 of them and the mask 12"):
            sample(model, length=4, ahead=2, draft=ORACLES["enumerated"][0])
        with pytest.raises(OptionError, match="draft: model must be callable"):
            sample(model, length=4, ahead=2, draft="kjv")
        with pytest.raises(OptionError, match="give ahead too"):
            sample(model, length=4, draft=model)


@pytest.mark.parametrize("window", [2, 5, "auto"])
def test_the_joint_is_the_models(window, interface):
    model, num = oracle(3, 4, seed=1), 4_000 if interface is OrderCausal else 40_000
    tokens = sample(interface(model), num=num, seed=1, length=4, ahead=window).tokens
    assert chi_square(frequencies(tokens, 3), model.joint) > FALSE_ALARM


class TestWhatACallDoes:
    def trace(self, interface, window, num=4):
        model, length = ORACLES["markov"]
        network = interface(model)
        made = sample(network, num=num, length=length, seed=4, ahead=window)
        return model, network, made

    @pytest.mark.parametrize("window", WINDOWS)
    def test_the_calls_reported_are_the_calls_made(self, window, interface):
        _, network, made = self.trace(interface, window)
        assert network.calls == made.calls == len(made.trace)
        assert [step.calls for step in made.trace] == list(range(1, made.calls + 1))
        assert all(step.planned >= step.calls for step in made.trace)
        counted = torch.zeros_like(made.nfe)
        for step in made.trace:
            counted[step.sequences] += 1
        assert torch.equal(counted, made.nfe)

    @pytest.mark.parametrize("window", WINDOWS)
    def test_what_is_settled_stays_and_guesses_are_masked(self, window, interface):
        model, _, made = self.trace(interface, window)
        x = torch.full_like(made.tokens, model.mask_id)
        guesses = [{} for _ in x]
        for step in made.trace:
            for b, i in enumerate(step.sequences.tolist()):
                pairs = zip(step.positions[b].tolist(), step.tokens[b].tolist(), strict=True)
                filled = {p: t for p, t in pairs if p >= 0}
                assert filled, "every pass settles a token"
                assert all(int(x[i, p]) == model.mask_id for p in filled)
                new = {p: t for p, t in step.guessed[b].tolist() if p >= 0}
                assert not set(new) & set(filled)
                now = filled | new
                assert int(step.corrected[b]) == sum(now[p] != t for p, t in guesses[i].items() if p in now)
                assert int(step.draws[b]) == len(now)
                # All that settle but the last were guessed right.
                assert all(guesses[i].get(p) == filled[p] for p in list(filled)[:-1])
                guesses[i] = {p: t for p, t in guesses[i].items() if p not in filled} | new
            apply(step, x, model.mask_id)
            assert all(int(x[i, p]) == model.mask_id for i in range(len(x)) for p in guesses[i])
        assert torch.equal(x, made.tokens)

    def test_times_and_probabilities_are_those_of_one_call_per_token(self, interface):
        model, length = ORACLES["markov"]
        told = []
        for options in ({}, {"ahead": 6}):
            made, found = sample(interface(model), num=2, length=length, seed=1, **options), {}
            for step in made.trace:
                row, column = step.drawn.nonzero(as_tuple=True)
                for i, p, tau, chance in zip(
                    step.sequences[row].tolist(),
                    step.positions[row, column].tolist(),
                    step.tau[row, column].tolist(),
                    step.probabilities[row, column].tolist(),
                    strict=True,
                ):
                    found[i, p] = (tau, pytest.approx(chance))
            told.append(found)
        assert told[0] == told[1] and len(told[0]) == 2 * length

    def test_random_orders_need_few_calls_and_left_to_right_many(self, interface):
        model = MarkovOracle(table(64), table(64, 64, seed=1, sharpness=64))
        shallow = sample(interface(model), length=64, ahead=64, num=2)
        deep = sample(interface(model), length=64, ahead=64, num=2, plan=plan.left_to_right)
        assert float(shallow.nfe.double().mean()) < 12 < 32 < float(deep.nfe.double().mean())

    def test_a_network_with_a_cache_computes_no_row_that_is_certain_to_be_wasted(self):
        """A pass feeds the guesses but the last, and asks for W rows, fewer where the sequence ends."""
        model, length = ORACLES["markov"]
        for seed in range(8):
            network = OrderCausal(model)
            made = sample(network, length=length, ahead=5, seed=seed)
            rows, left, guesses = 0, length, 0
            for step in made.trace:
                width = min(5, left)
                rows += width + min(guesses, width - 1) if width > 1 else 0  # a pass of one row is a call as any other
                left -= int((step.positions >= 0).sum())
                guesses = int((step.guessed[0, :, 0] >= 0).sum())
            assert network.rows == rows

    def test_every_canvas_but_one_is_for_a_guess(self):
        model, length = ORACLES["markov"]
        network = Canvases(model)
        made = sample(network, length=length, ahead=5)
        guesses, left, canvases = 0, length, 0
        for step in made.trace:
            canvases += 1 + min(guesses, min(5, left) - 1)
            left -= int((step.positions >= 0).sum())
            guesses = int((step.guessed[0, :, 0] >= 0).sum())
        assert network.shown == canvases

    def test_noise_is_kept_while_it_is_in_the_window_and_no_longer(self):
        model, length = ORACLES["markov"]
        task_of = Ahead(window=6)
        kept = []
        state = None

        class Spied(Ahead):
            def begin(self, canvas, task):
                nonlocal state
                state = super().begin(canvas, task)
                return state

        for _ in stream(model, torch.full((1, length), model.mask_id), sampler=Spied(window=task_of.window)):
            kept.append(len(state.noise.clocks))
        assert max(kept) <= 6 and kept[-1] == 0


class TestRefusals:
    @pytest.mark.parametrize("window", [0, -1, 1.5, "wide"])
    def test_windows_that_are_none(self, window):
        with pytest.raises(ValueError, match="ahead must be a whole number"):
            sample(ORACLES["markov"][0], length=4, ahead=window)

    def test_groups(self):
        with pytest.raises(ValueError, match="one token per step"):
            sample(ORACLES["markov"][0], length=8, steps=4, ahead=4)

    @pytest.mark.parametrize("how", [predict.extrapolate, predict.correct])
    def test_second_order(self, how):
        with pytest.raises(ValueError, match=r"predict\.first_order"):
            sample(ORACLES["markov"][0], length=8, predict=how, ahead=4)

    @pytest.mark.parametrize("made", [decoding.margin(), remasking.remdm_cap()])
    def test_samplers_that_look_at_the_network_or_mask_again(self, made):
        with pytest.raises(ValueError, match="give either sampler, or plan, predict and ahead"):
            sample(ORACLES["markov"][0], length=8, steps=8, sampler=made, ahead=4)

    def test_a_plan_that_chooses_again(self):
        def rechosen(tokens, *, streams, **options):
            return predict.rechoose(plan.parallel(tokens, streams=streams, **options | {"steps": 8}), streams)

        model = ORACLES["markov"][0]
        with pytest.raises(ValueError, match=r"without predict\.correct"):
            sample(model, length=8, plan=rechosen, ahead=4)

    def test_false_and_none_are_off(self):
        model, length = ORACLES["markov"]
        for off in (None, False):
            assert sample(model, length=length, ahead=off).calls == length


def test_the_calls_of_the_automatic_window_follow_from_the_seed():
    model, length = ORACLES["markov"]
    for wrapped in (OrderCausal(model), Canvases(model)):
        runs = [sample(wrapped, num=3, length=length, ahead=True, seed=5) for _ in range(3)]
        assert len({run.calls for run in runs}) == 1 and runs[0].calls < length
        widths = [[step.draws.tolist() for step in run.trace] for run in runs]
        assert widths[0] == widths[1] == widths[2]


def test_the_test_network_is_one_that_looks_ahead():
    assert isinstance(OrderCausal(ORACLES["markov"][0]), LooksAhead)
    assert not isinstance(Canvases(ORACLES["markov"][0]), LooksAhead)
