"""Training with attention over what is visible: the losses, fine-tuning from other weights, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.training.runs import LENGTH, metrics, settings, write_tokens
from unmask import sample
from unmask.checkpoints.folder import load_network as load
from unmask.data.batches import generator as of_purpose
from unmask.processes import AnyOrder
from unmask.schedule import Linear
from unmask.training.config import TrainConfig
from unmask.training.loop import train
from unmask.training.masking import of_step


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("letters"))


@pytest.mark.parametrize("rule", ["visible"])
def test_fine_tuning_begins_with_the_other_models_weights(rule: str, letters: Path, tmp_path: Path) -> None:
    first = train(settings(letters, tmp_path / "first", convolution=3))
    tuned = settings(letters, tmp_path / "tuned", convolution=3, attention=rule, init=str(first), steps=2)
    still = {"steps": 1, "learning_rate": 1e-30}  # a step that changes nothing
    begun = settings(letters, tmp_path / "begun", convolution=3, attention=rule, init=str(first), **still)
    start, end, expected = load(train(begun)), load(train(tuned)), load(first)
    assert start.attention == end.attention == rule and expected.attention == "bidirectional"
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


def test_the_exported_model_says_its_attention_and_an_old_one_is_bidirectional(letters: Path, tmp_path: Path) -> None:
    folder = train(settings(letters, tmp_path / "run", attention="visible", steps=1, preview=True))
    assert "kind: visible" in (folder / "README.md").read_text()
    assert sample(load(folder), num=2, length=LENGTH, seed=0).tokens.shape == (2, LENGTH)
    path = folder / "config.json"
    stored = json.loads(path.read_text())
    assert stored["architecture"] == "visible"
    path.write_text(json.dumps(stored | {"architecture": "ddit"}))  # before there were other kinds
    assert load(folder).attention == "bidirectional"


def test_a_run_that_is_older_than_the_setting_is_resumed(letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run", steps=2)
    train(config)
    identity, written = (tmp_path / "run" / name for name in ("run.json", "config.toml"))
    stored = json.loads(identity.read_text())
    del stored["network"]["norm"]  # version 0.1 had no such setting at first, and others that are gone
    stored["network"] |= {"attention": "bidirectional", "block": 0}
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
        ({"objective": "order", "attention": "visible"}, "needs attention='order'"),
        ({"objective": "left-to-right", "attention": "visible"}, "needs attention='bidirectional'"),
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
