"""``unmask prepare``: text becomes a folder with train.tokens, valid.tokens and tokenizer.json.

Every pass streams, so memory is bounded by a few chunks for any size of text.
"""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from unmask.checkpoints.packages import gpt2_tokenizer
from unmask.data.formats import check_column, has_records, is_list, preferred
from unmask.data.instructions import is_instructions, prepare_instructions
from unmask.data.layout import AnyTokenizer, encoded, frame, write_rows, write_wrapped
from unmask.data.parts import Part, counted, cut_at, split_at_random, split_end
from unmask.data.parts import Progress as Progress  # re-exported as the type of an argument of prepare
from unmask.data.source import Reader, Source, open_dataset
from unmask.data.text8 import OFFICIAL
from unmask.data.tokens import TokenFile
from unmask.data.tokenwriter import TokenWriter
from unmask.files import new_folder
from unmask.tokenizers import vocabularies as make
from unmask.tokenizers.external import restored
from unmask.tokenizers.molecules import not_smiles, to_selfies
from unmask.tokenizers.tokenizer import EXTERNAL, LAYOUTS, MADE, ROWS, Tokenizer, kind_of
from unmask.tokenizers.tokenizer import split as tokens_of

# A BPE is trained on at most this many characters, taken evenly from the text: more hardly change its merges.
BPE_CHARACTERS = 100_000_000
WRAPPED_LENGTH = 128
OFFICIAL_LENGTH = 256  # of text8, as is usual
# Of FASTA and molecules, if no length is given: one giant would make all rows as long. Where many are longer, the
# length grows to hold most of them, and if that is too much, rows are cut.
LONGEST_ROW, LARGEST_ROW, MOST = 512, 1024, 0.95
MOST_PADDED = 1.25  # the longest row by one that is as long as MOST of them: so near, all are kept
NEARLY_ALL = 0.99  # of the rows: the rest must not make all rows twice as long without a message
# Documents are cut into pieces of this many characters: a BPE encodes them in parallel, and holds 256 in its training.
PIECE = 1 << 16


def _smiles(text: str) -> str:
    """The molecule, if it is valid."""
    if wrong := not_smiles(text):
        raise ValueError(f"{text[:60]!r} is not SMILES: {wrong}")
    return text


NOTATIONS = {"smiles": _smiles, "selfies": to_selfies}  # the notation of documents, by tokenizer


