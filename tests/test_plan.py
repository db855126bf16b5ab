import math
from itertools import permutations

import pytest
import torch
from scipy import stats

from tests.helpers import FALSE_ALARM, chi_square, generator
from unmask import paper, predict
from unmask import plan as plans
from unmask.noise import Streams
from unmask.schedule import Cosine, Geometric, Linear, LogLinear, Polynomial

MASK = 7
SCHEDULES = [Linear(), Cosine(), Polynomial(2), Geometric(), LogLinear()]
PLANNERS = {
    "first_hitting": plans.first_hitting,
    "parallel": plans.parallel,
    "ancestral": plans.ancestral,
    "left_to_right": plans.left_to_right,
}


def empty(rows, length):
    return torch.full((rows, length), MASK)


def make(planner, tokens, *, schedule=None, steps=None, seed=0):
    if planner is plans.first_hitting:
        steps = None
    return planner(
        tokens, mask_id=MASK, streams=Streams.of(seed, len(tokens)), schedule=schedule or Linear(), steps=steps
    )


def ragged():
    """Rows with 0, 1, ... masked positions in the front."""
    return torch.where(torch.arange(6) < torch.arange(7).unsqueeze(1), MASK, torch.arange(6))


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 6, 7, 1000])
@pytest.mark.parametrize("planner", PLANNERS.values(), ids=PLANNERS)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_every_plan_keeps_the_contract(planner, schedule, steps):
    tokens = ragged()
    plan = make(planner, tokens, schedule=schedule, steps=steps)
    assert plan.order.shape == plan.times.shape == plan.step.shape == tokens.shape
    assert plan.order.dtype == plan.step.dtype == torch.int64
    assert plan.times.dtype == plan.call_time.dtype == torch.float64
    for row, holes in enumerate((tokens == MASK).sum(1).tolist()):
        order, times, step = plan.order[row, :holes], plan.times[row, :holes], plan.step[row, :holes]
        assert sorted(order.tolist()) == (tokens[row] == MASK).nonzero().flatten().tolist()
        assert bool((plan.order[row, holes:] == -1).all())
        assert bool((plan.step[row, holes:] == -1).all())
        assert bool((times.diff() <= 0).all())
        assert bool(((times >= 0) & (times <= 1)).all())
        assert sorted(set(step.tolist())) == list(range(int(plan.calls[row])))
        assert bool((step.diff() >= 0).all())
        called = plan.call_time[row, : int(plan.calls[row])]
        assert bool((called.diff() <= 0).all())
        assert bool((called[step] >= times - 1e-15).all()), "the network is called before its rows are hit"
    assert plan.calls.tolist() == [int(plan.step[r].max()) + 1 for r in range(7)]
    assert plan.holes.tolist() == list(range(7))


class TestFirstHitting:
    def test_one_token_per_call_at_its_own_time(self):
        plan = make(plans.first_hitting, empty(3, 5))
        assert plan.calls.tolist() == [5, 5, 5]
        assert torch.equal(plan.call_time, plan.times)

    @pytest.mark.parametrize("schedule", [Linear(), Cosine(), Polynomial(3)], ids=repr)
    def test_hitting_times_are_order_statistics(self, schedule):
        """1 - alpha(tau_{n-1}) of L positions is the n-th smallest of L uniforms, Beta(n, L - n + 1). Rate 1e-6."""
        length = 5
        plan = make(plans.first_hitting, empty(3000, length), schedule=schedule)
        masked = 1 - schedule.alpha(plan.times)
        for slot in range(length):
            n = length - slot
            law = stats.beta(n, length - n + 1)
            assert stats.kstest(masked[:, slot].numpy(), law.cdf).pvalue > FALSE_ALARM / length

    def test_the_recursion_of_proposition_4_1_has_the_same_distribution(self):
        """tau_{n-1} = alpha^-1(1 - u_n^(1/n) (1 - alpha_{tau_n})), as the paper has it. False alarm 1e-6."""
        schedule, length, rows = Cosine(), 4, 4000
        tau = torch.ones(rows, dtype=torch.float64)
        g, drawn = generator(9), []
        for n in range(length, 0, -1):
            tau = torch.stack([paper.hitting_time(one, n, schedule, g) for one in tau])
            drawn.append(tau)
        times = make(plans.first_hitting, empty(rows, length), schedule=schedule).times
        for slot in range(length):
            assert stats.ks_2samp(drawn[slot].numpy(), times[:, slot].numpy()).pvalue > FALSE_ALARM / length
        # The joint distribution too: the gaps between neighbouring times, on which the recursion's dependence shows.
        ours, theirs = times[:, 1] - times[:, 2], drawn[1] - drawn[2]
        assert stats.ks_2samp(ours.numpy(), theirs.numpy()).pvalue > FALSE_ALARM / length

    def test_the_order_is_uniform_over_permutations_and_independent_of_the_times(self):
        """All 24 orders of 4 positions, for early and for late first hits alike. False alarm 1e-6."""
        plan = make(plans.first_hitting, empty(12_000, 4))
        index = {order: i for i, order in enumerate(permutations(range(4)))}
        which = torch.tensor([index[tuple(row)] for row in plan.order.tolist()])
        early = plan.times[:, 0] > plan.times[:, 0].median()
        for chosen in (early, ~early):
            counts = torch.bincount(which[chosen], minlength=24)
            assert chi_square(counts, torch.full((24,), 1 / 24)) > FALSE_ALARM / 2


