"""The demo: all of it as ``make demo`` runs it, and its table of the float32 error in less time."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from examples.demo import fault

ROOT = Path(__file__).parents[2]


def test_the_float32_error_is_seen_with_the_vocabulary_of_gpt2():
    """As published, entropy and perplexity are both lower, for the demo's seed."""
    rows = fault.of_the_oracle(lambda canvas, mask_id, run: run(lambda step: None), num=8, length=32, steps=1_000)
    published, exact = rows
    assert published.entropy < exact.entropy and published.perplexity < exact.perplexity / 2
    assert "N = 1,000" in fault.table(rows, 1_000)


@pytest.mark.slow
def test_the_demo_shows_text_a_verse_a_digit_molecules_the_float32_error_and_next_commands(tmp_path):
    path = os.pathsep.join((str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])))
    own = {"HOME": str(tmp_path), "COLUMNS": "80", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "examples.demo"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    verses = re.findall(r"^  In the beginning God .+ the heaven and the .+\.$", done.stdout, re.MULTILINE)
    assert len(verses) == 3
    tables = re.findall(r"^  (as published|exact).*? ([\d.]+) +([\d.]+)$", done.stdout, re.MULTILINE)
    assert [name for name, *_ in tables] == ["as published", "exact"] * 2
    for published, exact in (tables[:2], tables[2:]):  # the float32 error, for the demo's seed
        assert float(published[1]) < float(exact[1]) and float(published[2]) < float(exact[2])
    assert "unmask infill kjv" in done.stdout
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    words = [line for line in done.stdout.splitlines() if " " in line.strip() and str(tmp_path) not in line]
    assert max(map(len, words)) <= 80
