from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.runs import settings, write_tokens
from unmask.training import curve
from unmask.training.loop import train


def line(**values: object) -> str:
    return json.dumps(values) + "\n"


TRAINING = "".join(line(step=i, kind="train", loss=4 / i) for i in range(1, 200))
BOUND = line(step=200, kind="validation", nats_per_token=0.5, error=0.1, bits_per_character=None)


@pytest.mark.parametrize("metrics", ["", TRAINING, TRAINING + BOUND, BOUND], ids=["none", "training", "both", "bound"])
def test_any_metrics_make_a_picture(metrics: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(metrics)
    curve.draw(tmp_path / "metrics.jsonl", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_characters_are_counted_in_bits_per_character() -> None:
    assert curve._unit([{"nats_per_token": 2.0, "bits_per_character": 1.0}]) == (0.5, "bits per character")
    assert curve._unit([])[1] == "bits per token"


def test_a_finished_run_has_its_curve(tmp_path: Path) -> None:
    train(settings(write_tokens(tmp_path / "data"), tmp_path / "run"))
    assert (tmp_path / "run" / "curve.png").is_file()