class TestParallel:
    @pytest.mark.parametrize("length", [1, 7, 10, 16])
    @pytest.mark.parametrize("steps", [1, 2, 3, 4, 7, 16, 99])
    def test_group_sizes_differ_by_at_most_one(self, length, steps):
        plan = make(plans.parallel, empty(1, length), steps=steps)
        sizes = torch.bincount(plan.step[0])
        assert len(sizes) == min(length, steps)
        assert int(sizes.max() - sizes.min()) <= 1

    def test_each_group_is_called_at_its_first_hitting_time(self):
        plan = make(plans.parallel, empty(1, 6), steps=3)
        assert torch.equal(plan.call_time[0], plan.times[0, ::2])

    def test_as_many_steps_as_masked_positions_is_first_hitting(self):
        one, two = make(plans.parallel, empty(2, 6), steps=6), make(plans.first_hitting, empty(2, 6))
        for name in ("order", "times", "step", "call_time"):
            assert torch.equal(getattr(one, name), getattr(two, name))


class TestSizes:
    def test_groups_have_the_sizes_asked_for(self):
        tokens = empty(3, 9)
        tokens[:, 4] = 0
        made = plans.parallel(tokens, mask_id=MASK, streams=Streams.of(0, 3), sizes=(1, 4, 1, 2))
        assert made.step.tolist() == [[0, 1, 1, 1, 1, 2, 3, 3, -1]] * 3
        even = make(plans.parallel, tokens, steps=8)
        assert torch.equal(made.order, even.order) and torch.equal(made.times, even.times)
        first = torch.tensor([0, 1, 5, 6])
        assert torch.equal(made.call_time, made.times[:, first])

    def test_equal_sizes_are_what_steps_give(self):
        from unmask.theory import equal_sizes

        tokens = empty(2, 11)
        for steps in (1, 3, 4, 11):
            made = plans.parallel(
                tokens, mask_id=MASK, streams=Streams.of(0, 2), sizes=equal_sizes(11, steps), steps=steps
            )
            assert torch.equal(made.step, make(plans.parallel, tokens, steps=steps).step)

    @pytest.mark.parametrize(
        ("sizes", "steps", "message"),
        [
            ((3, 3), None, "sizes sum to 6, but sequence 1 has 5 masked positions"),
            ((3, 0, 3), None, "at least 1"),
            ((3, 3), 3, "contradicts sizes"),
            ((2.0, 4), None, "whole numbers"),
        ],
    )
    def test_wrong_sizes_are_named(self, sizes, steps, message):
        tokens = empty(2, 6)
        tokens[1, 0] = 0
        with pytest.raises(ValueError, match=message):
            plans.parallel(tokens, mask_id=MASK, streams=Streams.of(0, 2), sizes=sizes, steps=steps)


