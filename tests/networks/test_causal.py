"""The left-to-right twin: what it may see, the cache against no cache, and its samples against its distribution."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import unmask
from tests.helpers import FALSE_ALARM, chi_square, frequencies
from tests.small_models import small
from unmask.network import logits_at
from unmask.networks.causal import Causal, twin
from unmask.networks.config import TransformerConfig, blocks_of
from unmask.networks.ddit import DDiT, preset
from unmask.processes import LeftToRight
from unmask.protocol import check

V, LENGTH = 7, 10
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
VARIANTS = [
    {},
    {"mask_id": 3},
    {"convolution": 3},
    {"learned_positions": True},
    {"convolution": 5, "layers": 1},
    {"adaln": True, "convolution": 3},
    {"tie_embeddings": True, "mask_id": 0},
    {"norm_bias": True},
]
ROWS = torch.tensor([[0, 9, 4], [3, 3, 1]])


network = partial(
    small,
    Causal,
    std=0.15,
    vocab_size=V,
    mask_id=V,
    length=LENGTH,
    width=24,
    layers=3,
    heads=3,
    cond_dim=16,
    adaln=False,
)


def text(batch: int = 2, length: int = LENGTH, mask_id: int = V, seed: int = 1) -> Tensor:
    tokens = torch.randint(V, (batch, length), generator=torch.Generator().manual_seed(seed))
    return torch.where(tokens == mask_id, (mask_id + 1) % V, tokens)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_position_l_depends_on_the_tokens_before_it_and_on_all_of_them(changes: dict[str, object]) -> None:
    model = network(**changes)
    tokens = text(1, mask_id=model.mask_id)
    before = model(tokens)
    assert before.shape == (1, LENGTH, V)
    for position in range(LENGTH):
        changed = tokens.clone()
        changed[0, position] = (changed[0, position] + 1) % V
        finite = before[0, 0].isfinite()
        moved = (model(changed) - before)[0, :, finite].abs().amax(-1)
        assert (moved[: position + 1] == 0).all() and (moved[position + 1 :] > 1e-6).all()
    assert (model.mask_id == V) == bool(before.isfinite().all())


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_rows_and_packed_are_the_full_answers_at_those_positions(changes: dict[str, object]) -> None:
    model = network(**changes)
    tokens = text(mask_id=model.mask_id)
    full = model(tokens)
    check(model)
    torch.testing.assert_close(model(tokens, rows=ROWS), full.gather(1, ROWS[..., None].expand(-1, -1, V)), **TOLERANCE)
    torch.testing.assert_close(logits_at(model, tokens, None, ROWS), model(tokens, rows=ROWS))
    where = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(3)) < 0.4
    torch.testing.assert_close(model.packed(tokens, None, where), full[where], **TOLERANCE)


@pytest.mark.parametrize("mask_id", [V, 3])
def test_the_mask_is_the_start_token(mask_id: int) -> None:
    model = network(mask_id=mask_id)
    tokens = text(mask_id=mask_id)
    inputs = torch.cat((torch.full((2, 1), mask_id), tokens), 1)
    torch.testing.assert_close(model.next_logits(inputs)[:, :-1], model(tokens), **TOLERANCE)
    start = unmask.sample(model, length=1, temperature=0.0).tokens
    assert int(start) == int(model.next_logits(torch.tensor([[mask_id]])).argmax())


def test_a_masked_rest_does_not_reach_the_first_masked_row() -> None:
    model, tokens = network(), text()
    canvas = tokens.clone()
    canvas[:, 6:] = V
    torch.testing.assert_close(model(canvas)[:, :7], model(tokens)[:, :7], rtol=0, atol=0)


class Uncached:
    """The plain network in every call."""

    process = LeftToRight()

    def __init__(self, model: Causal) -> None:
        self.model, self.vocab_size, self.mask_id = model, model.vocab_size, model.mask_id

    def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        return self.model.eval()(tokens, time, rows)  # type: ignore[no-any-return]


@pytest.mark.parametrize("known", [0, 1, 4])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_sampling_with_the_cache_is_sampling_without(changes: dict[str, object], known: int) -> None:
    model = network(**changes).train()
    prompt = text(2, known, mask_id=model.mask_id)
    canvas = functional.pad(prompt, (0, LENGTH - known), value=model.mask_id)
    options: dict[str, Any] = {"canvas": canvas, "seed": 3, "temperature": 0.9, "top_k": 5, "top_p": 0.95}
    tokens = unmask.sample(model, **options).tokens
    assert model.training and not tokens.is_inference() and torch.equal(tokens[:, :known], prompt)
    assert (tokens != model.mask_id).all() and (tokens < V).all()
    assert torch.equal(unmask.sample(Uncached(model), **options).tokens, tokens)


def test_a_sequence_does_not_depend_on_its_batch() -> None:
    model, canvas = network(), text(4)
    together = unmask.sample(model, num=4, seed=5).tokens
    assert together.shape == (4, LENGTH)
    assert torch.equal(unmask.sample(model, num=4, seed=5, batch=1).tokens, together)
    for i, known in enumerate((6, 2, 0, 9)):  # prompts of all lengths in one call
        canvas[i, known:] = V
    together = unmask.sample(model, canvas=canvas, seed=[1, 2, 3, 4]).tokens
    for i in range(4):
        assert torch.equal(unmask.sample(model, canvas=canvas[i : i + 1], seed=[i + 1]).tokens[0], together[i])


def test_samples_follow_the_model_s_distribution() -> None:
    """4,000 sequences of 3 tokens over 3 ids against the 27 exact probabilities: chi-square, false alarms 1e-6."""
    model = network(vocab_size=3, mask_id=3)
    outcomes = torch.tensor(list(product(range(3), repeat=3)))
    with torch.no_grad():
        log_p = torch.log_softmax(model(outcomes).double(), -1).gather(-1, outcomes[..., None]).sum((1, 2))
    probabilities = log_p.exp()
    assert abs(float(probabilities.sum()) - 1) < 1e-6 and probabilities.max() > 2 * probabilities.min()
    counts = frequencies(unmask.sample(model, num=4000, length=3, seed=11).tokens, 3)
    assert chi_square(counts, probabilities) > FALSE_ALARM
    assert chi_square(counts, torch.full((27,), 1 / 27)) < FALSE_ALARM  # and the test has enough power


def test_edges_and_refusals() -> None:
    model = network()
    assert unmask.sample(model, num=2, length=0).tokens.shape == (2, 0)
    assert unmask.sample(model, num=0, length=4).tokens.shape == (0, 4)
    prompt = text(2, 4)
    assert torch.equal(unmask.sample(model, canvas=prompt).tokens, prompt)
    assert model(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0, V)
    assert unmask.sample(model, length=2 * LENGTH, temperature=0.0).tokens.shape == (1, 2 * LENGTH)
    with pytest.raises(ValueError, match="int64"):
        model(torch.zeros(2, 3))
    for changes in ({"conditioning": "ratio", "adaln": True}, {"self_conditioning": True}):
        with pytest.raises(ValueError, match="'causal' has no such setting"):
            network(**changes)


def test_the_twin_is_the_ddit_without_adaln_and_with_it_the_same_size() -> None:
    config = preset("small", 50258, 1024, mask_id=50257, conditioning="time")
    with torch.device("meta"):
        ddit, baseline = DDiT(config), Causal(twin(config))
        full = Causal(blocks_of(config, TransformerConfig))
    expected = {name: p.shape for name, p in ddit.named_parameters() if "adaLN" not in name and "sigma_map" not in name}
    assert {name: p.shape for name, p in baseline.named_parameters()} == expected
    assert sum(p.numel() for p in full.parameters()) == 169_627_218


def test_it_trains_by_its_exact_likelihood_and_samples_what_it_learned() -> None:
    """Sequences that count up from a random token: all but the first are certain, and 80 steps are enough to see it."""
    torch.manual_seed(0)
    model = Causal(replace(network().config, width=48, dropout=0.0))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(80):
        x0 = (torch.randint(V, (32, 1)) + torch.arange(LENGTH)) % V
        loss = unmask.objective.left_to_right(model, x0).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 2.5  # log 7 = 1.95 is the least that there is
    tokens = unmask.sample(model, num=5, seed=0, temperature=0.0).tokens
    assert torch.equal(tokens, (tokens[:, :1] + torch.arange(LENGTH)) % V)
