from dataclasses import dataclass

import pytest
import torch

import unmask
from tests.helpers import Counting, generator, hidden_markov, oracle
from unmask import draw, plan, predict, sample, stream
from unmask.draw import Pick
from unmask.network import answer
from unmask.networks.oracles.enumerated import EnumeratedOracle, HiddenMarkovOracle, TimeDependent
from unmask.noise import Streams
from unmask.protocol import Batched
from unmask.sampler import Task, apply
from unmask.samplers import decoding
from unmask.samplers.planned import Planned, PlanState
from unmask.schedule import Linear

PLANS = {
    "first_hitting": plan.first_hitting,
    "parallel": plan.parallel,
    "ancestral": plan.ancestral,
    "left_to_right": plan.left_to_right,
}
PREDICTORS = {"first_order": predict.first_order, "extrapolate": predict.extrapolate, "correct": predict.correct}


def ragged(model, length=8):
    """From nothing to everything masked."""
    x = model.sample(length + 1, length, generator=generator(1))
    return torch.where(torch.arange(length) < torch.arange(length + 1).unsqueeze(1), model.mask_id, x)


@pytest.mark.parametrize("how", PREDICTORS.values(), ids=PREDICTORS)
@pytest.mark.parametrize("planner", PLANS.values(), ids=PLANS)
class TestEverySampler:
    def run(self, model, planner, how, canvas, **more):
        options = {"canvas": canvas, "steps": 3, "seed": 5} | more
        if planner is plan.first_hitting:
            options["steps"] = None
        return sample(model, plan=planner, predict=how, **options)

    def test_visible_tokens_stay_and_no_mask_is_left(self, planner, how):
        model = hidden_markov()
        canvas = ragged(model)
        given = canvas.clone()
        out = self.run(model, planner, how, canvas).tokens
        assert torch.equal(canvas, given), "the caller's canvas is not written to"
        assert torch.equal(out[canvas != model.mask_id], canvas[canvas != model.mask_id])
        assert not bool((out == model.mask_id).any())

    def test_the_calls_reported_are_the_calls_made(self, planner, how):
        model = Counting(hidden_markov())
        out = self.run(model, planner, how, ragged(model.model))
        assert out.calls == len(model.calls) == len(out.trace)
        assert int(out.nfe.max()) == out.calls
        assert int(out.nfe.sum()) == sum(len(tokens) for tokens, _, _ in model.calls)
        assert [step.calls for step in out.trace] == list(range(1, out.calls + 1))
        assert {step.planned for step in out.trace} == {out.calls}

    def test_rows_are_counted(self, planner, how):
        model = hidden_markov()
        canvas = ragged(model)
        out = self.run(model, planner, how, canvas)
        holes = (canvas == model.mask_id).sum(1)
        if how is predict.correct:
            assert bool((out.ncs >= holes).all())
        else:
            assert torch.equal(out.ncs, holes)

    def test_a_sequence_is_the_same_alone_and_in_any_batch(self, planner, how):
        model = hidden_markov()
        canvas = ragged(model)
        seeds = list(range(40, 40 + len(canvas)))
        together = self.run(model, planner, how, canvas, seed=seeds).tokens
        for batch in (1, 2, 5, 100):
            assert torch.equal(self.run(model, planner, how, canvas, seed=seeds, batch=batch).tokens, together)
        shuffled = torch.randperm(len(canvas), generator=generator(2))
        again = self.run(model, planner, how, canvas[shuffled], seed=[seeds[i] for i in shuffled.tolist()]).tokens
        assert torch.equal(again, together[shuffled])
        for i in range(len(canvas)):
            assert torch.equal(self.run(model, planner, how, canvas[i : i + 1], seed=seeds[i]).tokens[0], together[i])

    def test_sequence_i_of_a_seed_does_not_depend_on_how_many_there_are(self, planner, how):
        model = hidden_markov()
        few, many = (self.run(model, planner, how, torch.full((num, 6), model.mask_id)).tokens for num in (3, 9))
        assert torch.equal(few, many[:3])

    def test_steps_replay_the_run(self, planner, how):
        model = hidden_markov()
        canvas = ragged(model)
        seen = []
        out = self.run(model, planner, how, canvas, callback=seen.append)
        assert tuple(seen) == out.trace
        replay = canvas.clone()
        for step in out.trace:
            real = step.positions >= 0
            assert bool((step.tokens[~real] == -1).all())
            assert bool(((step.probabilities[real] > 0) & (step.probabilities[real] <= 1 + 1e-12)).all())
            apply(step, replay, model.mask_id)
        assert torch.equal(replay, out.tokens)

    @pytest.mark.parametrize("length", [0, 1, 2])
    @pytest.mark.parametrize("steps", [1, 2, 50])
    def test_short_lengths_and_many_steps(self, planner, how, length, steps):
        model = hidden_markov()
        out = self.run(model, planner, how, torch.full((3, length), model.mask_id), steps=steps)
        assert out.tokens.shape == (3, length)
        assert not bool((out.tokens == model.mask_id).any())

    def test_nothing_masked_calls_nothing(self, planner, how):
        model = Counting(hidden_markov())
        canvas = model.model.sample(4, 5, generator=generator(0))
        out = self.run(model, planner, how, canvas)
        assert torch.equal(out.tokens, canvas)
        assert out.calls == len(model.calls) == 0
        assert out.nfe.tolist() == out.ncs.tolist() == [0] * 4

    def test_a_vocabulary_of_one(self, planner, how):
        model = HiddenMarkovOracle(torch.ones(1), torch.ones(1, 1), torch.ones(1, 1))
        assert self.run(model, planner, how, torch.full((2, 4), 1)).tokens.tolist() == [[0] * 4] * 2

    def test_temperature_zero_is_greedy_and_needs_no_luck(self, planner, how):
        model = hidden_markov()
        out = self.run(model, planner, how, torch.full((2, 1), model.mask_id), temperature=0).tokens
        assert out.flatten().tolist() == [int(model(torch.full((1, 1), model.mask_id)).argmax())] * 2


