"""Adapters of a left-to-right network: in turn it is that network, out of turn it sees its block, or everything."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import unmask
from tests.helpers import generator
from tests.networks.test_ddit import TOLERANCE
from tests.small_models import small
from unmask.networks.adapters import AdaptersConfig
from unmask.networks.cache.adapters import out_of_turn
from unmask.networks.causal import Causal, twin
from unmask.networks.ddit import DDiT
from unmask.networks.kinds import described
from unmask.processes import Masked

V, LENGTH, BLOCK, START = 7, 8, 4, 3
SIZES: dict[str, Any] = {"vocab_size": V, "mask_id": V, "length": LENGTH, "width": 16, "layers": 2, "heads": 2}
PLAIN: dict[str, Any] = {**SIZES, "adaln": False}
BLOCKED: dict[str, Any] = {**PLAIN, "attention": "block", "block": BLOCK}
adapted = partial(small, DDiT, **BLOCKED, adapters=3, start=START)
KINDS: dict[str, dict[str, Any]] = {
    "blocks": {"attention": "block", "block": BLOCK, "start": START},
    "sequence": {},
    "sequence, convolution": {"convolution": 3},
    "sequence, start": {"start": START, "mlp": "swiglu"},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def made(kind: str) -> DDiT:
    return small(DDiT, **PLAIN, **KINDS[kind], adapters=3)


def texts(batch: int = 4) -> Tensor:
    made = torch.randint(V, (batch, LENGTH), generator=generator(1))
    made[:, 0] = START
    return made


def left_to_right(model: DDiT) -> Causal:
    """The same weights without the adapters."""
    state = {k: v for k, v in model.state_dict().items() if "adapters" not in k and k != "own_token.weight"}
    return Causal.built(twin(model.config), state).eval()


@kinds
@pytest.mark.parametrize("known", range(LENGTH))
def test_filled_from_left_to_right_it_is_the_left_to_right_network(known: int, kind: str) -> None:
    model, x = made(kind), texts()
    canvas = torch.where(torch.arange(LENGTH) < known, x, V)
    assert any(parameter.abs().sum() > 0 for name, parameter in model.named_parameters() if "adapters" in name)
    with torch.no_grad():
        if model.first_token is None:
            expected = left_to_right(model)(x)[:, known]
        elif known > 0:
            expected = left_to_right(model).next_logits(x)[:, known - 1]
        else:
            return  # the first token is known
        torch.testing.assert_close(model(canvas)[:, known], expected, **TOLERANCE)
        torch.testing.assert_close(model.for_sampling()(canvas)[:, known], expected, **TOLERANCE)


@kinds
def test_the_cache_answers_as_the_network_does_whatever_changes(kind: str) -> None:
    model, x = made(kind), texts()
    cached, canvas = model.for_sampling(), x.clone()
    random = generator(3)
    for call in range(60):
        change = torch.rand(x.shape, generator=random)
        if call % 3 == 0:  # from left to right, each sequence at its own place
            there = torch.arange(LENGTH) < torch.randint(1, LENGTH, (len(x), 1), generator=random)
            canvas = torch.where(there, x, V)
        else:
            canvas = torch.where(change < 0.2, V, torch.where(change < 0.5, x, canvas))
        canvas[:, 0] = x[:, 0]
        masked = canvas == V
        first = torch.where(masked, torch.arange(LENGTH), LENGTH - 1).amin(1)
        block = model.config.block or LENGTH
        asked = masked & (torch.arange(LENGTH) // block == (first // block).unsqueeze(1))
        row, at = asked.nonzero(as_tuple=True)
        with torch.no_grad():
            alone = first.unsqueeze(1)
            torch.testing.assert_close(
                cached(canvas, rows=alone)[masked.any(1)], model(canvas, rows=alone)[masked.any(1)], **TOLERANCE
            )
            torch.testing.assert_close(cached(canvas)[row, at], model(canvas)[row, at], **TOLERANCE)


@kinds
def test_left_to_right_is_the_default_order_and_its_likelihood_exact(kind: str) -> None:
    model, x = made(kind), texts()
    drawn = unmask.sample(model, num=6, length=LENGTH, seed=4)
    wanted = unmask.sample(model, num=6, length=LENGTH, seed=4, plan=unmask.plan.left_to_right)
    assert drawn.tokens.equal(wanted.tokens)
    starts = [] if model.first_token is None else [0]
    for step in drawn.trace[: LENGTH - len(starts)]:
        assert len(set(step.positions.flatten().tolist())) == 1, "all sequences are at the same place"
    random = unmask.sample(model, num=6, length=LENGTH, seed=4, plan=unmask.plan.first_hitting)
    assert not drawn.tokens.equal(random.tokens)
    twin = left_to_right(model)
    with torch.no_grad():
        log_p = (twin(x) if model.first_token is None else twin.next_logits(x).roll(1, 1)).double().log_softmax(-1)
    nats = -log_p.gather(2, x.unsqueeze(2)).squeeze(2)[:, len(starts) :].sum(1)
    found = unmask.nelbo(model, x, by="left-to-right")
    torch.testing.assert_close(found.nats, nats, rtol=1e-5, atol=1e-5)
    assert found.errors.tolist() == [0.0] * len(x)


@pytest.mark.parametrize("plan", [None, unmask.plan.first_hitting])
@pytest.mark.parametrize("window", [2, 5, "auto"])
def test_looking_ahead_gives_the_same_tokens_in_no_more_calls(window: Any, plan: Any) -> None:
    model = made("sequence, convolution")
    options: dict[str, Any] = {"num": 5, "length": LENGTH, "seed": 2, "plan": plan}
    expected, found = unmask.sample(model, **options), unmask.sample(model, ahead=window, **options)
    assert torch.equal(found.tokens, expected.tokens) and bool((found.nfe <= expected.nfe).all())


def test_out_of_turn_a_sequence_sees_everything() -> None:
    model, x = made("sequence, convolution"), texts()
    canvas = x.clone()
    canvas[:, [2, 5]] = V
    with torch.no_grad():
        before = model(canvas)
        canvas[:, LENGTH - 1] = (canvas[:, LENGTH - 1] + 1) % V
        changed = (model(canvas) - before).abs().amax(-1) > 1e-6
    assert changed[:, [2, 5]].all()
    assert not changed[:, :2].any()  # what is in turn does not


def test_lengths_are_those_of_sequences_alone() -> None:
    for kind in KINDS:
        model, x = made(kind), texts()
        canvas = x.masked_fill(torch.rand(x.shape, generator=generator(5)) < 0.5, V)
        canvas[:, 0] = x[:, 0]
        lengths = torch.tensor([8, 5, 3, 6])
        with torch.no_grad():
            together = model(canvas, lengths=lengths)
            for i, n in enumerate(lengths.tolist()):
                torch.testing.assert_close(together[i, :n], model(canvas[i : i + 1, :n])[0], **TOLERANCE)


def test_out_of_turn_are_those_behind_a_masked_position_or_before_a_visible_one() -> None:
    for masked in product((False, True), repeat=BLOCK):
        wanted = [any(masked[:i]) or (masked[i] and not all(masked[i + 1 :])) for i in range(BLOCK)]
        tokens = torch.where(torch.tensor(masked), V, 1).unsqueeze(0)
        assert out_of_turn(tokens, V, BLOCK).tolist() == [wanted]
        beside = torch.cat((torch.full_like(tokens, V), tokens), 1)  # another block changes nothing
        assert out_of_turn(beside, V, BLOCK)[:, BLOCK:].tolist() == [wanted]
    short = torch.tensor([[1, V, 1, 1, V, 1]])
    assert out_of_turn(short, V, BLOCK).tolist() == [[False, True, True, True, True, True]]
    ends = torch.arange(6) < 5
    assert out_of_turn(short, V, BLOCK, ends.unsqueeze(0)).tolist() == [[False, True, True, True, False, True]]


def test_adapters_change_only_what_is_out_of_turn() -> None:
    model, x = adapted(), texts()
    canvas = x.clone()
    canvas[:, [2, 5, 6]] = V  # 2 has a visible token behind it, 6 comes after 5
    with torch.no_grad():
        before = model(canvas)
        for name, parameter in model.named_parameters():
            if "adapters" in name or name == "own_token.weight":
                parameter.mul_(-1.5)
        changed = (model(canvas) - before).abs().amax(-1) > 1e-5
    assert changed[:, [2, 6]].all()
    assert not changed[:, :2].any()


def test_the_first_token_is_known() -> None:
    model, x = adapted(), texts()
    canvas = x.masked_fill(torch.rand(x.shape, generator=generator(2)) < 0.7, V)
    canvas[:, 0] = V
    rows = torch.tensor([[1, 0]]).expand(len(x), -1)
    with torch.no_grad():
        for logits in (
            model(canvas)[:, 0],
            model(canvas, rows=rows)[:, 1],
            model.for_sampling()(canvas, rows=rows)[:, 1],
        ):
            assert logits.softmax(-1)[:, START].tolist() == [1.0] * len(x)
        known = canvas.clone()
        known[:, 0] = START
        torch.testing.assert_close(model(canvas)[:, 1:], model(known)[:, 1:])
        for network in (model, model.for_sampling()):
            with pytest.raises(ValueError, match="begins with the id 3, got 5"):
                network(torch.full((1, LENGTH), 5))


def test_a_canvas_that_begins_otherwise_is_refused_before_the_network_is_called() -> None:
    canvas = torch.full((1, LENGTH), V)
    canvas[0, 0] = 5
    with pytest.raises(ValueError, match="begins with the id 3, got 5: put it first"):
        next(iter(unmask.stream(Silent(), canvas=canvas)))


class Silent:
    """What sampling must know of a network, which fails if it is called."""

    vocab_size, mask_id, process = V, V, Masked(first_token=START)

    def __call__(self, tokens: Tensor, time: Tensor | None = None) -> Tensor:
        raise AssertionError


def test_configs_that_make_no_sense_are_refused() -> None:
    for wrong, says in (
        ({**BLOCKED, "start": 3}, "start=3: a network of the kind 'blocks' has no such setting"),
        ({**BLOCKED, "adapters": 3, "start": V}, "start is the id"),
        ({**BLOCKED, "adapters": 3, "start": -2}, "start is the id"),
        ({**BLOCKED, "adapters": -3}, "a rank of at least 1"),
        ({**PLAIN, "attention": "order", "adapters": 3}, "attention='order': a network of the kind 'adapters'"),
        ({**PLAIN, "self_conditioning": True, "adapters": 3}, "self_conditioning=True: a network of the kind"),
        ({**BLOCKED, "adaln": True, "adapters": 3, "start": 3}, "adaln=False"),
        ({**BLOCKED, "convolution": 3, "adapters": 3, "start": 3}, "take no convolution"),
    ):
        with pytest.raises(ValueError, match=says):
            described(wrong)
    with pytest.raises(ValueError, match="Causal takes a TransformerConfig, got a AdaptersConfig"):
        Causal(AdaptersConfig(**PLAIN, block=BLOCK, adapters=3, start=3))
