"""The two layouts of a token file: documents wrapped into sequences of one length, or one padded document per row."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator

import numpy as np

from unmask.data.formats import Chunk
from unmask.data.tokenwriter import TokenWriter
from unmask.tokenizers.external import ExternalTokenizer, Frame
from unmask.tokenizers.tokenizer import Ids, Tokenizer

AnyTokenizer = Tokenizer | ExternalTokenizer
Encoded = list[tuple[Chunk, Ids]]


def encoded(chunks: Iterable[Chunk], tokenizer: AnyTokenizer, size: int) -> Iterator[Encoded]:
    """The chunks with their ids, about ``size`` characters at a time."""
    batch: list[Chunk] = []
    waiting = 0
    for chunk in chunks:
        batch.append(chunk)
        waiting += len(chunk[0])
        if waiting >= size:
            yield _encode(batch, tokenizer)
            batch, waiting = [], 0
    if batch:
        yield _encode(batch, tokenizer)


def _encode(batch: list[Chunk], tokenizer: AnyTokenizer) -> Encoded:
    return list(zip(batch, tokenizer.encode_many([text for text, _ in batch]), strict=True))


def write_wrapped(writer: TokenWriter, batches: Iterable[Encoded], tokenizer: AnyTokenizer) -> None:
    """The paper's data: concatenated and wrapped, "the first, last, and in-between tokens [...] set to eos"."""
    eos = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    before, after = frame(tokenizer) or (eos, eos)
    body = writer.length - len(before) - len(after)
    if body < 1:
        raise ValueError(f"length={writer.length}: a wrapped sequence needs room for a token between its two eos")
    rest = np.empty(0, dtype=np.int64)
    characters = size = 0
    between = False
    for batch in batches:
        parts = [rest]
        for (text, ends), ids in batch:
            parts += [np.array(eos, dtype=np.int64), ids] if between else [ids]
            between = ends
            characters += len(text)
            size += len(text.encode())
        rest = np.concatenate(parts)
        whole = len(rest) // body * body
        block = rest[:whole].reshape(-1, body)
        around = [np.tile(np.array(ids, dtype=np.int64), (len(block), 1)) for ids in (before, after)]
        writer.write(np.hstack((around[0], block, around[1])))
        rest = rest[whole:]
    if not writer.num:
        raise ValueError(
            f"{len(rest)} tokens are too few for one sequence of length={writer.length}: "
            "give more text, a smaller --length, or --layout rows, if each line or record is a sample of its own"
        )
    # The last, incomplete sequence is dropped, and its text not counted.
    dropped = tokenizer.decode(rest)
    writer.finish(characters=characters - len(dropped), bytes=size - len(dropped.encode()))


def write_rows(
    writer: TokenWriter, batches: Iterable[Encoded], tokenizer: AnyTokenizer, long: str | None = None
) -> None:
    """One document per sequence, then eos and padding. Longer ones are refused, or dropped or cut as ``long`` says."""
    length = writer.length
    ends = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    before, eos = (np.array(ids, dtype=np.int64) for ids in frame(tokenizer) or ([], ends))
    pad_id = padding(tokenizer)
    pad = 0 if pad_id is None else pad_id
    characters = size = 0
    read = too_long = longest = 0
    for batch in batches:
        read += len(batch)
        fits = [len(before) + len(ids) + len(eos) <= length for _, ids in batch]
        if long is not None and not all(fits):
            too_long += len(fits) - sum(fits)
            longest = max(longest, *(len(before) + len(ids) + len(eos) for _, ids in batch))
            kept = [one for one, fit in zip(batch, fits, strict=True) if fit or long == "cut"]
            batch = [_cut(one, length - len(before) - len(eos), tokenizer) for one in kept]
            if not batch:
                continue
        rows = [np.concatenate((before, ids, eos)) for _, ids in batch]
        needed = np.array([len(row) for row in rows])
        wrong = np.flatnonzero(needed > length if pad_id is not None else needed != length)
        if wrong.size:
            i = int(wrong[0])
            how = "needs padding, which this tokenizer has not"
            if needed[i] > length:
                how = "is too short for it; long='drop' or 'cut' (--long) says what becomes of such rows"
            raise ValueError(f"row {writer.num + i} has {needed[i]} tokens with its eos: length={length} {how}")
        block = np.full((len(batch), length), pad, dtype=np.int64)
        block[np.arange(length) < needed[:, None]] = np.concatenate(rows)
        writer.write(block)
        characters += sum(len(text) for (text, _), _ in batch)
        size += sum(len(text.encode()) for (text, _), _ in batch)
    if too_long:
        done = "dropped" if long == "drop" else "cut"
        sentence = f"{too_long:,} of {read:,} rows are longer than length={length}, the longest with {longest:,} tokens"
        sentence = f"{sentence}, and were {done}"
        warnings.warn(f"{sentence}; --length and --long decide", stacklevel=2)
    if not writer.num:
        sentence = f"all {read:,} rows are longer than length={length}, the longest with {longest:,} tokens"
        raise ValueError(f"{sentence}: give a larger --length, or --long cut")
    writer.finish(characters=characters, bytes=size)


def frame(tokenizer: AnyTokenizer) -> Frame | None:
    """The tokens that another library's tokenizer puts around every text as part of the data, or None for eos only."""
    return tokenizer.frame if tokenizer.frame not in (None, ((), ())) else None


def padding(tokenizer: AnyTokenizer) -> int | None:
    """The id after a shorter row: padding, or, as in LLaDA, eos, which the network predicts."""
    if isinstance(tokenizer, ExternalTokenizer) and tokenizer.pad_id is None:
        return tokenizer.eos_id
    return tokenizer.pad_id


def _cut(one: tuple[Chunk, Ids], most: int, tokenizer: AnyTokenizer) -> tuple[Chunk, Ids]:
    chunk, ids = one
    return one if len(ids) <= most else ((tokenizer.decode(ids[:most]), chunk[1]), ids[:most])