def test_the_network_is_called_at_the_plan_s_times():
    model = Counting(TimeDependent(hidden_markov(), strength=0.5))
    canvas = torch.full((1, 7), model.mask_id)
    sample(model, canvas=canvas, plan=plan.ancestral, steps=20, seed=3)
    the_plan = plan.ancestral(canvas, mask_id=model.mask_id, streams=Streams.of(3, 1), steps=20)
    assert torch.cat([time for _, time, _ in model.calls]).tolist() == the_plan.call_time[0].tolist()


def test_the_network_is_asked_for_the_planned_rows_alone():
    model = Counting(hidden_markov())
    sample(model, num=4, length=9, seed=0)
    assert all(rows.shape == (4, 1) for _, _, rows in model.calls)
    model.calls.clear()
    sample(model, num=4, length=9, plan=plan.parallel, steps=3, predict=predict.extrapolate)
    assert [rows.shape[1] for _, _, rows in model.calls] == [6, 6, 3]


def test_finished_sequences_leave_the_batch():
    model = Counting(hidden_markov())
    sample(model, canvas=ragged(model.model), seed=0)
    assert [len(tokens) for tokens, _, _ in model.calls] == [8, 7, 6, 5, 4, 3, 2, 1]


def test_models_without_rows_or_time_are_gathered_for():
    truth = hidden_markov()

    class Plain:
        vocab_size, mask_id = truth.vocab_size, truth.mask_id

        def __call__(self, tokens):
            return truth(tokens)

    options = {"num": 5, "length": 6, "plan": plan.parallel, "steps": 2, "seed": 9}
    assert torch.equal(sample(Plain(), **options).tokens, sample(truth, **options).tokens)


