"""The checkpoints of a run on disk: folders ``step-00001000``, each with the checksums of its files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from unmask.files import content_of, sha256_of
from unmask.networks.pretrained import CONFIG, README

SUMS, STATE, SUFFIX = "SHA256SUMS", "state.json", ".safetensors"
TEXTS = (STATE, CONFIG, README, "tokenizer.json", "chat_template.jinja")
NAME = re.compile(r"step-(\d{8,})")

Read = TypeVar("Read")


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged or made for something else."""


def listed(folder: Path) -> list[Path]:
    """The checkpoints in a folder by name, oldest first, sound or not."""
    numbered = [(int(match[1]), path) for path in folder.glob("step-*") if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def step_of(path: Path) -> int:
    """The step of a checkpoint, by its name."""
    match = NAME.fullmatch(path.name)
    assert match is not None, path
    return int(match[1])


def newest(folder: Path, read: Callable[[Path], Read]) -> Read | None:
    """``read`` of the newest sound checkpoint, or None; a damaged one is skipped with a warning."""
    for path in reversed(listed(folder)):
        try:
            return read(path)
        except CheckpointError as error:
            warnings.warn(f"skipping a damaged checkpoint: {error}", stacklevel=2)
    return None


def verify(path: Path) -> None:
    """Compare every file with SHA256SUMS: none may be missing, different, extra, or of another kind."""
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such checkpoint")
    try:
        lines = content_of(path / SUMS).decode().splitlines()
        sums = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: its {SUMS} cannot be read ({error})") from error
    there = {file.name for file in path.iterdir()} - {SUMS}
    if there != set(sums):
        odd = ", ".join(sorted(there ^ set(sums)))
        raise CheckpointError(f"{path}: its files are not those of its {SUMS}: {odd}")
    if strange := [name for name in sums if name not in TEXTS and not name.endswith(SUFFIX)]:
        raise CheckpointError(f"{path}: {', '.join(strange)} does not belong in a checkpoint")
    for name, digest in sums.items():
        if not (path / name).is_file() or sha256_of(path / name) != digest:
            raise CheckpointError(f"{path / name} is damaged: it does not have the checksum of {SUMS}")
