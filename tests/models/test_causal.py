"""The left-to-right twin: what may see what, the cache against no cache, and its samples against its own law."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import unmask
from tests.helpers import FALSE_ALARM, chi_square, frequencies
from unmask import draw
from unmask.models.causal import Causal, twin
from unmask.models.ddit import DDiT, DDiTConfig, preset
from unmask.protocol import check, logits_at
from unmask.samplers.autoregressive import generate
from unmask.sampling import generators

V, LENGTH = 7, 10
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
VARIANTS = [
    {}, {"mask_id": 3}, {"convolution": 3}, {"convolution": 5, "layers": 1}, {"adaln": True, "convolution": 3},
    {"tie_embeddings": True, "mask_id": 0}, {"norm_bias": True},
]  # fmt: skip
ROWS = torch.tensor([[0, 9, 4], [3, 3, 1]])


def network(seed: int = 0, **changes: object) -> Causal:
    """A small network in which every parameter matters: the initial zeros are replaced."""
    torch.manual_seed(seed)
    config = DDiTConfig(**{  # type: ignore[arg-type]
        "vocab_size": V, "mask_id": V, "length": LENGTH, "width": 24, "layers": 3, "heads": 3, "cond_dim": 16,
        "adaln": False, **changes,
    })  # fmt: skip
    model = Causal(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model


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
    start = generate(model, 1, 1, temperature=0.0).tokens
    assert int(start) == int(model.next_logits(torch.tensor([[mask_id]])).argmax())


def test_a_masked_rest_does_not_reach_the_first_masked_row() -> None:
    model, tokens = network(), text()
    canvas = tokens.clone()
    canvas[:, 6:] = V
    torch.testing.assert_close(model(canvas)[:, :7], model(tokens)[:, :7], rtol=0, atol=0)


@pytest.mark.parametrize("known", [0, 1, 4])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_generating_with_the_cache_is_generating_without(changes: dict[str, object], known: int) -> None:
    model = network(**changes).train()
    prompt = text(2, known, mask_id=model.mask_id)
    tokens = generate(model, 2, LENGTH, prompt=prompt, seed=[0, 1], temperature=0.9, top_k=5, top_p=0.95).tokens
    assert model.training and not tokens.is_inference() and torch.equal(tokens[:, :known], prompt)

    model.eval()
    made = generators([0, 1], 2)
    plain = functional.pad(prompt, (0, LENGTH - known), value=model.mask_id)
    for position in range(known, LENGTH):
        rows = torch.full((2, 1), position)
        logits = model(plain, rows=rows).squeeze(1)
        plain[:, position] = draw.inverse_cdf(draw.shaped(logits, temperature=0.9, top_k=5, top_p=0.95), made)
    assert torch.equal(plain, tokens) and (tokens != model.mask_id).all() and (tokens < V).all()


def test_a_sequence_does_not_depend_on_its_batch_and_a_seed_is_the_samplers() -> None:
    model = network()
    together = generate(model, 4, LENGTH, seed=5).tokens
    assert torch.equal(generate(model, 4, LENGTH, seed=5, batch=1).tokens, together)
    assert torch.equal(generate(model, 2, prompt=torch.tensor([1, 2])).tokens[:, :2], torch.tensor([[1, 2], [1, 2]]))
    assert generate(model, 3).tokens.shape == (3, LENGTH)


def test_samples_follow_the_models_own_law() -> None:
    """4,000 sequences of 3 tokens over 3 ids against the 27 exact probabilities: chi-square, false alarms 1e-6."""
    model = network(vocab_size=3, mask_id=3)
    outcomes = torch.tensor(list(product(range(3), repeat=3)))
    with torch.no_grad():
        log_p = torch.log_softmax(model(outcomes).double(), -1).gather(-1, outcomes[..., None]).sum((1, 2))
    probabilities = log_p.exp()
    assert abs(float(probabilities.sum()) - 1) < 1e-6 and probabilities.max() > 2 * probabilities.min()
    counts = frequencies(generate(model, 4000, 3, seed=11).tokens, 3)
    assert chi_square(counts, probabilities) > FALSE_ALARM
    assert chi_square(counts, torch.full((27,), 1 / 27)) < FALSE_ALARM  # and the test has the power to tell


def test_edges_and_refusals() -> None:
    model = network()
    assert generate(model, 2, 0).tokens.shape == (2, 0) and generate(model, 0, 4).tokens.shape == (0, 4)
    prompt = text(2, 4)
    assert torch.equal(generate(model, 2, 4, prompt=prompt).tokens, prompt)
    assert model(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0, V)
    assert generate(model, 1, 2 * LENGTH, temperature=0.0).tokens.shape == (1, 2 * LENGTH)
    for arguments, message in [
        ({"prompt": prompt, "length": 3}, "length=3"), ({"length": 5, "seed": [1]}, "one per sequence"),
        ({"prompt": prompt.float(), "length": 5}, "int64"), ({"length": -1}, "length=-1"),
        ({"temperature": -1.0}, "temperature"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            generate(model, 2, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="int64"):
        model(torch.zeros(2, 3))
    for changes in ({"conditioning": "ratio", "adaln": True}, {"self_conditioning": True}):
        with pytest.raises(ValueError, match="left-to-right"):
            network(**changes)


def test_the_twin_is_the_ddit_without_adaln_and_with_it_the_same_size() -> None:
    config = preset("small", 50258, 1024, mask_id=50257, conditioning="time")
    with torch.device("meta"):
        ddit, baseline = DDiT(config), Causal(twin(config))
        full = Causal(replace(config, conditioning="none"))
    expected = {
        name: p.shape for name, p in ddit.named_parameters() if "adaLN" not in name and "sigma_map" not in name
    }
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
    tokens = generate(model, 5, LENGTH, seed=0, temperature=0.0).tokens
    assert torch.equal(tokens, (tokens[:, :1] + torch.arange(LENGTH)) % V)
