"""Open a file of data, which may be compressed, as bytes or as text."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unmask.extras import needed

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")


def suffix_of(path: Path) -> str:
    """The suffix of a file without its compression."""
    name = path.name.lower()
    for ending in COMPRESSIONS:
        name = name.removesuffix(ending)
    return Path(name).suffix


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The bytes of a file, decompressed."""
    ending = path.suffix.lower()
    try:
        if ending == ".zst":
            with (
                path.open("rb") as raw,
                library("zstandard").ZstdDecompressor().stream_reader(raw, read_across_frames=True) as file,
            ):
                yield file
            return
        openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
        with openers.get(ending, Path.open)(path, "rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, lzma.LZMAError) as error:
        name = {".gz": "gzip"}.get(ending, ending.removeprefix("."))
        raise ValueError(f"{path} is not a whole {name} file: {error}") from error
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None:  # while it was read
            raise ValueError(f"{path} cannot be read: {error.strerror}") from error
        if type(error).__name__ != "ZstdError":
            raise
        raise ValueError(f"{path} is not a whole zst file: {error}") from error


@contextmanager
def utf8(path: Path) -> Iterator[io.TextIOWrapper]:
    """The file as text, with line ends unchanged, without a byte order mark; an error says where it is not UTF-8."""
    with opened(path) as binary:
        text = io.TextIOWrapper(binary, encoding="utf-8-sig", newline="")
        try:
            yield text
        except UnicodeDecodeError as error:
            at = binary.tell() - len(error.object) + error.start
            wrong = error.object[error.start]
            raise ValueError(
                f"{path} is not UTF-8 text: byte 0x{wrong:02x} at {at:,}; convert it first, for example with iconv"
            ) from error


def library(name: str) -> Any:
    return needed(name, f"this file needs {name.partition('.')[0]}", "tables")
