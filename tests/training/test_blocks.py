"""Training with attention by blocks: every block is a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training.runs import settings, write_tokens
from tests.training.test_masking import network, tokens
from unmask import nelbo, sample
from unmask.checkpoints.folder import load_network as load
from unmask.masking import Masking
from unmask.processes import BlockByBlock
from unmask.schedule import Linear
from unmask.training import report
from unmask.training.loop import train
from unmask.training.masking import Losses, of_step


def step(kind: str, times: str = "stratified", batch: int = 8, number: int = 3) -> Masking:
    return of_step(BlockByBlock(size=4), kind, times, batch=batch, length=12, schedule=Linear(), seed=0, step=number)


@pytest.mark.parametrize("kind", ["time", "count"])
def test_the_losses_are_those_of_the_blocks(kind: str) -> None:
    model, x0, masking = network(attention="block", block=4, convolution=3), tokens(), step(kind)
    assert masking.weight.shape == (8, 3)
    if kind == "count":
        assert torch.equal(masking.weight, 4 / masking.masked.view(8, 3, 4).sum(2).double())
    total, losses = Losses(model, kind)(x0, *masking.tensors())
    terms = torch.empty(8, 3)
    for number in range(3):
        here = slice(4 * number, 4 * number + 4)
        canvas = torch.full_like(x0, model.mask_id)
        canvas[:, : here.start] = x0[:, : here.start]
        canvas[:, here] = torch.where(masking.masked[:, here], model.mask_id, x0[:, here])
        logp = model(canvas).log_softmax(-1).gather(-1, x0.unsqueeze(-1)).squeeze(-1)[:, here]
        terms[:, number] = -(logp * masking.masked[:, here]).sum(1).detach()
    torch.testing.assert_close(losses, (masking.weight * terms).sum(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(total.double(), losses.sum(), rtol=1e-5, atol=1e-5)
    total.backward()


def test_stratified_times_are_anybodys() -> None:
    """In order, the first block of a batch would always have the earliest: each block's mean count is (K + 1)/2.

    8,000 counts, uniform on 1..4 with variance 5/4: within 5 errors, a false alarm in 6e-7.
    """
    counts = torch.stack([step("count", batch=2, number=i).masked.view(2, 3, 4).sum(2) for i in range(4_000)]).double()
    error = (1.25 / 8_000) ** 0.5
    assert (counts.mean((0, 1)) - 2.5).abs().max() < 5 * error
    spread = counts.flatten(1).sum(1).var()  # of six counts that are spread over 1..4
    assert spread < 6 * 1.25 / 4


def test_a_run_learns_by_blocks_and_is_loaded(tmp_path: Path) -> None:
    data = write_tokens(tmp_path / "letters", train=64)
    how = {"attention": "block", "block": 4, "convolution": 3, "steps": 60, "batch": 16, "learning_rate": 1e-2}
    folder = train(settings(data, tmp_path / "run", objective="count", **how))
    model = load(folder)
    assert model.attention == "block" and model.config.block == 4
    made = sample(model, num=3, seed=1).tokens
    assert made.shape == (3, 12) and float(nelbo(model, made).nats_per_token) < 2


def test_a_preview_takes_the_calls_that_its_blocks_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "PREVIEW_STEPS", 2)  # fewer than the three blocks
    data = write_tokens(tmp_path / "letters")
    how = {"attention": "block", "block": 4, "objective": "count", "steps": 1, "preview": True}
    train(settings(data, tmp_path / "run", **how))
    assert '"preview"' in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    for wrong, says in (
        ({"attention": "block"}, "attention='block' and block go together"),
        ({"block": 4}, "attention='block' and block go together"),
        ({"attention": "block", "block": 4, "times": "adaptive", "objective": "count"}, "for each block"),
    ):
        with pytest.raises(ValueError, match=says):
            settings(tmp_path, tmp_path, **wrong)
    with pytest.raises(ValueError, match="multiple of block=5"):
        train(settings(write_tokens(tmp_path / "letters"), tmp_path / "run", attention="block", block=5))
