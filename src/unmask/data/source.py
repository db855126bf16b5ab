"""Reading text from any source, in pieces that fit into memory.

A source is a path (of a file in one of the ``formats``, or of a folder of them),
``datasets:NAME[@REVISION][:CONFIG]``, or an iterable of texts or of records. It is read as chunks: (text, whether a
document ends with it).
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from unmask.data.formats import Chunk, documents, field, is_text
from unmask.extras import needed

Source = str | os.PathLike[str] | Iterable[str] | Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Reader:
    """Reads a source repeatedly: counting, training a tokenizer and encoding take one pass each.

    ``by_line`` makes each line of a text file a document; otherwise each file is one. ``size`` is the number of
    characters after which a long document is passed on in part; ``called`` replaces the source's name in messages;
    ``notate`` converts each document.
    """

    source: Source
    column: str | None = None
    by_line: bool = False
    size: int = 1 << 20
    called: str | None = None
    notate: Callable[[str], str] | None = None

    def __iter__(self) -> Iterator[Chunk]:
        if self.notate is None:
            yield from self._chunks()
            return
        for number, (text, ends) in enumerate(self._chunks(), 1):
            try:
                yield self.notate(text), ends
            except ValueError as error:
                raise ValueError(f"{self.name}, molecule {number}: {error}") from error

    def _chunks(self) -> Iterator[Chunk]:
        for path in self._paths():
            yield from _parts(documents(path, self.column, self.by_line, self.size), self.size)
        if not isinstance(self.source, str | os.PathLike):
            yield from _parts(((text, True) for text in self._texts(self.source)), self.size)

    @property
    def name(self) -> str:
        """The name of the source in a header or an error."""
        if self.called is not None:
            return self.called
        return str(self.source) if isinstance(self.source, str | os.PathLike) else type(self.source).__name__

    def repeatable(self, copy: Path, report: Callable[[int], None]) -> Reader:
        """This reader, or one of a local copy, if the source can be read only once or comes over a network.

        ``report`` is called with the number of characters copied.
        """
        if isinstance(self.source, str | os.PathLike | Sized):
            return self
        done = 0
        with copy.open("w", encoding="utf-8") as file:
            for text in self._texts(self.source):
                file.write(json.dumps({"text": text}) + "\n")
                done += len(text)
                report(done)
        return Reader(copy, "text", self.by_line, self.size, self.name, self.notate)

    def _paths(self) -> list[Path]:
        if not isinstance(self.source, str | os.PathLike):
            return []
        path = Path(self.source)
        if path.is_dir():
            return _files_of(path)
        if not path.is_file():
            why = "it is a pipe or a device, which cannot be read twice" if path.exists() else "no such file or folder"
            raise ValueError(f"source={str(path)!r}: {why}")
        return [path]

    def _texts(self, items: Iterable[Any]) -> Iterator[str]:
        for i, item in enumerate(items):
            where = f"{self.name}, item {i}"
            if isinstance(item, str):
                yield item
            elif isinstance(item, Mapping):
                yield field(item, self.column, where)
            else:
                raise ValueError(f"{where} is {type(item).__name__}: a text or a record of named fields is needed")


@lru_cache(maxsize=4)
def _files_of(folder: Path) -> list[Path]:
    """The readable files of a folder, without hidden ones; others that are left out are reported once."""
    there = sorted(path for path in folder.rglob("*") if path.is_file())
    there = [path for path in there if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    texts = [path for path in there if is_text(path)]
    if not texts:
        raise ValueError(f"source={str(folder)!r}: the folder holds no file of text")
    if others := [str(path.relative_to(folder)) for path in there if path not in set(texts)]:
        names = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
        warnings.warn(
            f"{folder}: {len(others)} of {len(there)} files are not text and were skipped: {names}", stacklevel=2
        )
    return texts


def open_dataset(name: str, split: str, streaming: bool) -> Iterable[Mapping[str, Any]]:
    """``datasets:NAME[@REVISION][:CONFIG]`` of the ``datasets`` library; NAME may be a local folder."""
    datasets = needed("datasets", f"{name} needs datasets", "datasets")
    path, _, config = name.removeprefix("datasets:").partition(":")
    path, _, revision = (path, "", "") if Path(path).exists() else path.partition("@")
    hub = logging.getLogger("huggingface_hub")  # which would tell of each retry in the system's words
    level = hub.level
    hub.setLevel(logging.ERROR)
    try:
        where = {"revision": revision or None, "split": split, "streaming": streaming}
        loaded = datasets.load_dataset(path, config or None, **where)
    except ConnectionError as error:
        raise ValueError(f"{name}: there is no such folder, and the Hugging Face hub cannot be reached") from error
    finally:
        hub.setLevel(level)
    return cast(Iterable[Mapping[str, Any]], loaded)


def last_space(text: str) -> int:
    """The last place to split a text such that a byte-level BPE gives the same tokens for both parts; 0 if none.

    No token of such a BPE spans from a visible character to a space, and none depends on earlier text.
    """
    cut = max(text.rfind(" "), text.rfind("\n"))
    while cut > 0 and text[cut - 1].isspace():
        cut -= 1
    return max(cut, 0)


def _parts(chunks: Iterable[Chunk], size: int) -> Iterator[Chunk]:
    """Chunks of at most about ``size`` characters, split where tokens do not change; empty documents are dropped."""
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
