"""``unmask evaluate MODEL --zero-shot``: one model on several corpora, as one table or as JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from unmask.cli.options import loaded
from unmask.errors import OptionError
from unmask.evaluate import processes
from unmask.evaluate.likelihood.evaluation import Evaluation
from unmask.evaluate.likelihood.zero_shot import CORPORA, zero_shot
from unmask.files import write_whole

UNITS = (
    "± are standard errors of the perplexity, which is per token of the model's own tokenizer: models with different "
    "tokenizers are compared in bits per character"
)
HEADER = ("data", "sequences", "perplexity", "bits per token", "bits per character", "± estimate", "± sequences")


def run(chosen: Any) -> None:
    """Evaluate on each corpus, and print all results together."""
    if chosen.picture is not None:
        raise OptionError("picture", "--picture is for one data set: leave it out with --zero-shot")
    model = loaded(chosen.model, chosen.network, processes.device(chosen.device), chosen.weights)
    data = chosen.data.split(",") if chosen.data else CORPORA
    how = {name: getattr(chosen, name) for name in ("by", "passes", "until", "batch", "seed")}
    rows = dict(zero_shot(model, data, sequences=chosen.number, **how))
    if not processes.main():
        return
    if not any(isinstance(one, Evaluation) for one in rows.values()):
        raise ValueError("; ".join(f"{name}: {error}" for name, error in rows.items()))
    records = [_record(name, one) for name, one in rows.items()]
    if chosen.output is not None:
        write_whole(Path(chosen.output), (json.dumps(records, indent=1) + "\n").encode())
    print(json.dumps(records) if chosen.json else table(chosen.model, rows))


def _record(name: str, one: Evaluation | ValueError) -> dict[str, Any]:
    if isinstance(one, ValueError):
        return {"data": name, "error": str(one)}
    return one.to_dict(sequences=False) | {"data": name}


def table(model: str, rows: dict[str, Evaluation | ValueError]) -> str:
    """One row for each data set; errors are those of the perplexity."""
    from rich.console import Console
    from rich.table import Table

    grid, notes = Table(*HEADER), []
    laws: dict[str, None] = {}
    for column in grid.columns[1:]:
        column.justify = "right"
    for name, one in rows.items():
        if isinstance(one, ValueError):
            notes.append(f"{name}: left out: {one}")
            continue
        bound = one.bound
        value, estimate, over = bound.units()["perplexity"]
        character = "-" if bound.bits_per_character is None else f"{bound.bits_per_character:.4g}"
        errors = ["exact" if bound.exact else f"{estimate:.2g}", f"{over:.2g}"]
        grid.add_row(name, f"{bound.sequences:,}", f"{value:.5g}", f"{bound.bits_per_token:.4g}", character, *errors)
        laws[f"{one.how}; tokens drawn {one.about['law']}"] = None
    drawn = io.StringIO()
    Console(file=drawn, highlight=False, width=100).print(grid)
    head = [f"{model}, zero-shot: {law}" for law in laws]
    return "\n".join([*head, drawn.getvalue().rstrip("\n"), *notes, UNITS])