class TestAncestral:
    @pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
    def test_the_number_unmasked_in_each_interval_has_the_reversal_s_distribution(self, schedule):
        """Per position: P(hit in (t_{k-1}, t_k]) = (alpha_{k-1} - alpha_k)/(1 - alpha_start). False alarm 1e-6."""
        steps, rows = 5, 20_000
        plan = make(plans.ancestral, empty(rows, 1), schedule=schedule, steps=steps)
        interval = (plan.call_time[:, 0] * steps).round().long()  # 0: at time 0, where alpha_0 < 1
        grid = schedule.alpha(torch.arange(steps + 1, dtype=torch.float64) / steps)
        law = torch.cat([1 - grid[:1], -grid.diff()]) / (1 - grid[-1])
        assert chi_square(torch.bincount(interval, minlength=steps + 1), law) > FALSE_ALARM

    def test_positions_are_hit_independently(self):
        """All 2^3 patterns of who is hit in the first of two steps. False alarm 1e-6."""
        plan = make(plans.ancestral, empty(16_000, 3), steps=2)
        first = torch.zeros(16_000, 3, dtype=torch.bool)
        first.scatter_(1, plan.order, plan.times > 0.5)
        pattern = (first * torch.tensor([4, 2, 1])).sum(1)
        assert chi_square(torch.bincount(pattern, minlength=8), torch.full((8,), 1 / 8)) > FALSE_ALARM

    @pytest.mark.parametrize(("steps", "batch"), [(50, 1), (50, 4), (50_000, 4)])
    def test_calls_follow_the_expected_nfe(self, steps, batch):
        """The mean over rows of the non-empty steps is N (1 - (1 - 1/N)^L), whatever the batch; z below 5."""
        length, rows = 40, 400 * batch
        calls = make(plans.ancestral, empty(rows, length), steps=steps).calls.double()
        expected = steps * -math.expm1(length * math.log1p(-1 / steps))
        assert abs(float(calls.mean()) - expected) < 5 * max(float(calls.std()), 0.05) / math.sqrt(rows)
        assert int(calls.max()) <= length

    def test_each_step_is_called_where_its_interval_starts(self):
        plan = make(plans.ancestral, empty(50, 20), steps=7)
        ticks = plan.call_time * 7
        torch.testing.assert_close(ticks, ticks.round(), rtol=0, atol=1e-12)
        called = plan.call_time.gather(1, plan.step)
        assert bool(((called - plan.times >= 0) & (called - plan.times < 1 / 7 + 1e-12)).all())

    def test_an_infill_starts_where_its_masked_positions_say(self):
        tokens = torch.where(torch.arange(10) < 3, MASK, 0).expand(500, 10)
        for schedule in (Linear(), Cosine()):
            plan = make(plans.ancestral, tokens, schedule=schedule, steps=4)
            start = float(schedule.inverse(0.7))
            assert float(plan.call_time.max()) == pytest.approx(start, abs=1e-12)
            assert float(plan.times.max()) < start
            assert float(plan.times.max()) > 0.95 * start


class TestRechoose:
    def corrected(self, rows, length, steps):
        streams = Streams.of(3, rows)
        plan = plans.parallel(empty(rows, length), mask_id=MASK, streams=streams, schedule=Linear(), steps=steps)
        return predict.rechoose(plan, streams)

    def test_the_first_choice_comes_from_what_the_corrected_steps_leave(self):
        plan = self.corrected(200, 10, 4)
        for row in range(200):
            for s in range(4):
                left = plan.order[row][plan.step[row] >= s].tolist()
                chosen = plan.tentative[row][plan.step[row] == s].tolist()
                assert len(set(chosen)) == len(chosen)
                assert set(chosen) <= set(left)
        last = plan.step == 3
        assert torch.equal(plan.tentative[last], plan.order[last])

    def test_the_first_choice_is_uniform_and_independent_of_the_second(self):
        """4 positions in 2 steps: the 6 x 6 pairs of subsets (first choice, corrected) alike. False alarm 1e-6."""
        plan = self.corrected(14_400, 4, 2)
        code = {3: 0, 5: 1, 6: 2, 9: 3, 10: 4, 12: 5}

        def subset(order):
            return torch.tensor([code[v] for v in (2 ** order[:, :2]).sum(1).tolist()])

        pairs = subset(plan.tentative) * 6 + subset(plan.order)
        assert chi_square(torch.bincount(pairs, minlength=36), torch.full((36,), 1 / 36)) > FALSE_ALARM


def test_a_row_s_plan_depends_on_its_own_stream_alone():
    tokens = ragged()
    together = make(plans.ancestral, tokens, steps=9)
    for row in range(len(tokens)):
        alone = plans.ancestral(
            tokens[row : row + 1], mask_id=MASK, streams=Streams.of(0, 7).take([row]), schedule=Linear(), steps=9
        )
        calls = int(alone.calls[0])
        assert torch.equal(alone.order[0], together.order[row])
        assert torch.equal(alone.call_time[0, :calls], together.call_time[row, :calls])


@pytest.mark.parametrize("planner", PLANNERS.values(), ids=PLANNERS)
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_nothing_to_plan_is_an_empty_plan(planner, shape):
    plan = make(planner, torch.zeros(shape, dtype=torch.int64), steps=3)
    assert plan.calls.tolist() == [0] * shape[0]
    assert plan.call_time.shape == (shape[0], 0)


