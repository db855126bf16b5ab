"""Reading a saved network of whichever kind it is."""

from __future__ import annotations

from pathlib import Path

from unmask.models.causal import Causal
from unmask.models.ddit import DDiT
from unmask.models.pretrained import CONFIG, read, read_config


def load(folder: str | Path) -> DDiT | Causal:
    """The network in a folder that ``pretrained.save`` wrote, ready to sample. Whatever is wrong is one ValueError."""
    name = read_config(folder)[1]["architecture"]
    for cls in (DDiT, Causal):
        if name == cls.architecture:
            network: DDiT | Causal = read(folder, cls)
            return network
    raise ValueError(f"{Path(folder) / CONFIG}: architecture must be 'ddit' or 'causal', got {name!r}")
