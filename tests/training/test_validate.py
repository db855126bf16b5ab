from __future__ import annotations

import math
from pathlib import Path

from tests.training.runs import metrics, settings, write_tokens
from unmask.training.loop import train


def test_one_held_out_sequence_still_has_a_bound_with_an_error(tmp_path: Path) -> None:
    """A short text holds out one sequence: it is masked as often as asked, so the bound has an error all the same."""
    train(settings(write_tokens(tmp_path / "data", valid=1), tmp_path / "run", validate_sequences=64))
    last = metrics(tmp_path / "run", "validation")[-1]
    assert last["sequences"] == 1
    assert 0 < last["error"] < math.inf