def test_a_mask_that_the_model_predicts_is_never_drawn():
    class Eager:
        vocab_size, mask_id = 4, 2

        def __call__(self, tokens, time=None, rows=None):
            logits = torch.zeros(*rows.shape, 4)
            logits[..., 2] = 50.0
            return logits

    assert not bool((sample(Eager(), num=50, length=5).tokens == 2).any())


def test_dropout_is_off_while_sampling_and_back_on_after():
    class Noisy(torch.nn.Module):
        vocab_size, mask_id = 3, 3

        def __init__(self):
            super().__init__()
            self.dropout = torch.nn.Dropout(0.5)

        def forward(self, tokens, time=None, rows=None):
            assert not self.training
            return self.dropout(torch.ones(*rows.shape, 3))

    model = Noisy().train()
    sample(model, num=2, length=3)
    assert model.training


def test_seeds():
    model = hidden_markov()
    one, two, again = (sample(model, num=4, length=8, seed=s).tokens for s in (0, 1, 0))
    assert torch.equal(one, again)
    assert not torch.equal(one, two)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    sample(model, num=2, length=4)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"


def test_the_trace_streams_before_the_run_is_over():
    model = Counting(hidden_markov())
    steps = stream(model, torch.full((1, 5), model.mask_id))
    next(steps)
    assert len(model.calls) == 1


def test_steps_alone_are_parallel_decoding():
    model = hidden_markov()
    ours, theirs = (sample(model, num=4, length=9, steps=3, plan=planner, seed=2) for planner in (None, plan.parallel))
    for one, other in zip(ours.trace, theirs.trace, strict=True):
        assert torch.equal(one.positions, other.positions) and torch.equal(one.tokens, other.tokens)
    assert ours.nfe.tolist() == [3] * 4


class TestAllowed:
    """For some positions the only ids that may fill them."""

    def test_nothing_else_is_drawn_there_and_elsewhere_nothing_changes(self):
        model = EnumeratedOracle(torch.full((3, 3, 3, 3), 1 / 81))  # every position by itself
        only = torch.tensor([False, True, True])
        free = sample(model, num=200, length=4, seed=1).tokens
        for how in ({}, {"steps": 2}, {"sampler": decoding.margin()}, {"predict": predict.extrapolate, "steps": 2}):
            tokens = sample(model, num=200, length=4, allowed={1: only}, seed=1, **how).tokens
            assert set(tokens[:, 1].tolist()) == {1, 2}
        tokens = sample(model, num=200, length=4, allowed={1: only}, seed=1).tokens
        assert torch.equal(tokens[:, [0, 2, 3]], free[:, [0, 2, 3]])
        assert torch.equal(tokens[free[:, 1] > 0], free[free[:, 1] > 0]), "what was allowed anyway stays"

    def test_the_distribution_is_the_conditional_one_of_a_single_position(self):
        """p(x | x in A), as reported by the Step."""
        model = EnumeratedOracle(torch.tensor([0.5, 0.2, 0.3]))
        made = sample(model, num=50, length=1, allowed={0: torch.tensor([False, True, True])}, seed=3)
        expected = torch.tensor([0.0, 0.4, 0.6])[made.tokens]
        torch.testing.assert_close(made.trace[0].probabilities, expected.double(), rtol=1e-6, atol=0)

    def test_nothing_allowed_is_refused(self):
        with pytest.raises(ValueError, match="no distribution"):
            sample(oracle(3, 4), allowed={0: torch.zeros(3, dtype=torch.bool)})


def begun(sampler, canvas, seed, steps, mask_id):
    task = Task(mask_id, Streams.of(seed, len(canvas)), Pick(), Linear(), steps)
    return sampler.begin(canvas, task)


