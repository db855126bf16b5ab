"""recipes/openwebtext.toml: the paper's settings, which build its network, start and resume."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import unmask
from tests.helpers import generator
from unmask.networks.config import preset
from unmask.networks.ddit import DDiT
from unmask.training.config import read_toml

RECIPE = Path(__file__).parents[2] / "recipes/openwebtext.toml"
VOCAB, LENGTH = 50_257, 1_024
SMALL = {"layers": 1, "width": 16, "heads": 2, "batch": 8, "micro_batch": 4, "warmup": 2, "save_every": 2}


def test_the_network_has_the_papers_size() -> None:
    with torch.device("meta"):
        network = DDiT(preset(read_toml(RECIPE)["preset"], VOCAB, LENGTH))
    assert 165e6 < sum(one.numel() for one in network.parameters()) < 172e6


def test_it_starts_and_resumes(tmp_path: Path) -> None:
    settings = read_toml(RECIPE) | SMALL | {"validate_every": 2, "preview": False, "tensorboard": False, "threads": 1}
    settings["precision"] = "float32"  # a process of tests has one precision
    del settings["data"]
    x = torch.randint(11, (60, 12), generator=generator(0))
    unmask.train(x, out=str(tmp_path / "run"), **settings | {"steps": 2})
    unmask.train(x, out=str(tmp_path / "run"), **settings | {"steps": 4, "resume": True})
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [1, 2, 3, 4]
