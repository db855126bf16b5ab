"""Tables of separated values: the separator, the header, and the rows."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path

TABLES = {".csv": ",;\t", ".tsv": "\t"}  # the separators that a file may have, by its suffix
LOOKED_AT = 5  # lines, to tell which separator a table has
NUMBER = re.compile(r"[-+]?[\d.,]*\d[\d.,]*(e[-+]?\d+)?%?", re.IGNORECASE)

Rows = Iterator[tuple[int, list[str]]]


def table(lines: Iterable[str], path: Path, column: str | None) -> tuple[list[str], Rows]:
    """The names of a table's columns, and its rows with their line numbers, without empty ones.

    The names are in the first line, or 1, 2, ... if the column is a number that is not a name. A first line that is a
    header all the same is then left out.
    """
    lines = iter(lines)
    start = list(islice(lines, LOOKED_AT))
    suffix = next(one for one in TABLES if one in path.name.lower())
    rows = _rows(chain(start, lines), path, _separator(start, TABLES[suffix]))
    number, first = next(rows, (1, []))
    if column is None or not column.isdecimal() or column in first:
        return first, rows
    names = [str(k) for k in range(1, len(first) + 1)]
    second = next(rows, None)
    if second is not None and _is_header(first, second[1]):
        _note(f"{path}: the first line is left out, because it is a header: {', '.join(first)[:60]}")
        return names, chain([second], rows)
    if column in names:
        cell = first[int(column) - 1]
        _note(f"{path}: --column {column} takes the first line as data too: {cell[:40]!r}; a header has names instead")
    return names, chain([(number, first)], [] if second is None else [second], rows)


def _rows(lines: Iterable[str], path: Path, separator: str) -> Rows:
    reader = csv.reader(lines, delimiter=separator)
    with _long_fields():
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from error


def _separator(start: list[str], candidates: str) -> str:
    """The first separator that divides the lines into as many cells each, and more than one."""
    for separator in candidates:
        with _long_fields():
            cells = [len(row) for row in csv.reader(start, delimiter=separator) if row]
        whole = cells[:-1] or cells  # the last line may be the beginning of a cell with several
        if len(set(whole)) == 1 and whole[0] > 1:
            return separator
    return candidates[0]


def _is_header(first: list[str], second: list[str]) -> bool:
    """Whether a column has a number in the second line and none in the first."""
    return any(not NUMBER.fullmatch(a) and NUMBER.fullmatch(b) for a, b in zip(first, second, strict=False))


def _note(text: str) -> None:
    warnings.warn(text, stacklevel=2)


@contextmanager
def _long_fields() -> Iterator[None]:
    # The csv module refuses cells of more than 128 KiB by default, and the limit is global to the process.
    before = csv.field_size_limit((1 << 31) - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)
