"""Which part of a text is for training, and which is held out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unmask.data.batches import global_batch
from unmask.data.formats import Chunk
from unmask.data.source import Reader, last_space

# Called as progress(stage, done, total) in the stages "copy", "count", "tokenizer", "measure", "train" and "valid":
# done and total are characters of wrapped text, or rows; total is None while it is unknown.
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Part:
    """The range from ``start`` to ``stop`` of a text, in characters, or in documents if they are rows."""

    reader: Reader
    rows: bool
    start: int
    stop: int
    drawn: NDArray[np.bool_] | None = None  # the documents that belong to it, instead of a range
    exact: bool = False  # cut at the exact character, not at the start of a word

    @property
    def name(self) -> str:
        return self.reader.name

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[Chunk]:
        position = 0
        for text, ends in self.reader:
            if self.drawn is not None:
                if self.drawn[position]:
                    yield text, ends
                position += ends
                continue
            if position >= self.stop:
                return
            if self.rows:
                if position >= self.start:
                    yield text, ends
                position += 1
                continue
            first, last = (_cut(text, end - position, self.exact) for end in (self.start, self.stop))
            if first < last:
                yield text[first:last], ends
            position += len(text)

    def told(self, report: Callable[[int, int], None]) -> Iterator[Chunk]:
        """The same, reporting how much of it has been used."""
        done = 0
        for text, ends in self:
            yield text, ends
            done += 1 if self.rows else len(text)
            report(done, len(self))


def _cut(text: str, at: int, exact: bool) -> int:
    """``at``, within the text and moved back to the start of a word; both parts at a boundary agree on it."""
    if exact or at <= 0 or at >= len(text):
        return max(0, min(at, len(text)))
    return last_space(text[:at]) or at


def counted(reader: Reader, rows: bool, report: Progress) -> Part:
    """A whole text, which is read once to determine its size."""
    characters = documents = 0
    for text, ends in reader:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            wrong = error.object[error.start]
            raise ValueError(
                f"{reader.name}: document {documents} holds {wrong!r}, which is not a character"
            ) from error
        characters += len(text)
        documents += ends
        report("count", documents if rows else characters, None)
    if not characters:
        raise ValueError(f"{reader.name}: there is no text in it")
    return Part(reader, rows, 0, documents if rows else characters)


def cut_at(text: Part, ends: Sequence[int]) -> dict[str, Part]:
    """The training, validation and test parts that end there."""
    stages, starts = ("train", "valid", "test"), (0, *ends[:-1])
    return {
        stage: replace(text, start=start, stop=stop, exact=True)
        for stage, start, stop in zip(stages, starts, ends, strict=True)
    }


def split_end(text: Part, holdout: float) -> dict[str, Part]:
    """The text without its end, and its end."""
    boundary = text.stop - max(1, round(len(text) * holdout))
    if boundary < 1:
        unit = "row" if text.rows else "character"
        raise ValueError(f"{text.name}: {len(text)} {unit} cannot be split into training and held-out parts")
    return {"train": replace(text, stop=boundary), "valid": replace(text, start=boundary)}


def split_at_random(text: Part, holdout: float, seed: int = 0) -> dict[str, Part]:
    """Documents drawn without replacement, always the same ones; all copies of a document are on one side."""
    sizes, content, one = [0], [], hashlib.blake2b(digest_size=8)
    for piece, ends in text.reader:
        sizes[-1] += 1 if text.rows else len(piece)
        one.update(piece.encode())
        if ends:
            sizes.append(0)
            content.append(int.from_bytes(one.digest()))
            one = hashlib.blake2b(digest_size=8)
    size = np.array(sizes[:-1])
    _, first, copies = np.unique(np.array(content, dtype=np.uint64), return_index=True, return_inverse=True)
    group = first.argsort().argsort()[copies]  # the distinct documents, numbered in order of appearance
    if len(first) < 2:
        raise ValueError(f"{text.name} is one document: its end can be held out, but no random part")
    count = max(1, round(len(first) * holdout))
    chosen = np.isin(group, global_batch(len(first), count, seed, 0).numpy())
    return {
        stage: replace(text, start=0, stop=int(size[part].sum()), drawn=part)
        for stage, part in (("train", ~chosen), ("valid", chosen))
    }
