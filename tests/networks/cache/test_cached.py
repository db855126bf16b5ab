"""The caches, in any order and left to right: the network's logits, whichever sequences come and go or are guessed."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.networks import test_any_order, test_causal
from tests.networks.test_ddit import TOLERANCE, V
from unmask.checkpoints.mdlm_ar import Given
from unmask.networks.any_order import OneStream
from unmask.networks.cache.any_order import OneStreamCached
from unmask.networks.cache.in_turn import LeftToRightCached
from unmask.networks.causal import Causal
from unmask.protocol import Caches, LooksAhead

LENGTH = 9
CONVOLUTIONS = pytest.mark.parametrize("convolution", [0, 3])


def any_order(neighbours: int = 0, **changes: Any) -> tuple[OneStream, OneStreamCached]:
    made = test_any_order.network(neighbours=neighbours, **changes)
    run = made.for_sampling()
    assert isinstance(run, OneStreamCached) and isinstance(run, Caches) and isinstance(run, LooksAhead)
    return made, run


def left_to_right(convolution: int = 0, given: bool = False) -> tuple[Causal, LeftToRightCached]:
    made = test_causal.network(vocab_size=V, mask_id=V, convolution=convolution)
    if given:
        plain, made = made, Given(made.config, first=4).eval()
        made.load_state_dict(plain.state_dict())
    run = made.for_sampling()
    assert isinstance(run, LeftToRightCached) and isinstance(run, LooksAhead)
    return made, run


@pytest.mark.parametrize("neighbours", [0, 2])
@torch.inference_mode()
def test_sequences_come_and_go_in_any_order(neighbours: int) -> None:
    inner, run = any_order(neighbours)
    choose, live = random.Random(0), []
    for _ in range(40):
        if len(live) < 5 and choose.random() < 0.5:
            run.add(1, LENGTH)
            live.append((torch.full((LENGTH,), V), []))
            run(live[-1][0].unsqueeze(0), rows=one(choose.randrange(LENGTH)), seats=slice(len(live) - 1, len(live)))
        if not live:
            continue
        for x, order in live:
            holes = [p for p in range(LENGTH) if p not in order]
            for position in choose.sample(holes, min(len(holes) - 1, choose.randrange(3))):
                x[position] = choose.randrange(5)
                order.append(position)
        rows = torch.tensor([[choose.choice([p for p in range(LENGTH) if p not in order])] for _, order in live])
        tokens = torch.stack([x for x, _ in live])
        found = run(tokens, rows=rows)
        torch.testing.assert_close(found, inner(tokens, rows=rows, when=run.when), **TOLERANCE)
        if choose.random() < 0.4 or len(live[0][1]) > LENGTH - 3:
            run.leave(0)
            live[0] = live[-1]
            live.pop()


@CONVOLUTIONS
@pytest.mark.parametrize("given", [False, True])
@torch.inference_mode()
def test_sequences_come_and_go_left_to_right_with_prompts_of_all_lengths_in_one_call(
    given: bool, convolution: int
) -> None:
    inner, run = left_to_right(convolution, given)
    choose, live = random.Random(0), []
    for _ in range(60):
        while len(live) < 4 and choose.random() < 0.5:
            known = choose.randrange(6)
            x = torch.full((LENGTH,), V)
            x[:known] = torch.randint(0, V, (known,))
            if known < 4 and choose.random() < 0.5:
                x[7] = 3  # after the masked positions, to be read when these are filled
            run.add(1, LENGTH)
            live.append(x)
        if not live:
            continue
        tokens = torch.stack(live)
        rows = torch.tensor([[x.tolist().index(V)] for x in live])
        torch.testing.assert_close(run(tokens, rows=rows), inner(tokens, rows=rows), **TOLERANCE)
        for x, at in zip(live, rows.squeeze(1).tolist(), strict=True):
            x[at] = choose.randrange(V)
        while (seat := next((i for i, x in enumerate(live) if V not in x.tolist()), None)) is not None:
            run.leave(seat)
            live[seat] = live[-1]
            live.pop()


@torch.inference_mode()
def test_seats_of_those_who_left_are_given_back() -> None:
    _, run = any_order()
    run.add(1, LENGTH)
    alone = run.bytes
    for _ in range(8):
        run.add(1, LENGTH)
    assert run.bytes == 16 * alone
    run(torch.zeros(9, LENGTH, dtype=torch.int64), rows=torch.zeros(9, 1, dtype=torch.int64))
    for _ in range(8):
        run.leave(0)
    assert run.bytes <= 2.5 * alone and run.taken == 1  # a row behind a full canvas needs a slot more
    run.add(1, LENGTH)
    assert run.when[1].tolist() == [LENGTH] * LENGTH, "nothing is remembered of who sat there"
    run.add(1, LENGTH + 1)
    with pytest.raises(ValueError, match="up to 10 positions"):
        run(torch.zeros(3, LENGTH, dtype=torch.int64), rows=torch.zeros(3, 1, dtype=torch.int64), seats=slice(0, 3))
    run.leave(2)
    with pytest.raises(ValueError, match="seat must be in"):
        run.leave(2)
    with pytest.raises(ValueError, match="tokens for seats"):
        run(torch.zeros(2, LENGTH, dtype=torch.int64), seats=slice(0, 1))


@pytest.mark.parametrize("kind", ["any order", "left to right"])
@torch.inference_mode()
def test_a_call_that_fails_has_remembered_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = any_order(3)[1] if kind == "any order" else left_to_right(3)[1]
    other: Any = any_order(3)[1] if kind == "any order" else left_to_right(3)[1]
    canvases = []
    for text in ([1, 2, 3], [1, 5, 3, 4], [1, 2, 3, 4, 5]):
        canvases.append(torch.tensor([text + [V] * (LENGTH - len(text))] * 2))
    first, changed, grown = canvases
    rows = [torch.full((2, 1), int((x[0] != V).sum())) for x in canvases]
    for network in (run, other):
        network(first, rows=rows[0])
    with monkeypatch.context() as patch:
        patch.setattr(run.network.blocks[-1], "feed_forward", failing)
        with pytest.raises(RuntimeError, match="no memory"):
            run(changed, rows=rows[1])  # by now the keys of earlier blocks are those of the changed canvas
    torch.testing.assert_close(run(grown, rows=rows[2]), other(grown, rows=rows[2]), **TOLERANCE)


def failing(*_: Any) -> Tensor:
    raise RuntimeError("no memory")


def ahead(
    run: Any, tokens: Tensor, windows: list[list[int]], width: int, choose: random.Random
) -> tuple[Tensor, Tensor, Tensor]:
    """The logits of windows of which a random part is guessed, the canvases with the guesses, and their number."""
    known = torch.tensor([choose.randrange(len(window) + 1) for window in windows])
    order = torch.tensor([window + [-1] * (width - len(window)) for window in windows])
    guessed = tokens.clone()
    for b, window in enumerate(windows):
        for position in window[: int(known[b])]:
            guessed[b, position] = choose.randrange(V)
    found = run.ahead(guessed, order, known)
    assert found.shape == (len(tokens), width, V)
    return found, guessed, known


@CONVOLUTIONS
@pytest.mark.parametrize("given", [False, True])
@torch.inference_mode()
def test_a_window_of_guesses_left_to_right(given: bool, convolution: int) -> None:
    inner, run = left_to_right(convolution, given)
    choose, batch = random.Random(5), 3
    tokens = torch.full((batch, LENGTH), V)
    tokens[2, :3] = 1
    tokens[1, 6] = 2  # given in advance
    for _ in range(12):
        width = choose.randrange(1, 6)
        windows = [[p for p in range(LENGTH) if row[p] == V][:width] for row in tokens.tolist()]
        found, guessed, known = ahead(run, tokens, windows, width, choose)
        expected = inner(guessed)
        for b, window in enumerate(windows):
            for k, position in enumerate(window):
                there = position if k <= known[b] else window[min(int(known[b]), len(window) - 1)]
                torch.testing.assert_close(found[b, k], expected[b, there], **TOLERANCE)
        for b, window in enumerate(windows):
            for position in window[: choose.randrange(len(window) + 1)]:
                tokens[b, position] = guessed[b, position] if guessed[b, position] != V else 1


@pytest.mark.parametrize("parts", [[1] * LENGTH, [4, 1, 4], [LENGTH], [2, 3, 4]], ids=str)
@pytest.mark.parametrize("changes", test_causal.VARIANTS, ids=str)
@torch.inference_mode()
def test_a_left_to_right_cache_is_exact_in_any_portions(changes: dict[str, object], parts: list[int]) -> None:
    model = test_causal.network(**changes)
    run, tokens = model.for_sampling(), test_causal.text(2, LENGTH, mask_id=model.mask_id)
    whole, end = model(tokens), 0
    for size in parts:
        end += size
        canvas = torch.where(torch.arange(LENGTH) < end - 1, tokens, model.mask_id)
        torch.testing.assert_close(run(canvas, rows=torch.full((2, 1), end - 1))[:, 0], whole[:, end - 1], **TOLERANCE)
    torch.testing.assert_close(run(tokens), whole, **TOLERANCE)  # all rows, read again
    rows = torch.tensor([[0, 8, 4], [3, 3, 1]])
    torch.testing.assert_close(run(tokens, rows=rows), model(tokens, rows=rows), **TOLERANCE)


def one(position: int) -> Tensor:
    return torch.tensor([[position]])
