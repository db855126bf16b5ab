"""``--process uniform`` through the front ends, which never ask its kind: trained, sampled, bounded, saved, served."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import unmask
from tests.serve.served import listening
from unmask.processes import Uniform
from unmask.serve.engine.work import Served

SETTINGS: dict[str, Any] = {
    "process": "uniform",
    "tokenizer": "characters",
    "length": 8,
    "preset": "tiny",
    "width": 16,
    "layers": 1,
    "batch": 16,
    "steps": 60,
    "learning_rate": 0.01,
    "optimizer": "adamw",
    "ema": 0.0,
    "validate_sequences": 16,
    "tensorboard": False,
}


@pytest.fixture(scope="module", params=["none", "time"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> unmask.Model:
    folder = tmp_path_factory.mktemp("uniform")
    (folder / "text.txt").write_text("ab" * 4000)
    return unmask.train(folder / "text.txt", out=folder / "run", conditioning=request.param, **SETTINGS)


def test_it_learns_and_is_saved(model: unmask.Model, tmp_path: Path) -> None:
    """Alternating letters have nearly no entropy; a network that learned nothing has more than log 2 per token."""
    reads = model.denoiser.config.conditioning == "time"
    assert model.process == Uniform(reads_time=reads)
    bound = unmask.nelbo(model.denoiser, torch.tensor([model.tokenizer.encode("ab" * 4)]), passes=64)
    assert float(bound.nats_per_token) < math.log(2)
    model.save_pretrained(tmp_path)
    again = unmask.load(tmp_path)
    assert again.process == model.process
    assert torch.equal(again.sample(2, seed=3).tokens, model.sample(2, seed=3).tokens)


def test_it_is_served_with_a_forecast(model: unmask.Model) -> None:
    with listening({"uniform": Served(model)}) as (address, _):
        answer = httpx.post(f"{address}/v1/unmask", json={"length": 8, "seed": 3}, timeout=60).json()
        assert answer["sampler"] == "uniformised"
        assert answer["choices"][0]["tokens"] == model.sample(1, length=8, seed=3).tokens[0].tolist()
        steps = httpx.post(f"{address}/v1/unmask", json={"length": 8, "seed": 3, "steps": 4}, timeout=60).json()
        assert steps["sampler"] == "uniform-ancestral" and steps["calls"] == 4
        refused = httpx.post(f"{address}/v1/unmask", json={"prompt": "ab", "length": 8}, timeout=60)
        assert refused.status_code == 400 and "it draws whole texts" in refused.text


def test_another_attention_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("ab" * 400)
    with pytest.raises(ValueError, match="process='uniform' needs attention='bidirectional'"):
        unmask.train(tmp_path / "text.txt", out=tmp_path / "run", **SETTINGS, attention="visible")
