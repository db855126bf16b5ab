"""Training with attention over what is visible: the losses, fine-tuning from other weights, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.runs import LENGTH, metrics, settings, write_tokens
from tests.training.test_masking import network, tokens
from unmask import objective, sample
from unmask.checkpoints.folder import load_network as load
from unmask.data.batches import generator as of_purpose
from unmask.networks.cache.cached import AnyOrderCached
from unmask.processes import AnyOrder
from unmask.schedule import Linear
from unmask.training.config import TrainConfig
from unmask.training.loop import train
from unmask.training.masking import Losses, of_step


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("letters"))


def step(kind: str, batch: int = 8):  # type: ignore[no-untyped-def]
    return of_step(AnyOrder(), kind, "vdm", batch=batch, length=12, schedule=Linear(), seed=0, step=3)


def test_equation_7_is_trained_with_the_steps_own_order() -> None:
    model, x0, masking = network(attention="order", convolution=3), tokens(), step("count")
    expected = masking.weight * objective.cross_entropy(model, x0, masking)
    _, terms = Losses(model, "count")(x0, *masking.tensors())
    assert torch.allclose(terms, expected, rtol=1e-5)
    without = masking.weight * objective.cross_entropy(model, x0, replace(masking, when=None))
    assert not torch.allclose(terms, without, rtol=1e-4)
    _, alone = Losses(model, "count")(x0[2:5], *masking.rows(slice(2, 5)).tensors())
    assert torch.allclose(alone, terms[2:5], rtol=1e-5)
    scores = masking.weight * objective.score_terms(model, x0, masking)
    _, terms = Losses(model, "score-entropy").train()(x0, *masking.tensors())
    assert torch.allclose(terms, scores, rtol=1e-5)


def test_two_streams_train_the_chain_rule_along_the_order() -> None:
    model, x0, masking = network(attention="order", convolution=3), tokens(), step("two-stream")
    assert masking.masked.all() and (masking.weight == 1).all()
    expected = objective.along_order(model, x0, masking.when.argsort(1))
    total, terms = Losses(model, "two-stream")(x0, *masking.tensors())
    assert torch.allclose(terms.double(), expected, rtol=1e-5) and torch.allclose(total.double(), expected.sum())
    total.backward()
    by_streams = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    expected.sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(by_streams[name], parameter.grad, rtol=1e-3, atol=1e-3)


def test_both_ways_have_the_same_mean_and_two_streams_the_smaller_spread() -> None:
    """One sequence along 2,000 orders and masked 8,000 times: the means within 5 errors, false alarm rate 6e-7."""
    model, x0 = network(attention="order"), tokens(1)
    values = []
    for kind, batch in (("two-stream", 2_000), ("count", 8_000)):
        masking = step(kind, batch)
        with torch.no_grad():
            _, terms = Losses(model, kind)(x0.expand(batch, -1), *masking.tensors())
        values.append(terms)
    error = sum(float(value.var()) / len(value) for value in values) ** 0.5
    assert abs(float(values[0].mean() - values[1].mean())) < 5 * error
    assert values[0].std() < values[1].std()  # all counts at once


@pytest.mark.parametrize("rule", ["visible", "order"])
def test_fine_tuning_begins_with_the_other_models_weights(rule: str, letters: Path, tmp_path: Path) -> None:
    first = train(settings(letters, tmp_path / "first", convolution=3))
    tuned = settings(letters, tmp_path / "tuned", convolution=3, attention=rule, init=str(first), steps=2)
    still = {"steps": 1, "learning_rate": 1e-30}  # a step that changes nothing
    begun = settings(letters, tmp_path / "begun", convolution=3, attention=rule, init=str(first), **still)
    start, end, expected = load(train(begun)), load(train(tuned)), load(first)
    assert start.config.attention == end.config.attention == rule and expected.config.attention == "bidirectional"
    for name, tensor in expected.state_dict().items():
        assert torch.equal(start.state_dict()[name], tensor), name
    assert any(not torch.equal(tensor, expected.state_dict()[name]) for name, tensor in end.state_dict().items())
    losses = metrics(tmp_path / "tuned", "train")
    fresh = settings(letters, tmp_path / "fresh", convolution=3, attention=rule, steps=2)
    train(fresh)
    assert losses[0]["loss"] != metrics(tmp_path / "fresh", "train")[0]["loss"]
    # A resumed run does not need the weights any more.
    Path(first).rename(tmp_path / "moved")
    train(settings(letters, tmp_path / "tuned", convolution=3, attention=rule, init=str(first), steps=2, resume=True))


def test_weights_that_do_not_fit_are_refused_before_anything_is_written(letters: Path, tmp_path: Path) -> None:
    first = train(settings(letters, tmp_path / "first", steps=1))
    with pytest.raises(ValueError, match=r"does not fit this run: its network has convolution=0"):
        train(settings(letters, tmp_path / "tuned", convolution=3, init=str(first)))
    with pytest.raises(ValueError, match="neither a model nor a run"):
        train(settings(letters, tmp_path / "tuned", init=str(tmp_path)))
    assert not (tmp_path / "tuned" / "config.toml").exists()


def test_the_exported_model_samples_with_its_cache_and_an_old_one_is_bidirectional(
    letters: Path, tmp_path: Path
) -> None:
    folder = train(settings(letters, tmp_path / "run", attention="order", steps=1, preview=True))
    model = load(folder)
    assert isinstance(model.for_sampling(), AnyOrderCached) and "attention: order" in (folder / "README.md").read_text()
    assert sample(model, num=2, length=LENGTH, seed=0).tokens.shape == (2, LENGTH)
    path = folder / "config.json"
    stored = json.loads(path.read_text())
    del stored["attention"]
    path.write_text(json.dumps(stored))
    assert load(folder).config.attention == "bidirectional"


def test_a_run_that_is_older_than_the_setting_is_resumed(letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run", steps=2)
    train(config)
    identity, written = (tmp_path / "run" / name for name in ("run.json", "config.toml"))
    stored = json.loads(identity.read_text())
    del stored["network"]["attention"]
    identity.write_text(json.dumps(stored))
    lines = written.read_text().splitlines()
    written.write_text("".join(f"{line}\n" for line in lines if not line.startswith("attention")))
    train(settings(letters, tmp_path / "run", steps=4, resume=True))
    with pytest.raises(ValueError, match="'bidirectional' -> 'order'"):
        train(settings(letters, tmp_path / "run", steps=4, resume=True, attention="order"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "causal"}, "attention must be one of"),
        ({"objective": "two-stream"}, "objective='two-stream' needs attention='order'"),
        ({"objective": "two-stream", "attention": "visible"}, "needs attention='order'"),
        ({"objective": "left-to-right", "attention": "order"}, "needs attention='bidirectional'"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig("kjv", **changes)


def test_the_order_of_a_step_is_uniform_over_permutations() -> None:
    """Of 6,000 orders of 3 positions each of the 6 comes 1,000 times, within 5 errors of 29: false alarm rate 3e-6."""
    how = {"batch": 6_000, "length": 3, "schedule": Linear(), "seed": 0, "step": 0}
    order = of_step(AnyOrder(), "count", "vdm", **how).when
    counts = torch.bincount((order.argsort(1) * torch.tensor([9, 3, 1])).sum(1))
    assert (counts[counts > 0] - 1_000).abs().max() < 5 * 29 and (counts > 0).sum() == 6
    assert torch.equal(order, torch.rand(6_000, 3, dtype=torch.float64, generator=of_purpose(0, 0, "order")))
