"""The fused draw, by Triton's interpreter: the hash bit for bit, and the ids of the torch path.

Triton decides at its import whether it interprets, so the checks run in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from unmask import draw
from unmask.noise import Noise, Streams

ROOT = Path(__file__).parents[1]
CHECKS = (
    "the_kernel_draws_what_torch_draws",
    "the_clocks_are_those_of_the_noise",
    "rows_that_are_no_distribution_have_values_that_are_refused",
    "the_kernel_is_checked_before_it_is_used",
)


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: it comes with torch for CUDA")
def test_the_kernel_under_tritons_interpreter() -> None:
    path = os.pathsep.join((str(ROOT), *sys.path))
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path}
    command = [sys.executable, "-m", "tests.test_fused"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [*CHECKS]


def test_without_cuda_the_torch_path_draws() -> None:
    assert draw._kernel(torch.device("cpu")) is None


def noise(rows: int) -> Noise:
    return Streams.of(7, rows).at("tokens", 1)[:, 0]


def the_kernel_draws_what_torch_draws() -> None:
    from unmask import fused

    for columns in (1, 3, 1500):
        for dtype in (torch.float64, torch.float32):
            logits = torch.randn(16, columns, generator=torch.Generator().manual_seed(1)).to(dtype) * 3
            logits[0, 1:] = -torch.inf
            places = noise(16)
            ids, values = fused.race(logits, places.keys)
            expected, winners = draw.race(logits, places)
            assert torch.equal(ids, expected), columns
            torch.testing.assert_close(values, winners.double(), rtol=1e-14, atol=1e-14)
            assert torch.equal(fused.race(logits.T.contiguous().T, places.keys)[0], expected)


def the_clocks_are_those_of_the_noise() -> None:
    """Equal logits: a winner's value is the largest -log E, so its hash was the same in all 53 bits."""
    from unmask import fused

    places = noise(64)
    _, values = fused.race(torch.zeros(64, 257, dtype=torch.float64), places.keys)
    largest = -torch.cat(list(places.log_clocks(257))).amin(1)
    torch.testing.assert_close(values, largest, rtol=1e-15, atol=1e-15)


def rows_that_are_no_distribution_have_values_that_are_refused() -> None:
    from unmask import fused

    logits = torch.zeros(3, 5)
    logits[0, 2], logits[1, 3], logits[2] = torch.nan, torch.inf, -torch.inf
    assert not bool(fused.race(logits, noise(3).keys)[1].isfinite().any())


def the_kernel_is_checked_before_it_is_used() -> None:
    from unmask import fused

    cpu, kernel = torch.device("cpu"), fused.race
    assert fused.sound(cpu, draw.race)
    fused.sound.cache_clear()
    fused.race = lambda logits, keys: (torch.zeros(len(logits), dtype=torch.int64), torch.zeros(len(logits)))
    assert not fused.sound(cpu, draw.race)
    fused.race = kernel


if __name__ == "__main__":
    for check in CHECKS:
        globals()[check]()
        print(check)
