"""Block attention: which positions see which, the distribution of samples, the bound, the cache, and refusals."""

from __future__ import annotations

from functools import partial
from itertools import permutations, product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import FALSE_ALARM, chi_square, codes, frequencies, generator, oracle
from tests.networks.test_ddit import TOLERANCE, reference
from tests.small_models import small
from unmask import nelbo, plan, predict, sample
from unmask.evaluate.likelihood.profile import entropy_by_count
from unmask.networks.cache.in_turn import BlockCached
from unmask.networks.ddit import DDiT
from unmask.samplers import decoding
from unmask.samplers.published import Coupled

V, LENGTH, BATCH = 11, 12, 3
START = 0  # every sequence here begins with it, as one of a network with adapters must
ADAPTERS: dict[str, Any] = {"adapters": 4, "start": START, "adaln": False}
KINDS = pytest.mark.parametrize("kind", [{}, {"convolution": 3}, ADAPTERS], ids=["plain", "convolution", "adapters"])
SIZES = {"vocab_size": V, "mask_id": V, "length": LENGTH, "width": 24, "layers": 3, "heads": 3, "cond_dim": 16}
network = partial(small, DDiT, **SIZES)
blocks = partial(network, attention="block")


def clean(seed: int = 1, batch: int = BATCH) -> Tensor:
    made = torch.randint(V, (batch, LENGTH), generator=generator(seed))
    made[:, 0] = START
    return made


def noised(x0: Tensor, seed: int = 2) -> Tensor:
    return torch.where(torch.rand(x0.shape, generator=generator(seed)) < 0.5, V, x0)


def at_block(x0: Tensor, xt: Tensor, number: int, block: int) -> Tensor:
    """Clean blocks, then this one noised, then nothing but masks."""
    k = torch.arange(x0.shape[1]) // block
    return torch.where(k < number, x0, torch.where(k == number, xt, V))


@pytest.mark.parametrize("block", [1, 4, 12])
def test_a_position_sees_its_block_and_those_before(block: int) -> None:
    model, tokens = blocks(block=block), noised(clean())
    k = torch.arange(LENGTH) // block
    sees = (k.unsqueeze(1) >= k).expand(BATCH, -1, -1)
    expected = reference(model.state_dict(), tokens, torch.zeros(BATCH, dtype=torch.float64), 3, V, sees)
    torch.testing.assert_close(model(tokens).double(), expected, **TOLERANCE)


@pytest.mark.parametrize("convolution", [0, 3])
def test_one_block_is_the_plain_masked_model(convolution: int) -> None:
    x0 = clean()
    model, plain = blocks(block=LENGTH, convolution=convolution), network(convolution=convolution)
    xt, every = noised(x0), torch.ones_like(x0, dtype=torch.bool)
    torch.testing.assert_close(model(xt), plain(xt), **TOLERANCE)
    torch.testing.assert_close(model.packed(xt, None, every, clean=x0), plain.packed(xt, None, every), **TOLERANCE)


