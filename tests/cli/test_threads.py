"""--threads, the one option that every command with a network has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from unmask.cli import evaluate, infill, sample
from unmask.cli.options import use_threads


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_it_is_an_option_of_sample_infill_and_evaluate() -> None:
    assert sample.COMMAND.parsed(["--threads", "2"]).threads == 2
    assert infill.COMMAND.parsed(["a", "b", "--threads", "3"]).threads == 3
    assert evaluate.COMMAND.parsed(["a", "b"]).threads is None


def test_it_sets_torchs_threads_and_none_leaves_them() -> None:
    use_threads(2)
    assert torch.get_num_threads() == 2
    use_threads(None)
    assert torch.get_num_threads() == 2
    with pytest.raises(ValueError, match="--threads must be at least 1, got 0"):
        use_threads(0)
