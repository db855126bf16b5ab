"""Looking ahead inside a block: the cached pass gives the network's own logits for every guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import generator
from tests.small_models import built
from unmask import sample
from unmask.networks.blocks import BlockDDiT
from unmask.networks.llama import LlamaConfig
from unmask.networks.llama_blocks import BlockLlama
from unmask.protocol import LooksAhead

V, BLOCK, LENGTH = 11, 4, 14  # the last block has two positions
LENGTHS = (14, 9, 13, 6)
CLOSE = {"atol": 5e-4, "rtol": 5e-4}  # of logits of size 10, in float32


def weighty(model: Any) -> Any:
    """Weights with which tokens depend on each other: about one guess in three is wrong."""
    random = generator(7)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            size = 0.3 if "mlp" in name or weights.ndim < 2 else 0.6
            weights.copy_(size * torch.randn(weights.shape, generator=random) + ("norm" in name))
    return model.eval()


def ours(**settings: Any) -> Any:
    sizes = {"vocab_size": V, "mask_id": V, "length": 16, "width": 24, "layers": 2, "heads": 3, "adaln": False}
    return weighty(built({**sizes, "attention": "block", "block": BLOCK, **settings}, BlockDDiT))


def llama(*, shifted: bool) -> Any:
    sizes = {"width": 24, "layers": 2, "heads": 4, "key_heads": 2, "hidden": 32, "length": 16}
    config = LlamaConfig(V, V, theta=1e4, eps=1e-6, block=BLOCK, shifted=shifted, **sizes)
    return weighty(BlockLlama(config))


NETWORKS: dict[str, Callable[[], Any]] = {
    "plain": ours,
    "convolution": lambda: ours(convolution=3),
    "wide convolution": lambda: ours(convolution=5),
    "llama": lambda: llama(shifted=False),
    "shifted llama": lambda: llama(shifted=True),
}


@pytest.fixture(params=NETWORKS.values(), ids=NETWORKS)
def model(request: pytest.FixtureRequest) -> Any:
    return request.param()


def test_each_guess_is_answered_as_by_the_network_itself(model: Any) -> None:
    """Sequences of four lengths, each in another block, with 0 to 3 guesses, in calls that build on each other."""
    clean = torch.randint(V, (len(LENGTHS), LENGTH), generator=generator(1))
    run = model.for_sampling()
    assert isinstance(run, LooksAhead)
    for length in LENGTHS:
        run.add(1, length)
    for turn in range(60):
        random = generator(turn)
        canvas, order, known = clean.clone(), torch.full((len(LENGTHS), BLOCK), -1), torch.zeros(len(LENGTHS))
        for i, length in enumerate(LENGTHS):
            first = int(torch.randint(-(-length // BLOCK), (), generator=random)) * BLOCK
            count = min(BLOCK, length - first)
            masked = torch.randperm(count, generator=random)[: int(torch.randint(count + 1, (), generator=random))]
            canvas[i, first + BLOCK :] = V
            canvas[i, length:] = V
            order[i, : len(masked)] = first + masked
            known[i] = int(torch.randint(max(len(masked), 1), (), generator=random))
            canvas[i, (first + masked)[int(known[i]) :]] = V
        logits = run.ahead(canvas, order, known.long(), seats=slice(0, len(LENGTHS)))
        for i, length in enumerate(LENGTHS):
            for k, position in enumerate(order[i].tolist()):
                if position < 0:
                    continue
                shown = canvas[i : i + 1, :length].clone()
                shown[0, order[i, k:][order[i, k:] >= 0]] = V
                expected = model(shown, rows=torch.tensor([[position]]))[0, 0]
                torch.testing.assert_close(logits[i, k], expected, **CLOSE)
        if turn % 10 == 9:  # an ordinary call in between, and a token that changes
            rows = torch.zeros(len(LENGTHS), 1, dtype=torch.int64)
            run(torch.full_like(clean, V), rows=rows, seats=slice(0, len(LENGTHS)))
            clean[turn % len(LENGTHS), turn % 5] = turn % V


@pytest.mark.parametrize("window", [2, 3, "auto"])
def test_the_tokens_are_those_of_one_call_each(model: Any, window: Any) -> None:
    canvas = torch.full((60, LENGTH), V)
    canvas[::3, :6] = torch.randint(V, (20, 6), generator=generator(2))
    base = sample(model, canvas=canvas, seed=3)
    ahead = sample(model, canvas=canvas, seed=3, ahead=window, batch=25)
    assert torch.equal(ahead.tokens, base.tokens)
    if window != "auto":
        assert float(ahead.nfe.double().mean()) < 0.9 * float(base.nfe.double().mean())
        assert sum(int(step.corrected.sum()) for step in ahead.trace) > 30


def test_a_failed_pass_leaves_a_cache_that_is_right(model: Any) -> None:
    clean = torch.randint(V, (2, LENGTH), generator=generator(4))
    clean[:, 8:] = V
    run, order = model.for_sampling(), torch.tensor([[9, 8, 11], [8, 10, 9]])
    run(clean, rows=order)
    block = run.network.blocks[-1]
    mix, block.mix = block.mix, lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run.ahead(clean.roll(1, 0), order, torch.tensor([0, 0]))
    block.mix = mix
    for canvas in (clean.roll(1, 0), clean):
        expected: Tensor = model(canvas, rows=order)
        torch.testing.assert_close(run.ahead(canvas, order, torch.tensor([0, 0])), expected, **CLOSE)