@KINDS
@pytest.mark.parametrize("block", [1, 3, 4])
def test_one_pass_gives_every_noised_block_given_the_clean_ones_before(block: int, kind: dict[str, Any]) -> None:
    model, x0 = blocks(block=block, **kind), clean()
    xt, every = noised(x0), torch.ones_like(x0, dtype=torch.bool)
    at_once = model.packed(xt, None, every, clean=x0).view(BATCH, LENGTH, V)
    for number in range(LENGTH // block):
        here = slice(number * block, (number + 1) * block)
        alone = model(at_block(x0, xt, number, block))[:, here]
        torch.testing.assert_close(at_once[:, here], alone, **TOLERANCE)


@KINDS
def test_the_cache_gives_the_networks_answers_and_reads_complete_blocks_once(kind: dict[str, Any]) -> None:
    block = 4
    model, x0 = blocks(block=block, **kind), clean()
    run, read = model.for_sampling(), []
    assert isinstance(run, BlockCached)
    step = run.run
    run.run = lambda ready, x, *how: read.append(x.shape[1]) or step(ready, x, *how)  # type: ignore[assignment,func-returns-value]
    for number in range(LENGTH // block):
        for seed in (2, 3):
            canvas = at_block(x0, noised(x0, seed), number, block)
            rows = torch.arange(number * block, (number + 1) * block).expand(BATCH, -1)
            masked = canvas.gather(1, rows) == V
            torch.testing.assert_close(run(canvas, rows=rows)[masked], model(canvas, rows=rows)[masked], **TOLERANCE)
    whole = [4, 4, 8, 4, 8, 4]  # with adapters the tokens before the first masked one of a block are kept too
    assert read == whole if not kind else all(few <= most for few, most in zip(read, whole, strict=True))
    back = at_block(x0, noised(x0), 0, block)  # tokens that are taken back are forgotten
    asked = (back == V) & (torch.arange(LENGTH) < 4)
    torch.testing.assert_close(run(back)[asked], model(back)[asked], **TOLERANCE)


@KINDS
def test_sequences_of_several_lengths_and_progress_share_a_cache(kind: dict[str, Any]) -> None:
    """One is in its last block, which is shorter; one is at its beginning; padding rows ask for position 0."""
    model, x0 = blocks(block=4, **kind), clean()
    run = model.for_sampling()
    for length in (10, 12, 6):
        run.add(1, length)
    canvas = torch.stack([at_block(x0[i : i + 1], noised(x0)[i : i + 1], k, 4)[0] for i, k in enumerate((2, 0, 1))])
    canvas[0, 8:10], canvas[0, 10:], canvas[2, 5], canvas[2, 6:] = V, V, V, V
    rows = torch.tensor([[9, 8, 0], [0, 1, 2], [5, 0, 0]])
    for _ in range(2):
        got = run(canvas, rows=rows, seats=slice(0, 3))
        for i, length in enumerate((10, 12, 6)):
            alone = model(canvas[i : i + 1, :length])[0]
            masked = canvas[i, rows[i]] == V
            torch.testing.assert_close(got[i][masked], alone[rows[i]][masked], **TOLERANCE)
        canvas[0, 9], canvas[1, :4] = 3, x0[1, :4]
        rows = torch.tensor([[8, 8, 0], [4, 5, 6], [5, 0, 0]])
    lengths = torch.tensor([10, 12, 6])
    together = model(canvas, lengths=lengths)
    for i, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(together[i, :length], model(canvas[i : i + 1, :length])[0], **TOLERANCE)


@KINDS
def test_every_position_of_a_block_sees_the_others(kind: dict[str, Any]) -> None:
    """Those to its right too: p(x^5 | x^6) must not be p(x^5)."""
    model, x0 = blocks(block=4, **kind), clean()
    for row in range(4, 8):
        canvas = x0.clone()
        canvas[:, row] = V
        before = model(canvas)[:, row]
        for other in set(range(4, 8)) - {row}:
            changed = canvas.clone()
            changed[:, other] = (x0[:, other] + 1) % V
            assert ((model(changed)[:, row] - before).abs().amax(1) > 1e-4).all()


PLANS: dict[str, dict[str, Any]] = {
    "first hitting": {"plan": plan.first_hitting},
    "parallel": {"steps": 6},
    "ancestral": {"plan": plan.ancestral, "steps": 30},
    "by hand": {"plan": plan.Blocks(4, plan.left_to_right)},
    "entropy": {"sampler": decoding.entropy()},
    "confidence": {"sampler": decoding.confidence(), "steps": 6},
    "entropy bounded": {"sampler": decoding.entropy_bounded(3.0)},
}


@KINDS
@pytest.mark.parametrize("how", PLANS.values(), ids=list(PLANS))
def test_any_plan_fills_block_after_block_as_without_a_cache(how: dict[str, Any], kind: dict[str, Any]) -> None:
    model, canvas = blocks(block=4, **kind), torch.full((BATCH, LENGTH), V)
    canvas[0, :5] = torch.arange(5)
    canvas[1:, 0] = START  # in a block of masks alone all entropies are equal, and rounding would decide
    made = sample(model, canvas=canvas, seed=3, **how)
    again = sample(Plain(model), canvas=canvas, seed=3, **how)
    assert torch.equal(made.tokens, again.tokens)
    filled: list[list[int]] = [[], [], []]
    for step in made.trace:
        for i, row in zip(step.sequences.tolist(), step.positions.tolist(), strict=True):
            filled[i] += [position // 4 for position in row if position >= 0]
    assert all(order == sorted(order) for order in filled) and filled[0] == [1] * 3 + [2] * 4
    if how == {"steps": 6}:
        assert made.nfe.tolist() == [4, 6, 6]


class Plain:
    """The network without its cache."""

    def __init__(self, model: DDiT) -> None:
        self.model, self.vocab_size, self.mask_id, self.process = model, model.vocab_size, model.mask_id, model.process

    def __call__(self, tokens: Tensor, rows: Tensor) -> Tensor:
        return self.model(tokens, rows=rows)  # type: ignore[no-any-return]

    def packed(self, tokens: Tensor, time: Tensor | None, where: Tensor, *, clean: Tensor | None = None) -> Tensor:
        return self.model.packed(tokens, time, where, clean=clean)


def chain_rule(model: DDiT, x: Tensor) -> tuple[Tensor, Tensor]:
    """p(x) of every x [B, L] by sampling token by token, and the exact bound on -log p(x), by all orders of a block."""
    block, length = model.config.block, x.shape[1]
    p, bound = torch.ones(2, len(x), dtype=torch.float64)
    bound = bound - 1
    for first in range(0, length, block):
        each = []
        for order in permutations(range(first, first + block)):
            canvas, logp = x.clone(), torch.zeros(len(x), dtype=torch.float64)
            canvas[:, first:] = model.mask_id
            for at in order:
                said = model(canvas)[:, at].double().log_softmax(-1)
                logp = logp + said.gather(1, x[:, at : at + 1]).squeeze(1)
                canvas[:, at] = x[:, at]
            each.append(logp)
        p, bound = p * torch.stack(each).exp().mean(0), bound - torch.stack(each).mean(0)
    return p, bound


def tiny(**config: Any) -> DDiT:
    sizes = {"vocab_size": 2, "mask_id": 2, "length": 4, "width": 8, "layers": 2, "heads": 2, "cond_dim": 4}
    return small(DDiT, std=0.6, attention="block", block=2, **sizes, **config)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [{}, ADAPTERS], ids=["plain", "adapters"])
def test_samples_have_the_distribution_of_the_chain_rule_by_blocks(kind: dict[str, Any]) -> None:
    model, num = tiny(**kind), 20_000
    x = torch.tensor([row for row in product(range(2), repeat=4) if not kind or row[0] == START])
    with torch.no_grad():
        p, _ = chain_rule(model, x)
    assert float(p.sum()) == pytest.approx(1)
    law = torch.zeros(2 ** (4 - bool(kind)), dtype=torch.float64).index_put((codes(x[:, bool(kind) :], 2),), p)
    made = sample(model, num=num, seed=1, plan=plan.first_hitting).tokens
    assert not kind or bool((made[:, 0] == START).all())
    assert chi_square(frequencies(made[:, bool(kind) :], 2), law) > FALSE_ALARM


@pytest.mark.parametrize("kind", [{}, ADAPTERS], ids=["plain", "adapters"])
@pytest.mark.parametrize("by", ["count", "time", "order"])
def test_the_bound_is_the_sum_of_the_blocks_bounds(by: Any, kind: dict[str, Any]) -> None:
    """Within 5 errors of the exact one, a false alarm in 6e-7; with a prompt that ends inside of a block, too."""
    model, x = tiny(**kind), torch.tensor([[0, 1, 1, 0]])
    with torch.no_grad():
        _, exact = chain_rule(model, x)
    found = nelbo(model, x, by=by, passes=2_000)
    assert abs(float(found.nats - exact)) < 5 * float(found.errors)
    given = torch.tensor([[False, True, True, True]])  # its masked positions are one position, and a block
    with torch.no_grad():
        first = -model(torch.tensor([[0, 2, 2, 2]]))[0, 1].double().log_softmax(-1)[1]
        both = tiny().config.block
        _, blocks_bound = chain_rule(model, x)
        single = -torch.stack([sum_of(model, x, order) for order in permutations(range(both))]).mean()
    rest = blocks_bound - single
    partly = nelbo(model, x, by=by, passes=2_000, where=given)
    assert abs(float(partly.nats - (first + rest))) < 5 * float(partly.errors) + 1e-6
    assert partly.tokens.tolist() == [3]


def sum_of(model: DDiT, x: Tensor, order: tuple[int, ...]) -> Tensor:
    """log p of the first block along an order."""
    canvas, logp = torch.full_like(x, model.mask_id), torch.zeros((), dtype=torch.float64)
    for at in order:
        logp = logp + model(canvas)[0, at].double().log_softmax(-1)[x[0, at]]
        canvas[:, at] = x[:, at]
    return logp


def test_a_shorter_last_block_is_bounded_too() -> None:
    model, x = tiny(), torch.tensor([[0, 1, 1]])
    with torch.no_grad():
        last = -model(torch.tensor([[0, 1, 2]]))[0, 2].double().log_softmax(-1)[1]
        first = -torch.stack([sum_of(model, x, order) for order in ((0, 1), (1, 0))]).mean()
    found = nelbo(model, x, passes=2_000)
    assert abs(float(found.nats - first - last)) < 5 * float(found.errors)


@pytest.mark.parametrize("inner", [plan.first_hitting, plan.left_to_right])
def test_a_plan_by_blocks_has_an_oracles_distribution(inner: Any) -> None:
    model, num = oracle(3, 4), 20_000
    made = sample(model, num=num, plan=plan.Blocks(2, inner), seed=5)
    assert chi_square(frequencies(made.tokens, 3), model.joint.flatten()) > FALSE_ALARM
    assert {tuple(sorted(s.positions[0].tolist())) for s in made.trace[:2]} == {(0,), (1,)}


def test_block_plans_share_steps_and_fall_in_time() -> None:
    canvas = torch.full((2, 10), V)
    canvas[1, :6] = 0
    from unmask.noise import Streams

    made = plan.Blocks(4, plan.parallel)(canvas, mask_id=V, streams=Streams.of(0, 2), steps=5)
    assert made.calls.tolist() == [5, 3] and made.holes.tolist() == [10, 4]
    assert (made.times[:, 1:] <= made.times[:, :-1]).all() and made.order.shape == (2, 10)
    with pytest.raises(ValueError, match="steps=2: 3 blocks take at least one each, so give 3 or more"):
        plan.Blocks(4, plan.parallel)(canvas, mask_id=V, streams=Streams.of(0, 2), steps=2)


def test_what_blocks_cannot_do_is_refused() -> None:
    model, hole = blocks(block=4), torch.zeros(1, LENGTH, dtype=torch.int64)
    hole[0, 1] = V
    for canvas, how, says in (
        (hole, {}, "continues a text"),
        (None, {"predict": predict.extrapolate, "steps": 6}, "it takes no predict"),
        (None, {"plan": plan.Blocks(8)}, "its blocks have 4 positions"),
        (None, {"sampler": Coupled(), "steps": 8}, "a block model takes plans"),
        (None, {"steps": 2}, "3 blocks take at least one each"),
    ):
        with pytest.raises(ValueError, match=says):
            sample(model, canvas=canvas, **how)
    with pytest.raises(ValueError, match=r"takes no plan\.Blocks"):
        sample(network(), plan=plan.Blocks(4, plan.parallel), steps=6, predict=predict.correct)
    with pytest.raises(ValueError, match="continues a text"):
        nelbo(model, clean(), where=noised(clean()) == V)
    with pytest.raises(ValueError, match=r"no profile"):
        entropy_by_count(model, clean())
    with pytest.raises(ValueError, match="clean is for sequences of one length"):
        blocks(block=4).packed(clean(), None, clean() > 3, torch.full((BATCH,), 8), clean())
    for wrong in ({"block": 0}, {"block": 5}, {"block": 4, "conditioning": "time"}, {"block": -4}):
        with pytest.raises(ValueError, match="block"):
            blocks(**wrong)
    with pytest.raises(ValueError, match="block=4: a network of the kind 'ddit' has no such setting"):
        network(block=4)
