"""theory/ works where torch and scipy are missing."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["torch"] = None  # importing it now raises ImportError
sys.modules["scipy"] = None
import unmask.theory as theory
law = theory.shifted_probabilities([0.5, 0.3, 0.2], theory.maximum_gumbel("float16"))
assert abs(law.sum() - 1) < 1e-12
assert theory.expected_nfe(10, 4) < 4
assert theory.PAPER_CASE.speedup > 16
assert theory.parallel_loss([3.0, 2.0, 1.0], theory.optimal_sizes([3.0, 2.0, 1.0], 2)) == 1
"""


def test_theory_needs_neither_torch_nor_scipy():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_public_name_exists_once():
    import unmask.theory as theory

    assert len(theory.__all__) == len(set(theory.__all__))
    for name in theory.__all__:
        assert hasattr(theory, name)
