"""The record of a sequence in ``unmask sample --json``, and the Steps that made it."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from unmask.sampler import Step


def parse(line: str) -> dict[str, Any]:
    """Parse a record of ``texts.records``, or raise a ValueError that says what is wrong."""
    try:
        record: dict[str, Any] = json.loads(line)
        length = len(record["tokens"])
        for name, kind in (("text", str), ("model", str), ("tokens", list), ("trace", list)):
            if not isinstance(record[name], kind):
                raise ValueError(f"{name} is not of type {kind.__name__}")
        for entry in record["trace"]:
            sizes = {len(entry[name]) for name in ("positions", "tokens", "probabilities", "tau")}
            places = [*entry["positions"], *entry.get("hidden", []), *(place for place, _ in entry.get("guessed", []))]
            if len(sizes) != 1 or not all(0 <= position < length for position in places):
                raise ValueError("an entry of its trace does not fit its tokens")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"not a line that --json wrote: {error!r}") from error
    return record


def steps(record: dict[str, Any]) -> list[Step]:
    """The Steps of one sequence, as if it had been sampled alone."""
    trace, nothing = record["trace"], torch.zeros(1, dtype=torch.int64)
    return [
        Step(
            nothing,
            torch.tensor([entry["positions"]], dtype=torch.int64),
            torch.tensor([entry["tokens"]], dtype=torch.int64),
            torch.tensor([entry["probabilities"]], dtype=torch.float64),
            torch.tensor([entry["tau"]], dtype=torch.float64),
            torch.tensor([entry.get("drawn", [True] * len(entry["positions"]))], dtype=torch.bool),
            torch.tensor([sum(entry.get("drawn", [True] * len(entry["positions"]))) + len(entry.get("guessed", []))]),
            torch.tensor([entry["hidden"]], dtype=torch.int64) if "hidden" in entry else None,
            torch.tensor([entry["guessed"]], dtype=torch.int64) if "guessed" in entry else None,
            calls=i,
            planned=len(trace),
        )
        for i, entry in enumerate(trace, 1)
    ]


def canvas(record: dict[str, Any], mask_id: int) -> Tensor:
    """The canvas [1, L] before the first call: every position that the trace fills was masked."""
    tokens = torch.tensor([record["tokens"]], dtype=torch.int64)
    for entry in record["trace"]:
        tokens[0, entry["positions"]] = mask_id
    return tokens