class TestLeftToRight:
    def test_masked_positions_from_the_first_to_the_last(self):
        tokens = torch.tensor([[MASK, 0, MASK, MASK], [1, 1, MASK, 1], [0, 1, 2, 3]])
        plan = make(plans.left_to_right, tokens)
        assert plan.order.tolist() == [[0, 2, 3, -1], [2, -1, -1, -1], [-1] * 4]
        assert plan.calls.tolist() == [3, 1, 0]

    def test_a_position_is_filled_at_the_time_when_as_many_are_expected(self):
        plan = make(plans.left_to_right, empty(1, 4), schedule=Cosine())
        expected = Cosine().inverse(1 - torch.tensor([4, 3, 2, 1]) / 4)
        torch.testing.assert_close(plan.times[0], expected)
        assert make(plans.left_to_right, empty(1, 4)).call_time.tolist() == [[1.0, 0.75, 0.5, 0.25]]

    def test_steps_are_groups_of_neighbours(self):
        assert make(plans.left_to_right, empty(1, 7), steps=3).step.tolist() == [[0, 0, 0, 1, 1, 2, 2]]


def test_first_hitting_refuses_steps():
    with pytest.raises(ValueError, match=r"steps=3: plan.first_hitting takes one token per step; plan.parallel"):
        plans.first_hitting(empty(1, 3), mask_id=MASK, streams=Streams.of(0, 1), steps=3)


class TestGroups:
    """What one step fills, and the same of some rows or of several batches together."""

    def test_a_group_is_the_slots_of_a_row_s_own_step(self):
        plan = make(plans.parallel, ragged(), steps=3)
        for offset in range(3):
            step = (torch.arange(7) + offset) % 4 - 1  # rows at steps of their own, before the first included
            group = plan.group(step)
            for row in range(7):
                real = group.positions[row] >= 0
                slots = plan.step[row] == step[row] if step[row] >= 0 else torch.zeros(6, dtype=torch.bool)
                assert group.positions[row][real].tolist() == plan.order[row][slots].tolist()
                assert group.tau[row][real].tolist() == plan.times[row][slots].tolist()
                assert torch.equal(group.drawn[row], real)

    def test_a_step_past_the_last_is_empty(self):
        plan = make(plans.parallel, ragged(), steps=3)
        assert not bool((plan.group(torch.full((7,), 3)).positions >= 0).any())

    def test_some_rows_of_a_plan_are_their_own_plan(self):
        plan, rows = make(plans.parallel, ragged(), steps=3), torch.tensor([5, 0, 6])
        some = plan.take(rows)
        for step in range(3):
            ours, whole = some.group(torch.full((3,), step)), plan.group(torch.full((7,), step))
            for i, row in enumerate(rows.tolist()):
                kept, theirs = ours.positions[i], whole.positions[row]
                assert kept[kept >= 0].tolist() == theirs[theirs >= 0].tolist()

    @pytest.mark.parametrize("corrected", [False, True])
    def test_plans_of_several_batches_are_joined(self, corrected):
        parts = []
        for seed, steps in ((1, 2), (2, 5), (3, 1)):
            streams = Streams.of(seed, 7)
            part = plans.parallel(ragged(), mask_id=MASK, streams=streams, steps=steps)
            parts.append(predict.rechoose(part, streams) if corrected else part)
        joined = plans.Plan.join(parts)
        assert joined.calls.tolist() == [n for part in parts for n in part.calls.tolist()]
        for step in range(6):
            whole = joined.group(torch.full((21,), step))
            for i, part in enumerate(parts):
                group = part.group(torch.full((7,), step))
                for row in range(7):
                    for name in ("positions", "hidden") if corrected else ("positions",):
                        ours, theirs = getattr(whole, name)[7 * i + row], getattr(group, name)[row]
                        assert ours[ours >= 0].tolist() == theirs[theirs >= 0].tolist()


@pytest.mark.parametrize("planner", [plans.parallel, plans.ancestral, plans.left_to_right])
@pytest.mark.parametrize("steps", [None, 0, -3, 2.5, True, "8"])
def test_bad_steps_are_named(planner, steps):
    if steps is None and planner is plans.left_to_right:
        return  # one token per step
    with pytest.raises(ValueError, match="steps"):
        make(planner, empty(1, 3), steps=steps)


def test_bad_tokens_are_named():
    for tokens in (torch.zeros(3, dtype=torch.int64), torch.zeros(2, 3)):
        with pytest.raises(ValueError, match=r"tokens must be int64 \[batch, length\]"):
            plans.first_hitting(tokens, mask_id=MASK, streams=Streams.of(0, len(tokens)))
    with pytest.raises(ValueError, match="one stream per row"):
        plans.first_hitting(empty(2, 2), mask_id=MASK, streams=Streams.of(0, 1))
