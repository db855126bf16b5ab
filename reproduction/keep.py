"""Results that are computed once and then read from a file."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from unmask.files import write_whole


def kept(path: Path | None, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of a file, computed and written if it does not exist; only computed without a path."""
    if path is not None and path.exists():
        found: dict[str, Tensor] = torch.load(path, weights_only=True)
        return found
    made = make()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(made, buffer)
        write_whole(path, buffer.getvalue())
    return made
