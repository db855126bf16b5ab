"""Stopping: the distribution of a text that is cut at its end, and the calls that are saved."""

import pytest
import torch
from scipy import stats

import unmask
from tests.helpers import FALSE_ALARM, Counting, codes, oracle
from tests.small_models import TOKENIZERS, network
from unmask import plan
from unmask.samplers import decoding, remasking
from unmask.stopping import Stopping

V, L, END = 3, 4, 2
PLANS = {"first hitting": plan.first_hitting, "left to right": plan.left_to_right, "blocks": plan.Blocks(2)}


def cut(tokens):
    """What counts: everything behind the first end becomes the end."""
    ended = (tokens == END).long().cumsum(1) > 0
    return torch.where(ended, END, tokens)


def law(model):
    """Of the texts cut at their ends, by enumeration: [V^L]."""
    every = torch.cartesian_prod(*[torch.arange(V)] * L)
    return torch.zeros(V**L, dtype=torch.float64).index_add_(0, codes(cut(every), V), model.joint.flatten())


@pytest.mark.parametrize("how", PLANS)
def test_the_distribution_is_that_of_the_truncated_text(how):
    model, num = oracle(V, L), 8000
    made = unmask.sample(model, num=num, length=L, plan=PLANS[how], stop=END, seed=1).tokens
    assert torch.equal(made, cut(made)), "behind an end there are ends"
    counts, expected = torch.bincount(codes(made, V), minlength=V**L), law(model) * num
    there = expected > 0
    assert int(counts[~there].sum()) == 0
    assert stats.chisquare(counts[there].numpy(), expected[there].numpy()).pvalue > FALSE_ALARM


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_by_blocks_all_tokens_before_the_block_of_the_end_are_the_same(size):
    """For any network. In the block of the end they may differ from blocks of 3 on: an end that is drawn early removes
    positions of its block, on which earlier ones would have been conditioned."""
    net, options = oracle(V, 6), {"num": 2_000, "length": 6, "plan": plan.Blocks(size), "seed": 3}
    full, made = unmask.sample(net, **options).tokens, unmask.sample(net, **options, stop=END).tokens
    first, place = (tokens.eq(END).long().cumsum(1).eq(0).sum(1) for tokens in (full, made)), torch.arange(6)
    without, stopped = first
    assert torch.equal(without // size, stopped // size), "the end is in the same block"
    before = place // size < (stopped // size).unsqueeze(1)
    assert torch.equal(full[before], made[before])
    inside = (place // size == (stopped // size).unsqueeze(1)) & (place <= without.unsqueeze(1))
    differ = ((full != made) & inside).any(1)
    assert bool(differ.any()) is (size > 2)


@pytest.mark.parametrize("how", ["left to right", "blocks"])
def test_from_left_to_right_the_tokens_are_the_same_and_the_calls_fewer(how):
    """For any network, an inconsistent one too."""
    net, length = network(TOKENIZERS["levels"]), 12
    whole, counting = Counting(net), Counting(net)
    options = {"num": 6, "length": length, "plan": PLANS[how], "seed": 3}
    full = unmask.sample(whole, **options).tokens
    end = int(full[:, 3].mode().values)
    made = unmask.sample(counting, **options, stop=end, batch=1)
    size = 1 if how == "left to right" else 2
    needed = 0
    for row, got in zip(full, made.tokens, strict=True):
        at = (row == end).nonzero().flatten()
        first = int(at[0]) if len(at) else length - 1
        assert torch.equal(got[: first + 1], row[: first + 1])
        assert bool((got[first + 1 :] == end).all())
        needed += (first // size + 1) * size
    assert len(counting.calls) <= needed < len(whole.calls) * 6
    if how == "left to right":
        assert len(counting.calls) == needed == int(made.nfe.sum())


def test_in_any_order_positions_behind_an_end_cost_nothing():
    """Plans that were drawn before leave out what an end makes needless, step by step."""
    model = oracle(V, L)
    counting = Counting(model)
    made = unmask.sample(counting, num=200, length=L, stop=END, seed=2, batch=1)
    assert len(counting.calls) == int(made.ncs.sum()) < 200 * L
    for step in made.trace:
        assert int(step.drawn.sum()) == len(step.sequences)
    assert torch.equal(made.nfe, made.ncs)


def test_a_batch_and_steps_change_nothing():
    model = oracle(V, L)
    whole = unmask.sample(model, num=20, length=L, stop=END, seed=2)
    assert torch.equal(whole.tokens, unmask.sample(model, num=20, length=L, stop=END, seed=2, batch=3).tokens)
    for options in ({"steps": 2}, {"sampler": decoding.blocks(2, decoding.margin())}, {"ahead": 2}):
        made = unmask.sample(model, num=50, length=L, stop=END, seed=2, **options).tokens
        assert torch.equal(made, cut(made))
        assert not bool((made == model.mask_id).any())


def test_each_run_of_masked_positions_ends_separately():
    """Of two blanks with text between them, each stops at its own end; ends that were visible are text."""
    canvas = torch.tensor([[END, 9, 9, 9, 0, 9, 9]])
    stopping = Stopping.of(canvas, (END,), 9)
    x = torch.tensor([[END, 1, END, 9, 0, 9, 9]])
    assert stopping.needless(x).tolist() == [[False, False, False, True, False, False, False]]
    assert stopping.finished(x).tolist() == [False]
    x = torch.tensor([[END, 1, END, 9, 0, END, 9]])
    assert stopping.finished(x).tolist() == [True]


def test_what_cannot_stop_is_refused():
    model = oracle(V, L)
    with pytest.raises(ValueError, match="mask tokens again"):
        unmask.sample(model, num=1, length=L, stop=END, steps=4, predict=unmask.predict.correct)
    with pytest.raises(ValueError, match="mask tokens again"):
        unmask.sample(model, num=4, length=L, stop=END, steps=8, sampler=remasking.remdm_cap())
    with pytest.raises(ValueError, match=r"ids in 0\.\.2"):
        unmask.sample(model, num=1, length=L, stop=7)
