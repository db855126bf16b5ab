"""A finished sample as JSON, one object per sequence, and back to the Steps that made it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from unmask.sampler import Step
from unmask.text.model import TextSample


def records(
    made: TextSample, *, model: str, seed: int, index: Sequence[int] | None = None, **how: Any
) -> Iterator[dict[str, Any]]:
    """One object per sequence; its trace has one entry per network call that it took part in.

    how: sampler, steps, draw and so on, which go into every object. index: which sequences of the seed they are.

    An entry has the number of the call among the sequence's own, the positions it filled, with which tokens, their
    probabilities and their hitting times (tau); where Algorithm 4 masked positions again first (hidden) or kept what
    stood there (not drawn), that too; and with --ahead the positions and tokens that are guesses for now (guessed).
    """
    traces: list[list[dict[str, Any]]] = [[] for _ in made.text]
    for step in made.trace:
        for row, sequence in enumerate(step.sequences.tolist()):
            traces[sequence].append({"call": len(traces[sequence]) + 1, **_entry(step, row)})
    tokens, nfe, ncs = made.tokens.tolist(), made.nfe.tolist(), made.ncs.tolist()
    for i, text in enumerate(made.text):
        yield {
            "text": text,
            "seed": seed,
            "index": i if index is None else index[i],
            "nfe": nfe[i],
            "ncs": ncs[i],
            "model": model,
            **how,
            "tokens": tokens[i],
            "trace": traces[i],
        }


def _entry(step: Step, row: int) -> dict[str, Any]:
    real = step.positions[row] >= 0
    columns = {"positions": step.positions, "tokens": step.tokens, "probabilities": step.probabilities, "tau": step.tau}
    entry = {name: values[row].cpu()[real].tolist() for name, values in columns.items()}
    if step.hidden is not None and bool((step.hidden[row] >= 0).any()):
        entry["hidden"] = step.hidden[row][step.hidden[row] >= 0].tolist()
    if step.guessed is not None and bool((step.guessed[row] >= 0).any()):
        entry["guessed"] = step.guessed[row][step.guessed[row, :, 0] >= 0].tolist()
    drawn = step.drawn[row][real].tolist()
    return entry if all(drawn) else entry | {"drawn": drawn}


def parse(line: str) -> dict[str, Any]:
    """A record that ``records`` made, or a ValueError that says what is wrong with it."""
    try:
        record: dict[str, Any] = json.loads(line)
        length = len(record["tokens"])
        for name, kind in (("text", str), ("model", str), ("tokens", list), ("trace", list)):
            if not isinstance(record[name], kind):
                raise ValueError(f"{name} is no {kind.__name__}")
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
    """The canvas [1, L] before the first call: whatever the trace fills was masked."""
    tokens = torch.tensor([record["tokens"]], dtype=torch.int64)
    for entry in record["trace"]:
        tokens[0, entry["positions"]] = mask_id
    return tokens