def advance(model, sampler, state):
    """One network call of a state, by hand."""
    ask = sampler.ask(state)
    live = (ask.rows >= 0).any(1)
    if not bool(live.any()):
        return False
    step = sampler.fill(state, ask, answer(model, state.x, ask, [None] * len(state.x)))
    apply(step, state.x, model.mask_id)
    return True


@pytest.mark.parametrize("how", PREDICTORS.values(), ids=PREDICTORS)
class TestStates:
    """A state goes on in any company: this is what a server that batches continuously needs."""

    model = TimeDependent(hidden_markov(), strength=1.9)

    def alone(self, canvas, seed, steps, how):
        return sample(self.model, canvas=canvas, seed=seed, plan=plan.parallel, steps=steps, predict=how).tokens

    def test_states_that_join_on_their_way_give_the_tokens_of_separate_runs(self, how):
        sampler = Planned(plan.parallel, how)
        first, second = ragged(self.model.model, 20), torch.full((20, 20), self.model.mask_id)
        state = begun(sampler, first, 3, 4, self.model.mask_id)
        advance(self.model, sampler, state)
        advance(self.model, sampler, state)
        state = PlanState.join([state, begun(sampler, second, 8, 6, self.model.mask_id)])
        while advance(self.model, sampler, state):
            pass
        expected = torch.cat([self.alone(first, 3, 4, how), self.alone(second, 8, 6, how)])
        assert torch.equal(state.x, expected)

    def test_some_sequences_of_a_state_go_on_as_before(self, how):
        sampler, canvas = Planned(plan.parallel, how), torch.full((20, 20), self.model.mask_id)
        state = begun(sampler, canvas, 3, 4, self.model.mask_id)
        advance(self.model, sampler, state)
        index = torch.arange(19, 0, -2)
        state = state.take(index)
        while advance(self.model, sampler, state):
            pass
        assert torch.equal(state.x, self.alone(canvas, 3, 4, how)[index])

    def test_taking_leaves_the_state_it_was_taken_from_alone(self, how):
        sampler, canvas = Planned(plan.parallel, how), ragged(self.model.model)
        state = begun(sampler, canvas, 3, 4, self.model.mask_id)
        part = state.take(torch.tensor([8, 7]))
        while advance(self.model, sampler, part):
            pass
        assert torch.equal(state.x, canvas)
        assert state.visits.sum() == state.step.sum() == 0


def test_taking_goes_through_every_field():
    @dataclass(frozen=True)
    class Inner(Batched):
        values: torch.Tensor

    @dataclass(frozen=True)
    class Outer(Batched):
        name: str
        values: torch.Tensor
        notes: list
        inner: Inner
        none: None = None

    whole = Outer("all", torch.arange(4), list("abcd"), Inner(torch.arange(8).view(4, 2)))
    some = whole.take(torch.tensor([2, 0]))
    assert (some.name, some.values.tolist(), some.notes) == ("all", [2, 0], ["c", "a"])
    assert some.inner.values.tolist() == [[4, 5], [0, 1]] and some.none is None


def test_other_draws_can_be_asked_for():
    model = hidden_markov()
    for how in (draw.exponential_race, draw.gumbel(torch.float64), draw.gumbel(torch.float32)):
        assert sample(model, num=2, length=4, draw=how).tokens.shape == (2, 4)


