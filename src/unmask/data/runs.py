"""What a run's folder says about its training data."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.data.tokens import TokenFile

IDENTITY, SOURCE, OVERFIT = "run.json", "source.json", "overfit.tokens"


@dataclass(frozen=True)
class RunData:
    """The token files of a run, and the checksum of the text that they were made from."""

    folder: Path
    files: dict[str, Path]  # train and valid
    sha256: str | None

    def open(self, split: str) -> TokenFile:
        """The tokens of a split, verified."""
        if split not in self.files or not self.files[split].is_file():
            there = ", ".join(name for name, file in self.files.items() if file.is_file()) or "none of its data"
            raise ValueError(f"split={split!r}: of the run in {self.folder} there is {there}")
        return TokenFile.open(self.files[split]).verified()


def data_of(model: Path) -> RunData | None:
    """The data of the run that a model or a checkpoint belongs to; None if there is no run or it does not say."""
    for folder in (model, model.parent, model.parent.parent):
        if (folder / IDENTITY).is_file():
            files = _read(folder / IDENTITY).get("files")
            if not isinstance(files, dict):
                return None  # an older run's
            sha256 = _read(folder / SOURCE).get("sha256") if (folder / SOURCE).is_file() else None
            return RunData(folder, {name: folder / str(path) for name, path in files.items()}, sha256)
    return None


def named(files: dict[str, Path], folder: Path) -> dict[str, str]:
    """The files as stored in the run's identity: paths inside the folder are relative, so that it can be moved."""
    inside = {name: path.resolve().is_relative_to(folder.resolve()) for name, path in files.items()}
    return {
        name: os.path.relpath(path.resolve(), folder.resolve()) if inside[name] else str(path.resolve())
        for name, path in files.items()
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    return content if isinstance(content, dict) else {}
