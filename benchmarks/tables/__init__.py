"""The tables with numbers in README and docs, generated from the stored results.

    make docs-tables              or: python -m benchmarks.tables
    python -m benchmarks.tables --check      name the pages that would change, and change nothing

A table stands in a page between ``<!-- table: NAME -->`` and ``<!-- end -->``. Its function, one for each name, reads
docs/results/*.json and returns Markdown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"


def stored(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_error(value: float, error: float, form: str = ".3f") -> str:
    return f"{value:{form}} ± {error:{form.lstrip('+')}}"
