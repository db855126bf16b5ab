"""Sequences of several lengths in one call: each gets what it gets alone, whatever follows its end."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.networks import test_causal, test_ddit
from tests.networks.test_ddit import TOLERANCE, V
from unmask.network import logits_of
from unmask.networks.cache.rows import AskedRows
from unmask.networks.llama import Llama, LlamaConfig
from unmask.networks.self_conditioned import SelfConditioned
from unmask.protocol import Caches, takes_lengths

LENGTHS = (9, 4, 1, 7)
WIDEST = max(LENGTHS)


def canvases(seed: int) -> tuple[list[Tensor], Tensor]:
    """Half-masked canvases, each alone, and all of them with rubbish behind their ends."""
    drawn = torch.Generator().manual_seed(seed)
    padded = torch.randint(0, V, (len(LENGTHS), WIDEST), generator=drawn)
    padded[torch.rand(padded.shape, generator=drawn) < 0.5] = V
    return [padded[i : i + 1, :length] for i, length in enumerate(LENGTHS)], padded


# By order there is no conditioning, and what is fast has a cache: see below.
KINDS = [(a, c, f) for a in ("bidirectional", "visible") for c in ("none", "ratio", "time") for f in (False, True)]


@pytest.mark.parametrize("convolution", [0, 3])
@pytest.mark.parametrize(("attention", "conditioning", "fast"), [*KINDS, ("order", "none", False)])
def test_the_networks_answer_as_if_each_were_alone(
    fast: bool, convolution: int, attention: str, conditioning: str
) -> None:
    near = {"neighbours": convolution // 2} if attention == "order" else {"convolution": convolution}
    made = test_ddit.network(attention=attention, conditioning=conditioning, **near)
    run: Any = AskedRows(made) if fast else made
    assert takes_lengths(run)
    time = torch.linspace(0.2, 0.9, len(LENGTHS))
    rows, lengths = torch.tensor([[0, n - 1, n // 2] for n in LENGTHS]), torch.tensor(LENGTHS)
    with torch.inference_mode():
        for seed in range(4):  # the fast one remembers its first projections: a call must not feel the last one
            alone, padded = canvases(seed)
            truth = torch.cat([made(x, time[i : i + 1], rows[i : i + 1]) for i, x in enumerate(alone)])
            torch.testing.assert_close(run(padded, time, rows, lengths=lengths), truth, **TOLERANCE)
            real = torch.tensor([[True, True, n % 2 == 0] for n in LENGTHS])
            found = logits_of(run, padded, time, rows, real, lengths=lengths)
            torch.testing.assert_close(found, truth[real], **TOLERANCE)
            with pytest.raises(AssertionError):  # what is behind the ends would be felt
                torch.testing.assert_close(run(padded, time, rows)[1:], truth[1:], **TOLERANCE)


def test_llamas_network_too() -> None:
    torch.manual_seed(0)
    for shifted in (False, True):
        config = LlamaConfig(V, V, 8, 16, 2, 4, 2, 32, 10000.0, 1e-5, shifted=shifted)
        made, (alone, padded) = Llama(config).eval(), canvases(1)
        torch.nn.init.normal_(made.embed.weight)  # it is made without numbers, to be loaded
        rows = torch.tensor([[0, n - 1] for n in LENGTHS])
        truth = torch.cat([made(x, rows=rows[i : i + 1]) for i, x in enumerate(alone)])
        assert takes_lengths(made)
        torch.testing.assert_close(made(padded, rows=rows, lengths=torch.tensor(LENGTHS)), truth, **TOLERANCE)
    assert not takes_lengths(Llama(LlamaConfig(V, V, 8, 16, 1, 2, 2, 32, 10000.0, 1e-5, causal=True)))


@pytest.mark.parametrize("convolution", [0, 3])
@pytest.mark.parametrize("kind", ["any-order", "left-to-right", "self-conditioned"])
def test_sequences_of_any_length_come_and_go(kind: str, convolution: int) -> None:
    """Each beside a cache of its own, which sees that sequence alone."""
    if kind == "left-to-right":
        made: Any = test_causal.network(vocab_size=V, mask_id=V, convolution=convolution)
    elif kind == "any-order":
        made = test_ddit.network(attention="order", neighbours=convolution // 2)
    else:
        made = test_ddit.network(self_conditioning=True, convolution=convolution)
    run, choose, live = made.for_sampling(), random.Random(0), []
    assert isinstance(run, Caches) and takes_lengths(run) and (kind != "self-conditioned" or SelfConditioned)
    longest = shortest = 0
    for _ in range(120):
        if len(live) < 6 and choose.random() < 0.4:
            length = choose.choice((3, 5, 8, 13, 40))
            prompt = choose.randrange(length)
            x = torch.tensor([choose.randrange(V) if p < prompt else V for p in range(length)])
            run.add(1, length)
            own = made.for_sampling()
            own.add(1, length)
            live.append((x, own))
        if not live:
            continue
        holes = [[p for p in range(len(x)) if x[p] == V] for x, _ in live]
        at = [min(where) if kind == "left-to-right" else choose.choice(where) for where in holes]
        rows = torch.tensor(at).unsqueeze(1)
        widest = max(len(x) for x, _ in live)
        tokens = torch.full((len(live), widest), V)
        for i, (x, _) in enumerate(live):
            tokens[i, : len(x)] = x
        found = run(tokens, rows=rows, seats=slice(0, len(live)))
        truth = torch.cat([own(x.unsqueeze(0), rows=rows[i : i + 1]) for i, (x, own) in enumerate(live)])
        torch.testing.assert_close(found, truth, **TOLERANCE)
        for i, (x, _) in enumerate(live):
            x[at[i]] = choose.randrange(V)
        for i in reversed(range(len(live))):
            if not (live[i][0] == V).any() or choose.random() < 0.05:
                live[i] = live[-1]
                live.pop()
                run.leave(i)
        longest, shortest = max(longest, run.canvas), run.canvas if run.canvas < longest else shortest
    assert longest >= 40 and 0 < shortest < longest, "memory was made, and given back"
