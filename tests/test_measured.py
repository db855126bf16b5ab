"""Numbers in tables: each table says where its numbers come from, and they are there.

A table with numbers has a comment on the line above it, one of

    <!-- measured: results/coverage.json by `python -m benchmarks.coverage` -->     the stored result, and its command
    <!-- measured by `unmask steps kjv` -->                                         the command alone
    <!-- not measured -->                                                           sizes, section numbers, definitions
    <!-- a log: by scripts that were not kept -->                                   in docs/notes alone

and every number with a decimal point in a table of the first kind stands in the stored JSON, rounded as shown, or is
printed from it by the report of its benchmark.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from benchmarks import sampling_report

from unmask.text.find import BOX

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "recipes/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/notes").glob("*.md")),
]
SOURCE = re.compile(
    r"<!-- (?:not measured|a log: [^>]*|measured(?:: (?P<file>\S+\.json))? by `(?P<command>[^`]+)`) -->"
)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*\.\d+(?=x\b|[^\w.]|\.(?!\d)|$)")  # 2.5x is one too
REPORTS = {"sampling.json": sampling_report.tables}  # what is computed from the stored numbers and shown


class Table(NamedTuple):
    page: Path
    line: int
    above: str
    rows: list[str]

    @property
    def numbers(self) -> list[str]:
        return [number for row in self.rows[2:] for number in NUMBER.findall(row)]


def tables(page: Path, text: str) -> Iterator[Table]:
    lines = ["", *text.splitlines(), ""]
    start = 0
    for i, line in enumerate(lines):
        if line.startswith("|") and not start:
            start = i
        elif not line.startswith("|") and start:
            yield Table(page, start, lines[start - 1], lines[start:i])
            start = 0


def stored(value: Any) -> Iterator[float]:
    """All numbers in what a JSON file holds, those in its strings too: results keep intervals as they are shown."""
    if isinstance(value, dict):
        for one in value.values():
            yield from stored(one)
    elif isinstance(value, list):
        for one in value:
            yield from stored(one)
    elif isinstance(value, str):
        yield from (float(number.replace(",", "")) for number in NUMBER.findall(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def is_among(shown: str, values: list[float]) -> bool:
    """Whether one of them is shown so: at most half of the last digit away."""
    value, half = float(shown.replace(",", "")), 0.5 * 10.0 ** -len(shown.split(".")[1])
    return any(math.isclose(value, one, rel_tol=0, abs_tol=half * 1.0001) for one in values)


def missing(table: Table) -> list[str]:
    """The numbers of a table that its stored result does not hold."""
    named = SOURCE.search(table.above)
    assert named and named["file"]
    path = table.page.parent / named["file"]
    found = json.loads(path.read_text())
    values = list(stored(found))
    if path.name in REPORTS:
        values += stored(REPORTS[path.name](found))
    return [number for number in table.numbers if not is_among(number, values)]


def every() -> list[Table]:
    return [table for page in PAGES for table in tables(page, page.read_text()) if table.numbers]


def test_a_table_of_numbers_names_its_source() -> None:
    assert not [f"{t.page.relative_to(ROOT)}:{t.line}" for t in every() if not SOURCE.search(t.above)]
    assert not [t.page.name for t in every() if "<!-- a log" in t.above and t.page.parent.name != "notes"]


@pytest.mark.parametrize(
    "table", [t for t in every() if "measured:" in t.above], ids=lambda t: f"{t.page.name}:{t.line}"
)
def test_the_numbers_of_a_table_are_in_its_stored_result(table: Table) -> None:
    assert not missing(table)


@pytest.mark.parametrize("card", sorted((ROOT / "docs/results/box").glob("*.json")), ids=lambda path: path.stem)
def test_a_card_has_the_numbers_that_its_command_gave(card: Path) -> None:
    found = json.loads(card.read_text())
    cards = [path.read_text() for path in BOX.glob("*/README.md")]
    shown = [
        line for text in cards for line in text.splitlines() if f"`{found['command'].removesuffix(' --json')}`" in line
    ]
    assert shown
    bits = found["bits_per_token"]
    for line in shown:
        assert f"{bits['value']:.3f} ± {bits['error_over_sequences']:.2g}" in line
        if not found["exact"]:
            assert f"own error is {bits['error_of_estimate']:.2g})" in line


def test_a_wrong_number_and_a_bare_table_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"a": 0.84175, "b": ["12.5 [11.2, 13.9]"]}')
    text = "<!-- measured: r.json by `x` -->\n| n | v |\n|---|---|\n| 12 | {} |\n\n| | |\n|---|---|\n| v | 1.5 |\n"
    right, bare = tables(tmp_path / "page.md", text.format("0.842x of 12.5"))
    assert not missing(right) and not SOURCE.search(bare.above) and bare.numbers == ["1.5"]
    wrong, _ = tables(tmp_path / "page.md", text.format("0.843 of 12.5"))
    assert missing(wrong) == ["0.843"]