def prepare(
    source: Source,
    out: str | os.PathLike[str],
    *,
    tokenizer: str | AnyTokenizer | None = None,
    vocab: int = 4096,
    length: int | None = None,
    layout: str | None = None,
    long: str | None = None,
    column: str | None = None,
    name: str | None = None,
    valid: Source | None = None,
    holdout: float = 0.05,
    held_out: str | None = None,
    eos: bool = True,
    dtype: str | None = None,
    split: str = "train",
    streaming: bool = True,
    template: str | None = None,
    chunk: int = 1 << 20,
    progress: Progress | None = None,
) -> tuple[TokenFile, TokenFile]:
    """Tokenize a source into the new folder ``out``; returns its training and held-out token files.

    source: a text file; .csv, .tsv, .jsonl or .parquet (``column``, a name, or a number if a table has no header);
    FASTA; .smi; each also .gz, .bz2, .xz or .zst; a folder of them; ``datasets:NAME[@REVISION][:CONFIG]`` (``split``,
    ``streaming``); or an iterable of texts or records. A text file is one document; in rows, each line is. In a .jsonl
    file of prompts and responses, or of messages, only the responses are predicted (``unmask.data.instructions``).
    tokenizer: characters, bytes, bpe (with ``vocab`` ids), gpt2, smiles, selfies, levels, the path of a saved one, or a
    Tokenizer; by default characters for FASTA, smiles for molecules, and otherwise bpe. ``eos`` says whether a new
    tokenizer has that token.
    layout: "wrapped", as in the paper: documents are concatenated and cut into sequences of ``length`` (128) tokens, of
    which the first, the last and those between documents are eos. Or "rows": one document each, then eos and padding,
    by default as long as the longest. Molecules (smiles, selfies) and images (levels) are rows by default.
    name: the name of the source in the files' headers and in errors, by default its path.
    long: what to do with rows longer than ``length``: "drop" or "cut", with a count; by default they are an error.
    valid: a separate source for the held-out part. Without it, ``holdout`` of the text is held out: its "end", or
    documents drawn at "random" (``held_out``; the default for FASTA and molecules). The file of text8 has its usual
    parts of 90, 5 and 5 million characters, the last of which is test.tokens.
    template: the chat template (Jinja) for the prompts of instructions; by default they are plain texts.
    chunk: how many characters are read and encoded at a time.

    ``out`` appears complete or not at all, and nothing is ever overwritten.
    """
    if column is None and isinstance(source, str) and is_instructions(Path(source)):
        other = valid if valid is None or isinstance(valid, str) else str(valid)
        how: dict[str, Any] = {"template": template, "length": length, "long": long, "valid": other}
        return prepare_instructions(source, out, _ready(tokenizer), **how)
    usual, official = preferred(source, column, length), valid is None and OFFICIAL.is_file(source)
    if official:
        name, length, eos = OFFICIAL.name, length or OFFICIAL_LENGTH, False
    check_column(source, column)
    if layout is None and length is None and (has_records(source) or is_list(source)):
        _tell_layout(Path(str(source)).name, usual, "record" if has_records(source) else "line")
    tokenizer = known_tokenizer(tokenizer or usual.get("tokenizer", "bpe"))
    layout = layout or usual.get("layout")
    kind = tokenizer if isinstance(tokenizer, str) else tokenizer.kind
    layout = layout or ("rows" if kind in ROWS else "wrapped")
    _check(layout, length, holdout, chunk, long, held_out)
    rows, separate = layout == "rows", bool(usual) or kind in NOTATIONS  # sequences without an order
    report = progress or (lambda stage, done, total: None)
    # A row is never cut, so there a chunk is a whole document.
    size = 1 << 62 if rows else min(chunk, PIECE)
    reader = Reader(source, column, by_line=rows, size=size, called=name, notate=NOTATIONS.get(kind))
    read = partial(_read, reader, split=split, streaming=streaming, report=report)
    out = Path(out)
    try:
        with new_folder(out) as folder, tempfile.TemporaryDirectory(dir=folder) as scratch:
            parts = {"train": read(source, Path(scratch) / "train.jsonl")}
            if valid is not None:
                parts["valid"] = read(valid, Path(scratch) / "valid.jsonl")
            elif official:
                parts = cut_at(parts["train"], OFFICIAL.ends)
            else:
                at_random = (held_out or ("random" if separate else "end")) == "random"
                parts = (split_at_random if at_random else split_end)(parts["train"], holdout)
            if isinstance(tokenizer, str):
                tokenizer = _make_tokenizer(tokenizer, vocab, eos, parts["train"], parts["valid"], report)
            if length is None:
                length, long = _usual_length(parts, tokenizer, chunk, report, long, bounded=separate)
            _write(folder, parts, tokenizer, length, layout, dtype, chunk, report, long)
    except FileExistsError as error:
        raise ValueError(f"out={str(out)!r}: it already exists and is not overwritten; choose a new folder") from error
    return TokenFile.open(out / "train.tokens"), TokenFile.open(out / "valid.tokens")


def _tell_layout(name: str, usual: Mapping[str, str], part: str) -> None:
    """What becomes of the records of a table, or of the lines of a list, by default."""
    if usual.get("tokenizer") == "smiles":
        return
    if usual:
        warnings.warn(f"{name}: each {part} is a sample; --layout wrapped joins them to one text", stacklevel=3)
    else:
        warnings.warn(
            f"{name}: the records are long, so they are joined to one text; --layout rows makes each a sample",
            stacklevel=3,
        )


def _read(like: Reader, source: Source, copy: Path, *, split: str, streaming: bool, report: Progress) -> Part:
    """A whole source, read with the same settings."""
    called = like.called or (source if isinstance(source, str) else None)
    if isinstance(source, str) and source.startswith("datasets:"):
        source = open_dataset(source, split, streaming)
    reader = replace(like, source=source, called=called)
    return counted(reader.repeatable(copy, lambda done: report("copy", done, None)), like.by_line, report)


def _make_tokenizer(kind: str, vocab: int, eos: bool, train: Part, held_out: Part, report: Progress) -> Tokenizer:
    """A BPE is trained on the training part only; a closed vocabulary must contain every character of both."""

    def texts(part: Part) -> Iterator[str]:
        return (text for text, _ in part.told(partial(report, "tokenizer")))

    def both() -> Iterator[str]:
        yield from texts(train)
        yield from texts(held_out)

    if kind == "gpt2":
        return gpt2_tokenizer()
    if kind == "bytes":
        return make.bytes_of_utf8(eos=eos)
    if kind == "characters":
        return make.characters(both(), eos=eos)
    if kind == "smiles":
        return make.smiles(both(), eos=eos)
    if kind == "selfies":
        return make.selfies(both(), eos=eos)
    if kind == "levels":
        return make.levels(1 + max(int(level) for text in both() for level in tokens_of("levels", text)))
    stride = 1 if train.rows else math.ceil(len(train) / BPE_CHARACTERS)
    return make.bpe((text for i, text in enumerate(texts(train)) if i % stride == 0), vocab, eos=eos)


