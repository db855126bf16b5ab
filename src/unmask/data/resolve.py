"""What DATA names, for training and evaluation."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from unmask.data import corpora
from unmask.files import sha256_of

TRAIN, VALID, TEST = "train.tokens", "valid.tokens", "test.tokens"

Kind = Literal["tokens", "prepared", "corpus", "text"]


def resolve(data: str) -> tuple[Kind, Path]:
    """The kind of DATA and its path: a token file, a folder of prepared data, a corpus, or text.

    In this order: a .tokens file; a folder with prepared data, or of a run that prepared its own; a corpus's name,
    unless there is a file of that name (a folder kjv is ./kjv); any other file or folder, or datasets:NAME, is text.
    """
    path = Path(data)
    if path.is_file() and path.suffix == ".tokens":
        return "tokens", path
    for folder in (path, path / "data"):
        if (folder / TRAIN).is_file() or (folder / VALID).is_file():
            return "prepared", folder
    if data in corpora.NAMES and not path.is_file():
        return "corpus", path
    if path.exists() or data.startswith("datasets:"):
        return "text", path
    corpora.check_synthetic(data)
    raise ValueError(
        f"data={data!r}: there is no such file or folder, and no such corpus (the corpora are "
        f"{', '.join(corpora.NAMES)})"
    )


def content(source: str) -> str:
    """sha256 of a file, of a folder's names and files, or of a dataset's name."""
    path, digest = Path(source), hashlib.sha256()
    if path.is_file():
        return sha256_of(path)
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        digest.update(f"{file.relative_to(path)}\0{sha256_of(file)}\n".encode())
    return digest.hexdigest() if path.is_dir() else source
