"""Attention over what is visible: who sees whom, and that the cache changes nothing but the cost."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.helpers import FALSE_ALARM, chi_square, frequencies, generator
from tests.networks.test_ddit import BATCH, LENGTH, TOLERANCE, V, canvas, network, reference
from unmask import objective, plan, predict, sample
from unmask.networks.attention import usual_order
from unmask.networks.cache.two_streams import TwoStreamsCached
from unmask.networks.ddit import DDiT
from unmask.samplers.published import Coupled

PLANS: dict[str, dict[str, Any]] = {
    "first_hitting": {"plan": plan.first_hitting},
    "parallel": {"plan": plan.parallel, "steps": 4},
    "ancestral": {"plan": plan.ancestral, "steps": 4},
}
PREDICTORS = {"first_order": predict.first_order, "extrapolate": predict.extrapolate, "correct": predict.correct}
RULES = ("visible", "order")
ORDER = torch.rand(BATCH, LENGTH, generator=generator(8))


def seen_by(tokens: Tensor, rule: str, order: Tensor) -> Tensor:
    """The rule as the text gives it, pair by pair: bool [B, L, L]."""
    sees = torch.zeros(*tokens.shape, tokens.shape[1], dtype=torch.bool)
    for b, row in enumerate(tokens.tolist()):
        for i, at in enumerate(row):
            for j, other in enumerate(row):
                earlier = rule == "visible" or at == V or bool(order[b, j] < order[b, i])
                sees[b, i, j] = i == j or (other != V and earlier)
    return sees


def in_order(rule: str) -> dict[str, Tensor]:
    """The order, for a network that has one."""
    return {"when": ORDER} if rule == "order" else {}


@pytest.mark.parametrize("rule", RULES)
def test_it_is_the_papers_network_with_another_rule_of_attention(rule: str) -> None:
    model, tokens, how = network(attention=rule), canvas(V), in_order(rule)
    sees = seen_by(tokens, rule, ORDER)
    expected = reference(model.state_dict(), tokens, torch.zeros(BATCH, dtype=torch.float64), 3, V, sees)
    torch.testing.assert_close(model(tokens, **how).double(), expected, **TOLERANCE)
    changed = tokens.clone()
    changed[0, int((tokens[0] != V).nonzero()[0])] += 1
    assert not torch.allclose(model(changed % V, **how).double(), expected, **TOLERANCE)


@pytest.mark.parametrize("convolution", [0, 3, 5])
@pytest.mark.parametrize("rule", RULES)
def test_who_depends_on_whom(rule: str, convolution: int) -> None:
    """Changing or masking a token changes exactly the answers of those that may see it, directly or through others."""
    model, tokens, how = network(attention=rule, convolution=convolution), canvas(V), in_order(rule)
    sees, before = seen_by(tokens, rule, ORDER), model(tokens, **how)
    for b in range(BATCH):
        for position in range(LENGTH):
            changed = tokens.clone()
            changed[b, position] = min(set(range(V)) - set(tokens[b].tolist()))  # the same token again could go unseen
            moved = (model(changed, **how) - before)[b].abs().amax(-1) > 1e-6
            if tokens[b, position] != V:
                assert torch.equal(moved, sees[b, :, position])
            else:  # a masked position that is filled becomes visible to later ones
                assert bool(moved[position])
                after = seen_by(changed, rule, ORDER)[b, :, position]
                assert torch.equal(moved | (torch.arange(LENGTH) == position), after)


@pytest.mark.parametrize("convolution", [0, 3])
@pytest.mark.parametrize("rule", RULES)
def test_a_pass_costs_the_visible_and_the_asked_rows(rule: str, convolution: int) -> None:
    """Any single row has the answer of the full pass, from as many entries as tokens are visible and one more."""
    model, tokens = network(attention=rule, convolution=convolution), canvas(V)
    tokens[2] = V  # an empty canvas beside others
    full = model(tokens)
    for position in range(LENGTH):
        run: Any = model.for_sampling()
        sizes = widths(run.network)
        logits = run(tokens, rows=torch.full((BATCH, 1), position))
        hole = (tokens[:, position] == V) | (rule == "visible")  # a cache answers only at masked positions
        torch.testing.assert_close(logits[hole, 0], full[hole, position], **TOLERANCE)
        assert set(sizes) == {int((tokens != V).sum(1).max()) + 1}


@pytest.mark.parametrize("convolution", [0, 3])
def test_two_streams_are_all_the_conditionals_of_one_order(convolution: int) -> None:
    model, x0 = network(attention="order", convolution=convolution), canvas(V) % V
    logits, rank = model.logits(model.two_streams(x0, ORDER)), ORDER.argsort(1).argsort(1)
    for i in range(LENGTH):
        expected = model(torch.where(rank < i, x0, V), when=ORDER)
        torch.testing.assert_close(logits[rank == i], expected[rank == i], **TOLERANCE)
    few = torch.tensor([[1, 4], [8, 0], [3, 5]])
    some = model.logits(model.two_streams(x0, ORDER, few))
    torch.testing.assert_close(some, logits.gather(1, few.unsqueeze(-1).expand(-1, -1, V)), **TOLERANCE)
    with pytest.raises(ValueError, match=r"when must be \[batch, length\]"):
        model(x0, when=ORDER[:, :4])


def test_without_an_order_it_is_the_usual_one() -> None:
    model, tokens = network(attention="order", convolution=3), canvas(V)
    torch.testing.assert_close(model(tokens), model(tokens, when=usual_order(LENGTH)), rtol=0, atol=0)
    assert sorted(usual_order(LENGTH).tolist()) == list(range(LENGTH))
    assert not torch.allclose(model(tokens), model(tokens, when=ORDER), **TOLERANCE)
    # Only the visible tokens' order counts, and only their order.
    other = torch.where(tokens == V, torch.rand(BATCH, LENGTH, generator=generator(3)), 10 * ORDER + 3)
    torch.testing.assert_close(model(tokens, when=other), model(tokens, when=ORDER), rtol=0, atol=0)


class Uncached(nn.Module):
    """A sampling run without a cache: the order is written down in lists, and each call is a pass over everything."""

    def __init__(self, model: DDiT) -> None:
        super().__init__()
        self.model, self.vocab_size, self.mask_id = model, model.vocab_size, model.mask_id
        self.known: list[list[tuple[int, int]]] = []  # of each sequence, (position, token) in order

    def for_sampling(self) -> Uncached:
        return Uncached(self.model)

    def add(self, count: int, length: int) -> None:
        self.known += [[] for _ in range(count)]

    def leave(self, seat: int) -> None:
        self.known[seat] = self.known[-1]
        self.known.pop()

    def order(self, tokens: Tensor) -> Tensor:
        usual, mask_id = usual_order(tokens.shape[1]).tolist(), self.mask_id
        if not self.known:
            self.add(*tokens.shape)
        order = torch.full(tokens.shape, 10**6)
        for b, row in enumerate(tokens.tolist()):
            kept = [(at, token) for at, token in self.known[b] if row[at] == token]
            there = {at for at, _ in kept}
            new = [(at, token) for at, token in enumerate(row) if token != mask_id and at not in there]
            self.known[b] = kept + sorted(new, key=lambda pair: usual[pair[0]])
            for rank, (at, _) in enumerate(self.known[b]):
                order[b, at] = rank
        return order

    def forward(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, *, seats: slice | None = None
    ) -> Tensor:
        return self.model(tokens, rows=rows, when=self.order(tokens))  # type: ignore[no-any-return]


class Both(nn.Module):
    """The cache, compared with the network in each call at each masked row."""

    def __init__(self, model: DDiT) -> None:
        super().__init__()
        self.cached, self.plain = model.for_sampling(), Uncached(model)
        self.vocab_size, self.mask_id = model.vocab_size, model.mask_id
        self.compared = 0

    def add(self, count: int, length: int) -> None:
        self.cached.add(count, length)
        self.plain.add(count, length)

    def leave(self, seat: int) -> None:
        self.cached.leave(seat)
        self.plain.leave(seat)

    def forward(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, *, seats: slice | None = None
    ) -> Tensor:
        answer, expected = self.cached(tokens, time, rows), self.plain(tokens, time, rows)
        asked = torch.ones_like(tokens, dtype=torch.bool) if rows is None else rows
        masked = (tokens if rows is None else tokens.gather(1, asked)) == self.mask_id
        torch.testing.assert_close(answer[masked], expected[masked], **TOLERANCE)
        assert answer.isfinite().all(-1).logical_or((answer == -torch.inf).any(-1)).all()
        self.compared += int(masked.sum())
        return answer  # type: ignore[no-any-return]


def widths(model: DDiT) -> list[int]:
    """The number of entries of every pass from now on."""
    found: list[int] = []
    model.blocks[0].norm1.register_forward_hook(lambda _, inputs, __: found.append(inputs[0].shape[1]))
    return found


def ragged(seed: int = 1) -> Tensor:
    """From everything visible to nothing visible: prompts and masked parts of all sizes."""
    random = generator(seed)
    tokens = torch.randint(V, (LENGTH + 1, LENGTH), generator=random)
    rank = torch.rand(LENGTH + 1, LENGTH, generator=random).argsort(1)
    return torch.where(rank < torch.arange(LENGTH + 1).unsqueeze(1), V, tokens)


@pytest.mark.parametrize("convolution", [0, 3])
@pytest.mark.parametrize("how", PREDICTORS)
@pytest.mark.parametrize("planner", PLANS)
class TestTheCacheChangesNothing:
    def test_its_logits_are_the_networks_in_every_call(self, planner: str, how: str, convolution: int) -> None:
        both = Both(network(attention="order", convolution=convolution))
        options = {**PLANS[planner], "predict": PREDICTORS[how]}
        made = sample(both, canvas=ragged(), seed=3, **options)
        assert both.compared >= int(made.ncs.sum()) > 0

    def test_its_tokens_are_those_without_it_alone_and_in_any_batch(
        self, planner: str, how: str, convolution: int
    ) -> None:
        model = network(attention="order", convolution=convolution)
        options = {**PLANS[planner], "predict": PREDICTORS[how]}
        given, seeds = ragged(), list(range(20, 20 + LENGTH + 1))
        tokens = sample(model, canvas=given, seed=seeds, **options).tokens
        assert torch.equal(sample(Uncached(model), canvas=given, seed=seeds, **options).tokens, tokens)
        assert torch.equal(sample(model, canvas=given, seed=seeds, batch=3, **options).tokens, tokens)
        for i in (0, 4, LENGTH):
            alone = sample(model, canvas=given[i : i + 1], seed=seeds[i], **options).tokens
            assert torch.equal(alone[0], tokens[i])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0, 3]))
def test_any_edit_of_the_canvas_is_followed(seed: int, convolution: int) -> None:
    """Tokens appear, change, disappear and come back, several at a time, and sequences leave the batch."""
    random = generator(seed)
    both = Both(network(attention="order", convolution=convolution, layers=2))
    tokens = torch.full((3, LENGTH), V)
    for _ in range(6):
        edited = torch.rand(tokens.shape, generator=random) < torch.rand((), generator=random) * 0.6
        tokens = torch.where(edited, torch.randint(V + 1, tokens.shape, generator=random), tokens)
        tokens = tokens[: max(1, len(tokens) - int(torch.randint(4, (), generator=random) == 0))]
        asked = torch.randint(LENGTH, (len(tokens), int(torch.randint(1, 5, (), generator=random))), generator=random)
        both(tokens, rows=asked)


def test_a_step_feeds_the_last_groups_tokens_and_asks_for_this_ones() -> None:
    model, prompt = network(attention="order"), torch.full((2, LENGTH), V)
    prompt[:, 2:5] = 1
    run = model.for_sampling()
    assert isinstance(run, TwoStreamsCached) and not any("adaLN" in name for name in run.network.state_dict())
    sizes = widths(run.network)

    class Watched(nn.Module):
        vocab_size, mask_id = V, V

        def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
            return run(tokens, time, rows)  # type: ignore[no-any-return]

    sample(Watched(), canvas=prompt, seed=0)
    assert sizes == [4] + [2] * (LENGTH - 4)  # the prompt and the first masked position, then pairs
    run = model.for_sampling()
    sizes = widths(run.network)
    sample(Watched(), canvas=prompt, seed=0, plan=plan.parallel, steps=2)
    assert sizes == [6, 6]  # 3 + 3 and then 3 + 3
    tokens_and_slots = 2 * (3 * LENGTH + 1) * 8  # and the order in which a prompt is read
    assert run.bytes == 2 * 3 * 2 * (LENGTH + 1) * 24 * 4 + tokens_and_slots


def test_a_cache_is_for_one_run() -> None:
    model = network(attention="order")
    run = model.for_sampling()
    tokens = canvas(V)
    first = run(tokens)
    with pytest.raises(ValueError, match="each run"):
        run(torch.cat((tokens, tokens)))
    with pytest.raises(ValueError, match="each run"):
        run(tokens[:, :5])
    again = run.for_sampling()
    torch.testing.assert_close(again(tokens)[tokens == V], first[tokens == V], **TOLERANCE)
    torch.testing.assert_close(first[tokens == V], model(tokens)[tokens == V], **TOLERANCE)
    assert run(tokens[:, :0], rows=torch.zeros(3, 0, dtype=torch.int64)).shape == (3, 0, V)


@pytest.mark.parametrize("rule", RULES)
def test_the_distribution_of_a_sampler_is_the_mixture_over_orders(rule: str) -> None:
    """20,000 sequences of 3 tokens from 3 against the mean over the 6 orders of their chain rules, enumerated.

    A chi-square test with a false-alarm rate of 1e-6; a network whose tokens were rotated fails it.
    """
    model = network(attention=rule, convolution=3, vocab_size=3, mask_id=3, seed=5)
    with torch.no_grad():
        model.output_layer.linear.weight.mul_(3)
    every = torch.cartesian_prod(*[torch.arange(3)] * 3)
    law = torch.zeros(27, dtype=torch.float64)
    with torch.inference_mode():
        for order in permutations(range(3)):
            law += (-objective.along_order(model, every, torch.tensor(order).expand(27, 3))).exp() / 6
    assert abs(float(law.sum()) - 1) < 1e-9
    tokens = sample(model, num=20_000, length=3, seed=1).tokens
    assert chi_square(frequencies(tokens, 3), law) > FALSE_ALARM
    assert chi_square(frequencies((tokens + 1) % 3, 3), law) < FALSE_ALARM


def test_other_samplers_use_the_cache_too() -> None:
    model = network(attention="order", convolution=3)
    made = sample(model, num=3, length=LENGTH, steps=20, seed=2, sampler=Coupled())
    expected = sample(Uncached(model), num=3, length=LENGTH, steps=20, seed=2, sampler=Coupled())
    assert torch.equal(made.tokens, expected.tokens) and made.calls == expected.calls