def _usual_length(
    parts: Mapping[str, Part], tokenizer: AnyTokenizer, chunk: int, report: Progress, long: str | None, *, bounded: bool
) -> tuple[int, str | None]:
    """The default length of sequences: for rows the longest, and what to do with longer ones."""
    train, other = parts["train"], parts["valid"]
    if not train.rows:
        return WRAPPED_LENGTH, long
    around = frame(tokenizer)
    ends = int(tokenizer.eos_id is not None) if around is None else len(around[0]) + len(around[1])
    rows = Counter(
        ends + len(ids)
        for part in (train, other)
        for batch in encoded(part.told(partial(report, "measure")), tokenizer, chunk)
        for _, ids in batch
    )
    lengths = sorted(rows)
    counts = list(accumulate(rows[one] for one in lengths))
    length = lengths[-1]
    nearly = next(one for one, count in zip(lengths, counts, strict=True) if count >= NEARLY_ALL * rows.total())
    if bounded and length > LONGEST_ROW:
        usual = next(one for one, count in zip(lengths, counts, strict=True) if count >= MOST * rows.total())
        if length > min(LARGEST_ROW, MOST_PADDED * usual):
            length = min(max(usual, LONGEST_ROW), LARGEST_ROW)
        fit = sum(rows[one] for one in lengths if one <= length)
        long = long or ("drop" if fit >= MOST * rows.total() else "cut")
    if length >= 2 * nearly:
        sentence = f"rows are padded to {length} tokens, and {NEARLY_ALL:.0%} of them have {nearly} at most"
        warnings.warn(
            f"{sentence}: --length {nearly} --long drop makes a step about {length / nearly:.1f} times as fast",
            stacklevel=2,
        )
    return length, long


def _write(
    folder: Path,
    parts: Mapping[str, Part],
    tokenizer: AnyTokenizer,
    length: int,
    layout: str,
    dtype: str | None,
    chunk: int,
    report: Progress,
    long: str | None,
) -> None:
    """The token file of each part, and the tokenizer."""
    for stage, part in parts.items():
        path = folder / f"{stage}.tokens"
        write = partial(write_rows, long=long) if part.rows else write_wrapped
        with TokenWriter(path, tokenizer, length, layout, dtype=dtype, source=part.name) as writer:
            try:
                write(writer, encoded(part.told(partial(report, stage)), tokenizer, chunk), tokenizer)
            except ValueError as error:
                raise ValueError(f"{stage} part of {part.name}: {error}") from error
    tokenizer.save(folder / "tokenizer.json")


def _ready(tokenizer: str | AnyTokenizer | None) -> AnyTokenizer:
    """A tokenizer that does not depend on the text."""
    known = known_tokenizer(tokenizer or "bytes")
    if known == "gpt2":
        return gpt2_tokenizer()
    if known == "bytes":
        return make.bytes_of_utf8()
    if isinstance(known, str):
        raise ValueError(f"tokenizer={known!r}: prompts and responses take bytes, gpt2, or a saved tokenizer's path")
    return known


def known_tokenizer(tokenizer: str | AnyTokenizer) -> str | AnyTokenizer:
    """A tokenizer, a kind of tokenizer, or the tokenizer saved at a path."""
    if not isinstance(tokenizer, str) or tokenizer in MADE:
        return tokenizer
    if not Path(tokenizer).is_file():
        raise ValueError(f"tokenizer={tokenizer!r}: it must be one of {', '.join(MADE)}, or a saved tokenizer's path")
    return restored(Path(tokenizer)) if kind_of(Path(tokenizer)) == EXTERNAL else Tokenizer.load(tokenizer)


def _check(layout: str, length: int | None, holdout: float, chunk: int, long: str | None, held_out: str | None) -> None:
    if long not in (None, "drop", "cut"):
        raise ValueError(f"long={long!r}: rows that are too long are dropped ('drop') or cut ('cut')")
    if held_out not in (None, "end", "random"):
        raise ValueError(f"held_out={held_out!r}: it must be 'end' or 'random'")
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r}: it must be one of {', '.join(LAYOUTS)}")
    if length is not None and length < 1:
        raise ValueError(f"length={length}: it must be at least 1")
    if not 0 < holdout < 1:
        raise ValueError(f"holdout={holdout}: it must lie between 0 and 1")
    if chunk < 1:
        raise ValueError(f"chunk={chunk}: it must be at least 1")
