"""Training in any order: the loss is the chain rule, left-to-right weights are a start, and the model is exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import generator
from tests.small_models import small
from tests.training.runs import LENGTH, metrics, settings, write_tokens
from unmask import objective, sample
from unmask.checkpoints.folder import load_network as load
from unmask.networks.any_order import OneStream
from unmask.networks.cache.any_order import OneStreamCached
from unmask.processes import AnyOrder
from unmask.schedule import Linear
from unmask.training.config import TrainConfig
from unmask.training.loop import train
from unmask.training.masking import Losses, of_step

SIZE: dict[str, Any] = {"vocab_size": 7, "mask_id": 7, "length": 12, "width": 16, "layers": 2, "heads": 2}
SIZE |= {"attention": "order", "dropout": 0.0}


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("letters"))


def step(process: AnyOrder, objective: str = "order", batch: int = 8):  # type: ignore[no-untyped-def]
    return of_step(process, objective, "vdm", batch=batch, length=12, schedule=Linear(), seed=0, step=3)


@pytest.mark.parametrize("start", [-1, 6])
def test_the_loss_is_the_chain_rule_along_the_steps_order(start: int) -> None:
    model = small(OneStream, **SIZE, neighbours=1, start=start)
    x0 = torch.randint(6, (8, 12), generator=generator(1))
    if start >= 0:
        x0[:, 0] = start
    masking = step(model.process)
    assert bool(masking.masked[:, 1:].all()) and bool(masking.masked[:, 0].any()) == (start < 0)
    expected = objective.along_order(model, x0, masking.when.argsort(1))
    total, terms = Losses(model.train(), "order")(x0, *masking.tensors())
    assert torch.allclose(terms.double(), expected, rtol=1e-5) and torch.allclose(total.double(), expected.sum())
    total.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    expected.sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-3)


def test_it_has_the_mean_of_equation_7_and_a_smaller_spread() -> None:
    """One sequence along 2,000 orders and masked 8,000 times: the means within 5 errors, false alarm rate 6e-7."""
    model, x0, values = small(OneStream, **SIZE), torch.randint(7, (1, 12), generator=generator(1)), []
    for kind, batch in (("order", 2_000), ("count", 8_000)):
        masking = step(model.process, kind, batch)
        with torch.no_grad():
            terms = model.process.terms(model, x0.expand(batch, -1), masking, kind)
        values.append(masking.weighted(terms))
    error = sum(float(value.var()) / len(value) for value in values) ** 0.5
    assert abs(float(values[0].mean() - values[1].mean())) < 5 * error
    assert values[0].std() < values[1].std()  # all counts at once


def test_left_to_right_weights_are_a_start(letters: Path, tmp_path: Path) -> None:
    first = train(settings(letters, tmp_path / "first", objective="left-to-right"))
    still = {"steps": 1, "learning_rate": 1e-30}  # a step that changes nothing
    begun = load(train(settings(letters, tmp_path / "begun", attention="order", init=str(first), **still)))
    causal = load(first)
    x0 = torch.randint(5, (3, LENGTH), generator=generator(2))
    assert isinstance(begun, OneStream)
    assert torch.equal(begun.logits(begun.chain(x0, torch.arange(LENGTH))), causal(x0))
    train(settings(letters, tmp_path / "tuned", attention="order", init=str(first), steps=2))
    train(settings(letters, tmp_path / "fresh", attention="order", steps=2))
    losses = [metrics(tmp_path / name, "train")[0]["loss"] for name in ("tuned", "fresh")]
    assert losses[0] != losses[1]


def test_the_exported_model_samples_with_its_cache(letters: Path, tmp_path: Path) -> None:
    folder = train(settings(letters, tmp_path / "run", attention="order", steps=1, preview=True))
    model = load(folder)
    assert isinstance(model, OneStream) and isinstance(model.for_sampling(), OneStreamCached)
    assert model.config.neighbours == 2 and not model.config.adaln
    assert "# Any-order model" in (folder / "README.md").read_text()
    assert sample(model, num=2, length=LENGTH, seed=0, ahead=4).tokens.shape == (2, LENGTH)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "order"}, "objective='order' needs attention='order'"),
        ({"objective": "count", "attention": "order"}, "trained with objective 'order', not 'count'"),
        ({"objective": "left-to-right", "attention": "order"}, "objective"),
    ],
)
def test_other_objectives_are_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig("kjv", **changes)  # type: ignore[arg-type]