class TestBadInput:
    model = oracle(3, 4)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"canvas": torch.zeros(2, 4)}, "canvas must be token ids"),
            ({"canvas": torch.zeros(4, dtype=torch.int64)}, "a single sequence is canvas"),
            ({"canvas": [[3, 3], [3]]}, "canvas must be token ids"),
            ({"num": 1.5}, "num and length must be whole numbers"),
            ({"draw": "gumbel"}, "write draw=unmask.draw.gumbel"),
            ({"draw": draw.gumbel}, "draw=unmask.draw.gumbel makes a draw: write draw=unmask.draw.gumbel"),
            ({"draw": 3}, "draw must be callable"),
            ({"predict": predict.auto}, "predict=unmask.predict.auto makes a predict"),
            ({"predict": "correct"}, "write predict=unmask.predict.correct"),
            ({"sampler": decoding.margin}, "call it: margin"),
            ({"sampler": "margin"}, "sampler must be a sampler of unmask.samplers"),
            ({"schedule": unmask.Cosine}, "schedule must be a schedule such as unmask.Linear"),
            ({"schedule": "cosine"}, "schedule must be a schedule"),
            ({"canvas": torch.full((1, 4), 9)}, "the first is 9; allowed are 0..2 and the mask 3"),
            ({"canvas": torch.full((1, 4), -1)}, "the first is -1"),
            ({"canvas": torch.full((1, 4), 3), "length": 5}, "length=5 contradicts"),
            ({"canvas": torch.full((1, 4), 3), "num": 2}, "num=2 contradicts the canvas, which has 1"),
            ({"num": -1}, "num=-1"),
            ({"length": -2}, "length=-2"),
            ({"temperature": -0.5}, "temperature must be"),
            ({"temperature": float("inf")}, "temperature must be"),
            ({"top_k": 0}, "top_k must be"),
            ({"top_p": 2.0}, "top_p must be"),
            ({"seed": -1}, "seed must be"),
            ({"seed": 1.5}, "seed must be"),
            ({"seed": [1, 2, 3]}, "1 sequences, 3 seeds"),
            ({"batch": 0}, "batch must be"),
            ({"plan": plan.parallel}, "plan.parallel needs steps"),
            ({"plan": plan.ancestral, "steps": 0}, "steps must be"),
            ({"plan": plan.first_hitting, "steps": 3}, "steps=3: plan.first_hitting takes one token per step"),
            ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
            ({"steps": True}, "steps must be a whole number of at least 1, got True"),
            ({"plan": "parallel"}, "write plan=unmask.plan.parallel"),
            (
                {"sampler": decoding.margin(), "plan": plan.parallel, "steps": 2},
                "give either sampler, or plan, predict and ahead",
            ),
            (
                {"sampler": decoding.margin(), "predict": predict.correct},
                "give either sampler, or plan, predict and ahead",
            ),
            ({"predict": predict.lagrange}, "predict must be"),
        ],
        ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
    )
    def test_the_argument_its_value_and_what_is_allowed_are_named(self, options, message):
        with pytest.raises(ValueError, match=message):
            sample(self.model, **options)

    def test_a_plan_that_forgets_positions_is_found_out(self):
        def forgetful(tokens, **options):
            whole = plan.first_hitting(tokens, **options)
            return plan.Plan(whole.order[:, :2], whole.times[:, :2], whole.step[:, :2], whole.call_time[:, :2])

        with pytest.raises(ValueError, match="left 2 positions masked"):
            sample(self.model, plan=forgetful)

    def test_a_length_is_needed_where_the_model_has_none(self):
        with pytest.raises(ValueError, match="give length"):
            sample(hidden_markov())

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf])
    def test_logits_that_are_no_distribution(self, bad):
        class Broken:
            vocab_size, mask_id = 2, 2

            def __call__(self, tokens, time=None, rows=None):
                return torch.full((*rows.shape, 2), bad)

        with pytest.raises(ValueError, match="no distribution"):
            sample(Broken(), length=3)

    def test_logits_of_the_wrong_shape(self):
        class Narrow:
            vocab_size, mask_id = 5, 5

            def __call__(self, tokens, time=None, rows=None):
                return torch.zeros(*rows.shape, 4)

        with pytest.raises(ValueError, match=r"Narrow returned .*\(1, 1, 4\).*\(1, 1, 5\)"):
            sample(Narrow(), length=3)

    @pytest.mark.parametrize("model", [None, 3, len])
    def test_what_is_no_model(self, model):
        with pytest.raises(ValueError, match="model must"):
            sample(model, length=3)
