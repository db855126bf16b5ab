"""Numbers in tables: each table says where its numbers come from, and they are there.

A table with numbers has a comment on the line above it, one of

    <!-- measured: results/coverage.json by `python -m benchmarks.coverage` -->     the stored result, and its command
    <!-- measured by `unmask steps kjv` -->                                         the command alone
    <!-- not measured -->                                                           sizes, section numbers, definitions
    <!-- a log: by scripts that were not kept -->                                   in docs/notes alone

and every number with a decimal point in a table of the first kind is in the stored JSON, rounded as shown, or is
printed from it by the report of its benchmark: under keys that are the words of its row, or of its row and column. The
README's results and the prose of docs/reproduction.md are held to the stored numbers one by one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import unmask
from benchmarks import ANY_ORDER, sampling_report
from reproduction import files
from unmask.loading import BOX

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results"
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


SAME = {"one": "1", "two": "2", "four": "4"}
PLAIN = {"a", "an", "the", "of", "and"}


class Stored(NamedTuple):
    value: float
    labels: frozenset[frozenset[str]]  # the words of every key above it, and of the names and whole numbers beside it


def words(text: str) -> frozenset[str]:
    found = re.findall(r"[^\W_]+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d{3})", "", text.casefold()))
    return frozenset(SAME.get(word, word) for word in found) - PLAIN


def stored(value: Any, above: frozenset[frozenset[str]] = frozenset()) -> Iterator[Stored]:
    """All numbers in what a JSON file holds, those in its strings too: results keep intervals as they are shown."""
    if isinstance(value, dict):
        names = (str(one) for one in value.values() if isinstance(one, str | int))
        beside = above | {words(name) for name in names}
        for key, one in value.items():
            yield from stored(one, beside | {words(key)})
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from stored(one, above | {words(str(i))} if len(value) > 2 else above)
    elif isinstance(value, str):
        yield from (Stored(float(number.replace(",", "")), above) for number in NUMBER.findall(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield Stored(float(value), above)


def reported(text: str) -> Iterator[Stored]:
    """The numbers of a printed report: under its headings, the first cells of rows and the heads of columns."""
    for part in text.split("### "):
        heading = frozenset(words(one) for one in re.split(r": | \(", part.split("\n")[0]))
        for table in tables(Path(), part):
            for row in table.rows[2:]:
                for cell, head in zip(cells_of(row), cells_of(table.rows[0]), strict=True):
                    labels = heading | {words(cells_of(row)[0]), words(head)}
                    yield from (Stored(float(n.replace(",", "")), labels) for n in NUMBER.findall(cell))
        for line in part.splitlines():
            if not line.startswith("|"):  # "Growth with N, as an exponent: ours 0.20, float32 0.67."
                about = heading | {words(line.partition(":")[0])}
                yield from (
                    Stored(float(n), about | {words(name)}) for name, n in re.findall(r"(\w+) (\d+\.\d+)", line)
                )


def cells_of(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().removeprefix("|").removesuffix("|"))]


def is_shown(shown: str, value: float) -> bool:
    """Whether a number is shown so: at most half of the last digit away."""
    half = 0.5 * 10.0 ** -len(shown.partition(".")[2])
    return math.isclose(float(shown.replace(",", "")), value, rel_tol=0, abs_tol=half * 1.0001)


def under(told: frozenset[str], values: list[Stored]) -> list[Stored]:
    """The numbers whose labels have most words in what a row and a column say; a label counts if all its words are."""

    def score(one: Stored) -> int:
        return len(frozenset().union(*(label for label in one.labels if label <= told)))

    best = max(map(score, values))
    return [one for one in values if best and score(one) == best]


def missing(table: Table) -> list[str]:
    """The numbers of a table that its stored result does not hold under the names of their row, or row and column."""
    named = SOURCE.search(table.above)
    assert named and named["file"]
    path = table.page.parent / named["file"]
    found = json.loads(path.read_text())
    values = [*stored(found), *(reported(REPORTS[path.name](found)) if path.name in REPORTS else ())]
    head, absent = cells_of(table.rows[0]), []
    for row in table.rows[2:]:
        first, *cells = cells_of(row)
        label = words("; ".join((first, *(cell for cell in cells if not NUMBER.search(cell)))))
        absent += [n for n in NUMBER.findall(first) if not any(is_shown(n, one.value) for one in values)]
        for cell, column in zip(cells, head[1:], strict=True):
            for match in NUMBER.finditer(cell):
                row_and = label | ({"error", "errors", "its"} if cell[: match.start()].endswith("± ") else set())
                sizes = {word for word in words(column) if word.isdigit()}
                near = [
                    *under(row_and | sizes, values),
                    *under(row_and | words(f"{head[0]}; {column}; {cell}"), values),
                ]
                if not any(is_shown(match[0], one.value) for one in near):
                    absent.append(f"{first}, {column}: {match[0]}")
    return absent


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


@pytest.mark.parametrize("card", sorted((RESULTS / "box").glob("*.json")), ids=lambda path: path.stem)
def test_a_card_has_the_numbers_that_its_command_gave(card: Path) -> None:
    found = json.loads(card.read_text())
    bits = found["bits_per_token"]
    value = f"{bits['value']:.3f} ± {bits['error_over_sequences']:.2g}"
    if card.stem == "kjv-sedd":  # it has a recipe, and its weights were not kept
        assert value in (ROOT / "recipes/README.md").read_text()
        return
    cards = [path.read_text() for folder in (BOX, ANY_ORDER.parent) for path in folder.glob("*/README.md")]
    shown = [
        line for text in cards for line in text.splitlines() if f"`{found['command'].removesuffix(' --json')}`" in line
    ]
    assert shown
    for line in shown:
        assert value in line
        if not found["exact"]:
            assert f"own error is {bits['error_of_estimate']:.2g})" in line


def headlines() -> list[str]:
    """The results that the README claims, from the keys under which they are stored."""
    counts, seconds, traffic, small, large, steps, moses = (
        json.loads((RESULTS / f"{name}.json").read_text())
        for name in ("ahead-counts", "ahead-seconds", "traffic", "sudoku6", "sudoku9", "published_steps", "moses")
    )
    made, charrnn = moses["measured"]["molecules"], moses["published"]["CharRNN"]
    ahead = unmask.sample(unmask.load("kjv").denoiser, num=4, length=128, ahead=32, seed=0)  # as `unmask steps kjv`
    fast, slow = (1e3 * seconds["seconds"]["kjv-anyorder"][key] for key in ("auto", "none"))
    ar, anyorder, masked = (traffic["lengths"][name]["mixed"] for name in ("kjv-ar", "kjv-anyorder", "kjv"))

    def solved(found: dict[str, Any], clues: int) -> str:
        part = {r["order"]: r["part"] for r in found["orders"] if (r["clues"], r["temperature"]) == (clues, 1.0)}
        return f"{part['random']:.0%} in random order, {part['margin']:.0%} with the largest margin first"

    cells = files.tables_of(steps)["cells"].where(subject="oracle", sampler="published (MDLM), float32")
    perplexity = dict(zip(cells.column("N"), cells.column("perplexity"), strict=True))
    return [
        f"{counts['box']['kjv-anyorder']['32']['tokens_per_pass']:.1f} with a look-ahead window of 32",
        f"{fast:.0f} ms instead of {slow:.0f}: {slow / fast:.1f} times less",
        f"sample of 128 tokens from `kjv` | {float(ahead.nfe.double().mean()):.1f} |",
        f"{ar:.1f} times (`kjv-ar`), {anyorder:.1f} (`kjv-anyorder`), {masked:.1f} (`kjv`)",
        solved(small, 10),
        solved(large, 32),
        f"{made['valid']:.0%} valid, {made['Novelty']:.0%} of these new, FCD {made['FCD/Test']:.2f} "
        f"(CharRNN {charrnn['FCD/Test']:.2f})",
        f"perplexity falls from {perplexity[100]:.0f} to {perplexity[50_000]:.0f}",
    ]


def test_the_results_of_the_readme_are_those_stored() -> None:
    shown = next(table for table in every() if table.page.name == "README.md" and table.page.parent == ROOT)
    rows = "\n".join(shown.rows[2:])
    assert [said for said in headlines() if said not in rows] == []
    assert len(headlines()) == len(shown.rows[2:]), "a result of the README without a stored number"


def test_the_reproductions_prose_quotes_stored_claims() -> None:
    """Every "value ± error" of docs/reproduction.md is a number of a stored claim, with its error, or minus it."""
    claims = [one for about in files.stored(RESULTS) for one in files.claims_of(about)]
    known = [(n.value, n.error) for one in claims for n in one.numbers if n.value is not None and n.error]
    text = (ROOT / "docs/reproduction.md").read_text()
    assert [" ± ".join(pair) for pair in pairs(text) if not is_quoted(*pair, known)] == []


def pairs(text: str) -> list[tuple[str, str]]:
    return re.findall(r"(?<![\w.])([-+]?\d+\.\d+)\s+±\s+(\d+\.\d+)", text)


def is_quoted(value: str, error: str, known: list[tuple[float, float]]) -> bool:
    return any(is_shown(error, e) and (is_shown(value, v) or is_shown(value, -v)) for v, e in known)


def test_a_wrong_number_a_number_of_another_row_and_a_bare_table_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"x": 0.84175, "b": ["12.5 [11.2, 13.9]"], "c": {"8": 3.0, "16": 4.5}}')
    head = "<!-- measured: r.json by `x` -->\n| n | v | W = 8 | 16 |\n|---|---|---|---|\n"
    text = head + "| {} |\n\n| | |\n|---|---|\n| v | 1.5 |\n"

    def found(row: str) -> list[str]:
        return missing(next(tables(tmp_path / "page.md", text.format(row))))

    assert not found("the x | 0.842x | | ") and not found("b | 12.5 [11.2, 13.9] | | ")
    assert not found("c | | 3.0 | 4.5")
    assert found("the x | 0.843 | | ") == ["the x, v: 0.843"]
    assert found("the x | 12.5 | | ") == ["the x, v: 12.5"], "it is b's"
    assert len(found("c | | 4.5 | 3.0")) == 2, "each is the other column's"
    assert found("d | 0.842 | | ") == ["d, v: 0.842"], "no key has that name"
    *_, bare = tables(tmp_path / "page.md", text)
    assert not SOURCE.search(bare.above) and bare.numbers == ["1.5"]
    assert pairs("by 1.10 ±\n0.08 nats") == [("1.10", "0.08")]
    assert is_quoted("0.08", "0.02", [(-0.0813, 0.0241)]) and not is_quoted("0.08", "0.03", [(-0.0813, 0.0241)])
