"""Masked diffusion, the paper's process: every position is masked or visible, and the network sees both sides."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.processes.process import Process


@dataclass(frozen=True)
class Masked(Process):
    """The default: positions are unmasked in a uniform random order, or in any other."""

    name = "masked"
    phrase = "a masked model"
    joins_counts = True
