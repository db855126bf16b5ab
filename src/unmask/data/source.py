"""Reading text from wherever it lies, in pieces that fit into memory.

A source is a path (text, a folder of text, CSV, TSV or JSON lines, each also gzipped), ``datasets:NAME`` or
``datasets:NAME:CONFIG``, or an iterable of texts or of records. It is read as chunks: (text, whether a document ends
with it).
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

Chunk = tuple[str, bool]
Source = str | os.PathLike[str] | Iterable[str] | Iterable[Mapping[str, Any]]

TABLES = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Reader:
    """Reads a source as often as it is asked: counting, training a tokenizer and encoding are one pass each.

    ``by_line`` makes each line of a text file a document of its own; otherwise each file is one. ``size`` is the number
    of characters after which a long document is handed on in part; ``called`` replaces the source's name in messages.
    """

    source: Source
    column: str | None = None
    by_line: bool = False
    size: int = 1 << 20
    called: str | None = None

    def __iter__(self) -> Iterator[Chunk]:
        for path in self._paths():
            yield from _parts(self._documents(path), self.size)
        if not isinstance(self.source, str | os.PathLike):
            yield from _parts(((text, True) for text in self._texts(self.source)), self.size)

    @property
    def name(self) -> str:
        """What to call the source in a header or an error."""
        if self.called is not None:
            return self.called
        return str(self.source) if isinstance(self.source, str | os.PathLike) else type(self.source).__name__

    def repeatable(self, copy: Path, report: Callable[[int], None]) -> Reader:
        """This reader, or, where the source can be read once only or comes over a network, one of a local copy of it.

        ``report`` is told how many characters were copied.
        """
        if isinstance(self.source, str | os.PathLike | Sized):
            return self
        done = 0
        with copy.open("w", encoding="utf-8") as file:
            for text in self._texts(self.source):
                file.write(json.dumps({"text": text}) + "\n")
                done += len(text)
                report(done)
        return Reader(copy, "text", self.by_line, self.size, self.name)

    def _paths(self) -> list[Path]:
        if not isinstance(self.source, str | os.PathLike):
            return []
        path = Path(self.source)
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith((".txt", ".txt.gz")))
            if not found:
                raise ValueError(f"source={str(path)!r}: the folder holds no .txt or .txt.gz file")
            return found
        if not path.is_file():
            raise ValueError(f"source={str(path)!r}: no such file or folder")
        return [path]

    def _documents(self, path: Path) -> Iterator[Chunk]:
        if _suffix(path) in TABLES:
            return ((text, True) for text in _read_table(path, self.column))
        if _suffix(path) in JSON_LINES:
            return ((_field(record, self.column, where), True) for where, record in _read_json_lines(path))
        return _read_text(path, self.by_line, self.size)

    def _texts(self, items: Iterable[Any]) -> Iterator[str]:
        for i, item in enumerate(items):
            where = f"{self.name}, item {i}"
            if isinstance(item, str):
                yield item
            elif isinstance(item, Mapping):
                yield _field(item, self.column, where)
            else:
                raise ValueError(f"{where} is {type(item).__name__}: a text or a record of named fields is needed")


def _column(names: Iterable[str], column: str | None, where: str) -> str:
    """The asked column; without one, the only one or "text"."""
    names = list(names)
    column = column or (names[0] if len(names) == 1 else "text")
    if column not in names:
        raise ValueError(f"column={column!r}: {where} has {', '.join(map(repr, names)) or 'nothing'}")
    return column


def _field(record: Mapping[str, Any], column: str | None, where: str) -> str:
    column = _column(record, column, where)
    value = record[column]
    if not isinstance(value, str):
        raise ValueError(f"column={column!r}: {where} holds {type(value).__name__} there, a text is needed")
    return value


def open_dataset(name: str, split: str, streaming: bool) -> Iterable[Mapping[str, Any]]:
    """``datasets:NAME`` or ``datasets:NAME:CONFIG`` of the ``datasets`` library; NAME may be a local folder."""
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        hint = f"{name} needs datasets: pip install 'unmask[datasets]'"
        raise ModuleNotFoundError(hint, name="datasets") from error
    path, _, config = name.removeprefix("datasets:").partition(":")
    loaded = datasets.load_dataset(path, config or None, split=split, streaming=streaming)
    return cast(Iterable[Mapping[str, Any]], loaded)


def last_space(text: str) -> int:
    """The last place to cut a text such that a byte-level BPE gives the same tokens in two parts as in one; 0 if none.

    No token of such a BPE spans from a visible character to a space, and none looks back.
    """
    cut = max(text.rfind(" "), text.rfind("\n"))
    while cut > 0 and text[cut - 1].isspace():
        cut -= 1
    return max(cut, 0)


def _parts(chunks: Iterable[Chunk], size: int) -> Iterator[Chunk]:
    """Chunks of about ``size`` characters at most, cut where tokens do not notice; empty documents are dropped."""
    rest = ""
    for text, ends in chunks:
        rest += text
        while len(rest) > size:
            cut = last_space(rest[:size]) or size
            yield rest[:cut], False
            rest = rest[cut:]
        if ends:
            if rest:
                yield rest, True
            rest = ""


def _read_text(path: Path, by_line: bool, size: int) -> Iterator[Chunk]:
    with _utf8(path) as file:
        if by_line:
            for line in file:
                yield line.rstrip("\r\n"), True
            return
        while block := file.read(min(size, 1 << 20)):
            yield block, False
        yield "", True


def _read_table(path: Path, column: str | None) -> Iterator[str]:
    with _utf8(path) as file, _long_fields():
        reader = csv.reader(file, delimiter=TABLES[_suffix(path)])
        try:
            header = next(reader, [])
            at = header.index(_column(header, column, f"{path}'s first line")) if header else 0
            for row in reader:
                if row and len(row) <= at:
                    raise ValueError(
                        f"{path}, line {reader.line_num}: it has {len(row)} cells, {header[at]!r} is missing"
                    )
                if row:
                    yield row[at]
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from error


def _read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with _utf8(path) as file:
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


@contextmanager
def _utf8(path: Path) -> Iterator[io.TextIOWrapper]:
    """The file as text, line ends untouched, a byte order mark dropped; an error says where it is not UTF-8."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as binary:
        text = io.TextIOWrapper(binary, encoding="utf-8-sig", newline="")
        try:
            yield text
        except UnicodeDecodeError as error:
            at = binary.tell() - len(error.object) + error.start
            wrong = error.object[error.start]
            raise ValueError(
                f"{path} is not UTF-8 text: byte 0x{wrong:02x} at {at:,}; convert it first, for example with iconv"
            ) from error
        except (gzip.BadGzipFile, EOFError) as error:
            raise ValueError(f"{path} is not a whole gzip file: {error}") from error


@contextmanager
def _long_fields() -> Iterator[None]:
    # The csv module refuses cells of more than 128 KiB unless told otherwise, and only for the whole process.
    before = csv.field_size_limit((1 << 31) - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()
