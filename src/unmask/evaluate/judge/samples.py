"""Samples to be judged: their texts, their tokens, and how they were made."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unmask.names import PRECISIONS

Separation = Literal["auto", "lines", "paragraphs"]

_PER_SEQUENCE = ("text", "tokens", "trace", "index", "nfe", "ncs", "seed")


@dataclass(frozen=True)
class Samples:
    """Sequences as texts, as tokens, or as both, with what is known about them.

    tokens: int64 [B, L], padded with -1 if lengths differ. about: model, sampler, steps, draw, dtype, temperature and
    so on, as far as known; "rejection" is the rule by which samples were discarded before, if any were.
    """

    texts: list[str] = field(default_factory=list)
    tokens: Tensor | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tokens is not None and (self.tokens.ndim != 2 or self.tokens.dtype != torch.int64):
            kind = f"{self.tokens.dtype} {tuple(self.tokens.shape)}"
            raise ValueError(f"tokens must be int64 [batch, length], got {kind}")
        if self.texts and self.tokens is not None and len(self.texts) != len(self.tokens):
            raise ValueError(f"there are {len(self.texts)} texts and {len(self.tokens)} rows of tokens")

    def __len__(self) -> int:
        return len(self.texts) if self.texts or self.tokens is None else len(self.tokens)

    def part(self, indices: Sequence[int]) -> Samples:
        """Some of the samples, in the order of the indices."""
        texts = [self.texts[i] for i in indices] if self.texts else []
        return Samples(texts, None if self.tokens is None else self.tokens[list(indices)], self.about)

    @property
    def rows(self) -> list[Tensor]:
        """The tokens of each sequence without their padding."""
        return [] if self.tokens is None else [row[row >= 0] for row in self.tokens]

    @property
    def draw(self) -> str:
        """How tokens were drawn and in which precision, or that this is unknown."""
        if self.about.get("draw") is None:
            return "draw not recorded"
        name = str(self.about["draw"])
        dtype = self.about.get("dtype") or PRECISIONS.get(name)
        return f"{name}, in {dtype}" if dtype else f"{name}, dtype not recorded"

    @staticmethod
    def read(path: str | os.PathLike[str], *, separation: Separation = "auto") -> Samples:
        """The JSON lines of ``unmask sample --json``, or plain text as ``unmask sample`` writes it."""
        try:
            content = Path(path).read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text: {error}") from None
        return Samples.parse(content, name=str(path), separation=separation)

    @staticmethod
    def parse(content: str, *, name: str = "samples", separation: Separation = "auto") -> Samples:
        """``read`` for the contents of a file.

        Plain text has one sample per line, or, if there are empty lines, one per paragraph; only JSON lines preserve
        samples that contain empty lines. separation says which, if the guess would be wrong.
        """
        content = content.replace("\r\n", "\n")
        lines = content.split("\n")  # str.splitlines would also split at characters that occur in texts
        if any(line.strip() for line in lines) and all(line.startswith("{") for line in lines if line.strip()):
            return _from_records([_record(line, name, i) for i, line in enumerate(lines, 1) if line.strip()])
        body = content.removesuffix("\n")
        if not body.strip():
            raise ValueError(f"{name} holds no sample")
        paragraphs = separation == "paragraphs" or (separation == "auto" and "\n\n" in body)
        return Samples(body.split("\n\n") if paragraphs else body.split("\n"), about={"file": name})


def _record(line: str, name: str, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{name}, line {number}: it looks like JSON, but {error}") from None
    if not isinstance(record.get("text"), str):
        raise ValueError(f"{name}, line {number}: a sample has a field text, which is a string")
    return dict(record)


def _from_records(records: list[dict[str, Any]]) -> Samples:
    keys = {key: None for record in records for key in record if key not in _PER_SEQUENCE}
    about = {key: _common([record.get(key) for record in records]) for key in keys}
    for key in ("nfe", "ncs"):
        if all(isinstance(record.get(key), int | float) for record in records):
            about[key] = sum(record[key] for record in records) / len(records)
    rows = [record.get("tokens") for record in records]
    tokens = None
    if all(isinstance(row, list) and all(isinstance(i, int) and i >= 0 for i in row) for row in rows):
        tokens = pad_sequence(
            [torch.tensor(row, dtype=torch.int64) for row in rows], batch_first=True, padding_value=-1
        )
    return Samples([record["text"] for record in records], tokens, about)


def _common(values: list[Any]) -> Any:
    """The common value of all records, or all values if samples of several kinds are mixed."""
    different = list({json.dumps(value, sort_keys=True): value for value in values}.values())
    return different[0] if len(different) == 1 else "mixed: " + ", ".join(str(value) for value in different)
