"""From a file to its documents: one table of formats by suffix, one of compressions, and text for everything else.

A format is a function of (path, column, by_line, size) that yields chunks: (text, whether a document ends with it).
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from unmask.data.compressed import library, opened, suffix_of, utf8
from unmask.data.tables import TABLES, table
from unmask.data.text8 import OFFICIAL

Chunk = tuple[str, bool]
Kind = Callable[[Path, str | None, bool, int], Iterator[Chunk]]

COLUMNS = ("text", "smiles", "sequence")  # names of the text column, if none was given
RECORDS = (*TABLES, ".jsonl", ".ndjson", ".parquet")
SHORT_ROW = 200  # characters: where 99% of the records are no longer, each is a row by default
NAME = 40  # characters: records of this length are spelled by characters by default
LIST, ENDS = 20, ".,;:!?"  # lines that a list has at least; signs that end lines of prose, verse and code
SAMPLED = 10_000  # records whose lengths are looked at
BLOCK = 1 << 20


def documents(path: Path, column: str | None, by_line: bool, size: int) -> Iterator[Chunk]:
    """The documents of one file, in the format of its suffix."""
    return KINDS.get(suffix_of(path), _text)(path, column, by_line, size)


def preferred(source: object, column: str | None, length: int | None = None) -> dict[str, str]:
    """How such a file is prepared by default: FASTA records and molecules are rows, and so are short records of a table
    and the lines of a list if no length is given.
    """
    if OFFICIAL.is_file(source):
        return {"tokenizer": "characters", "layout": "wrapped"}
    suffix = suffix_of(Path(source)) if isinstance(source, str | Path) else ""
    if suffix in FASTA:
        return {"tokenizer": "characters", "layout": "rows"}
    if isinstance(source, str | Path) and Path(source).is_file() and (names := _names(Path(source), column)):
        column = column_of(names, column, f"{source}'s first line")
    if suffix in SMILES or (column or "").lower().endswith("smiles"):
        return {"tokenizer": "smiles", "layout": "rows"}
    if length is None and has_records(source):
        records = documents(Path(str(source)), column, False, 1 << 62)
        lengths = sorted(len(text) for text, _ in islice(records, SAMPLED))
        usual = lengths[len(lengths) * 99 // 100] if lengths else SHORT_ROW + 1
        if usual <= SHORT_ROW:
            return {"tokenizer": "characters" if usual <= NAME else "bpe", "layout": "rows"}
    return {"tokenizer": "characters", "layout": "rows"} if length is None and is_list(source) else {}


def check_column(source: object, column: str | None) -> None:
    """Refuse a column of a file that has none."""
    if column is not None and isinstance(source, str | Path) and Path(source).is_file() and not has_records(source):
        raise ValueError(f"column={column!r}: {source} is no table and has no columns; leave --column out")


def has_records(source: object) -> bool:
    """Whether a source is a file of records: a table, or JSON objects or texts."""
    if not isinstance(source, str | Path) or not Path(source).is_file():
        return False
    path = Path(source)
    suffix = suffix_of(path)
    if suffix == ".json":
        return _array(path) is not None or _begins_with_objects(path)
    return suffix in RECORDS


def is_list(source: object) -> bool:
    """Whether a text is a list of names, titles or the like: no line is long, and few are empty or end a sentence."""
    if not isinstance(source, str | Path) or not Path(source).is_file() or suffix_of(Path(source)) in KINDS:
        return False
    with utf8(Path(source)) as file:
        lines = [line.strip() for line in file.read(BLOCK).splitlines()]
    others = sum(not line or line[-1] in ENDS for line in lines)
    return len(lines) >= LIST and max(map(len, lines)) <= NAME and others <= len(lines) // 20


def is_text(path: Path) -> bool:
    """Whether a file of a folder can be read: by its format, or because it begins with UTF-8 text."""
    if suffix_of(path) in KINDS:
        return True
    try:
        with opened(path) as file:
            start = file.read(BLOCK // 16)
        codecs.getincrementaldecoder("utf-8")().decode(start)  # which may end inside a character
    except (ValueError, OSError):
        return False
    return b"\0" not in start


def column_of(names: Iterable[str], column: str | None, where: str) -> str:
    """The given column; without one, the only one, or the one named text, smiles or sequence."""
    names = list(names)
    if column is None:
        usual = [name for name in names if name.lower() in COLUMNS]
        column = names[0] if len(names) == 1 else usual[0] if len(usual) == 1 else "text"
    if column not in names:
        there = ", ".join(map(repr, names)) or "nothing"
        number = ", or give its number if this is no header" if where.endswith("first line") else ""
        raise ValueError(f"column={column!r}: {where} has {there}; name one with --column{number}")
    return column


def field(record: Mapping[str, Any], column: str | None, where: str) -> str:
    """The text of a record."""
    column = column_of(record, column, where)
    value = record[column]
    if not isinstance(value, str):
        raise ValueError(f"column={column!r}: {where} holds {type(value).__name__} there, a text is needed")
    return value


def _text(path: Path, column: str | None, by_line: bool, size: int) -> Iterator[Chunk]:
    with utf8(path) as file:
        if by_line:
            for line in file:
                yield line.rstrip("\r\n"), True
            return
        while block := file.read(min(size, BLOCK)):
            yield block, False
        yield "", True


def _names(path: Path, column: str | None) -> list[str]:
    """The column names of a table; none for other formats."""
    if suffix_of(path) == ".parquet":
        return list(library("pyarrow.parquet").read_schema(path).names)
    if suffix_of(path) not in TABLES:
        return []
    with utf8(path) as file:
        return table(file, path, column)[0]


def json_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file of JSON lines, each with its place."""
    with utf8(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{where} is not JSON: {error}") from error
            if not isinstance(record, dict):
                raise ValueError(f"{where} is not a JSON object with named fields")
            yield where, record


def _json_lines(path: Path, column: str | None, by_line: bool, size: int) -> Iterator[Chunk]:
    for where, record in json_records(path):
        yield field(record, column, where), True


def _json(path: Path, column: str | None, by_line: bool, size: int) -> Iterator[Chunk]:
    """An array of texts or of objects, or JSON lines; any other JSON is a text."""
    records = _array(path)
    if records is None:
        yield from (_json_lines if _begins_with_objects(path) else _text)(path, column, by_line, size)
        return
    for number, record in enumerate(records, 1):
        yield (record if isinstance(record, str) else field(record, column, f"{path}, item {number}")), True


def _array(path: Path) -> list[str | dict[str, Any]] | None:
    """The items of a file that is an array of texts, or an array of objects."""
    with utf8(path) as file:
        start = file.read(BLOCK // 16)
        if not start.lstrip().startswith("["):
            return None
        try:
            items = json.loads(start + file.read())
        except (ValueError, RecursionError):
            return None
    alike = any(all(isinstance(item, kind) for item in items) for kind in (str, dict))
    return items if items and alike else None


def _begins_with_objects(path: Path) -> bool:
    """Whether the first two lines are an object each."""
    with utf8(path) as file:
        lines = [line for line in islice(file, 64) if line.strip()][:2]
    try:
        return len(lines) == 2 and all(isinstance(json.loads(line), dict) for line in lines)
    except (ValueError, RecursionError):
        return False


def _table(path: Path, column: str | None, by_line: bool, size: int) -> Iterator[Chunk]:
    with utf8(path) as file:
        names, rows = table(file, path, column)
        at = names.index(column_of(names, column, f"{path}'s first line")) if names else 0
        for number, row in rows:
            if len(row) <= at:
                raise ValueError(f"{path}, line {number}: it has {len(row)} cells, {names[at]!r} is missing")
            yield row[at], True


def _parquet(path: Path, column: str | None, by_line: bool, size: int) -> Iterator[Chunk]:
    parquet = library("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            name = column_of(file.schema_arrow.names, column, str(path))
            for batch in file.iter_batches(batch_size=1024, columns=[name]):
                for value in batch.column(0).to_pylist():
                    if not isinstance(value, str):
                        what = type(value).__name__
                        raise ValueError(f"column={name!r}: {path} holds {what} there, a text is needed")
                    yield value, True
    except library("pyarrow").ArrowInvalid as error:
        raise ValueError(f"{path} is not a whole Parquet file: {error}") from error


NO_LETTERS = str.maketrans({" ": None, "*": "X", "-": "X"})  # a stop and a gap count as residues


def _fasta(path: Path, column: str | None, by_line: bool, size: int) -> Iterator[Chunk]:
    """The sequences without their headers, for any line length."""
    parts: list[str] = []
    headed = False
    with utf8(path) as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            headed = headed or line.startswith(">")
            if line and not headed and not line.startswith(";"):
                raise ValueError(f"{path}, line {number}: a FASTA record begins with a line that starts with >")
            if line.startswith(">"):
                if parts:
                    yield "".join(parts), True
                parts = []
            elif line and not line.startswith(";"):
                if not line.translate(NO_LETTERS).isalpha():
                    raise ValueError(f"{path}, line {number}: {line[:40]!r} is not a sequence of residues")
                parts.append(line.replace(" ", "").upper())
    if parts:
        yield "".join(parts), True


def _smiles(path: Path, column: str | None, by_line: bool, size: int) -> Iterator[Chunk]:
    """One molecule per line; the rest of the line is its name."""
    with utf8(path) as file:
        for line in file:
            if line.strip():
                yield line.split()[0], True


FASTA = (".fasta", ".fa", ".faa", ".fna")
SMILES = (".smi", ".smiles")
KINDS: dict[str, Kind] = {
    **dict.fromkeys(TABLES, _table),
    ".json": _json,
    **dict.fromkeys((".jsonl", ".ndjson"), _json_lines),
    ".parquet": _parquet,
    **dict.fromkeys(FASTA, _fasta),
    **dict.fromkeys(SMILES, _smiles),
}
