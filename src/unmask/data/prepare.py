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
from dataclasses import KW_ONLY, dataclass, replace
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
from unmask.options import takes
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


@dataclass(frozen=True)
class Preparation:
    """The arguments of ``prepare`` besides the source."""

    out: str | os.PathLike[str]
    """The new folder. It appears complete or not at all, and nothing is ever overwritten."""
    _: KW_ONLY
    tokenizer: str | AnyTokenizer | None = None
    """characters, bytes, bpe, gpt2, smiles, selfies, levels, the path of a saved one, or a Tokenizer; by default
    characters for FASTA, smiles for molecules, and otherwise bpe."""
    vocab: int = 4096
    """The number of ids of a BPE."""
    length: int | None = None
    """Tokens of a sequence, by default 128 for wrapped text, and for rows as many as the longest has."""
    layout: str | None = None
    """"wrapped", as in the paper: documents are concatenated and cut into sequences of which the first token, the last
    and those between documents are eos. Or "rows": one document each, then eos and padding; the default for molecules
    (smiles, selfies) and images (levels)."""
    long: str | None = None
    """What to do with rows longer than ``length``: "drop" or "cut", with a count; by default they are an error."""
    column: str | None = None
    """Of a table or of records: a name, or a number if a table has no header."""
    name: str | None = None
    """The name of the source in the files' headers and in errors, by default its path."""
    valid: Source | None = None
    """A separate source for the held-out part. The file of text8 has its usual parts of 90, 5 and 5 million characters,
    the last of which is test.tokens."""
    holdout: float = 0.05
    """The fraction of the text that is held out otherwise."""
    held_out: str | None = None
    """What is held out then: the "end", or documents drawn at "random", the default for FASTA and molecules."""
    eos: bool = True
    """Whether a new tokenizer has an end-of-sequence token."""
    dtype: str | None = None
    """uint8, uint16 or uint32, by default the smallest that fits."""
    split: str = "train"
    """The split of a dataset of the datasets library."""
    streaming: bool = True
    """Whether such a dataset is streamed."""
    template: str | None = None
    """The chat template (Jinja) for the prompts of instructions; by default they are plain texts."""
    chunk: int = 1 << 20
    """How many characters are read and encoded at a time."""
    progress: Progress | None = None
    """Called with a stage, how much of it is done, and how much there is, if that is known."""

    def __post_init__(self) -> None:
        if self.long not in (None, "drop", "cut"):
            raise ValueError(f"long={self.long!r}: rows that are too long are dropped ('drop') or cut ('cut')")
        if self.held_out not in (None, "end", "random"):
            raise ValueError(f"held_out={self.held_out!r}: it must be 'end' or 'random'")
        if self.layout not in (None, *LAYOUTS):
            raise ValueError(f"layout={self.layout!r}: it must be one of {', '.join(LAYOUTS)}")
        if self.length is not None and self.length < 1:
            raise ValueError(f"length={self.length}: it must be at least 1")
        if not 0 < self.holdout < 1:
            raise ValueError(f"holdout={self.holdout}: it must lie between 0 and 1")
        if self.chunk < 1:
            raise ValueError(f"chunk={self.chunk}: it must be at least 1")

    def report(self, stage: str, done: int, total: int | None) -> None:
        if self.progress is not None:
            self.progress(stage, done, total)


@takes(Preparation)
def prepare(source: Source, how: Preparation) -> tuple[TokenFile, TokenFile]:
    """Tokenize a source into a new folder; returns its training and held-out token files.

    Args:
        source: A text file; .csv, .tsv, .jsonl or .parquet; FASTA; .smi; each also .gz, .bz2, .xz or .zst; a folder of
            them; ``datasets:NAME[@REVISION][:CONFIG]``; or an iterable of texts or records. A text file is one
            document; in rows, each line is. In a .jsonl file of prompts and responses, or of messages, only the
            responses are predicted (``unmask.data.instructions``).
        **options: The fields of ``Preparation``, each with its help text.
    """
    if how.column is None and isinstance(source, str) and is_instructions(Path(source)):
        valid = how.valid if how.valid is None or isinstance(how.valid, str) else str(how.valid)
        rows: dict[str, Any] = {"template": how.template, "length": how.length, "long": how.long}
        return prepare_instructions(source, how.out, _ready(how.tokenizer), valid=valid, **rows)
    usual = preferred(source, how.column, how.length)
    if official := how.valid is None and OFFICIAL.is_file(source):
        how = replace(how, name=OFFICIAL.name, length=how.length or OFFICIAL_LENGTH, eos=False)
    check_column(source, how.column)
    if how.layout is None and how.length is None and (has_records(source) or is_list(source)):
        _tell_layout(Path(str(source)).name, usual, "record" if has_records(source) else "line")
    tokenizer = known_tokenizer(how.tokenizer or usual.get("tokenizer", "bpe"))
    kind = tokenizer if isinstance(tokenizer, str) else tokenizer.kind
    how = replace(how, layout=how.layout or usual.get("layout") or ("rows" if kind in ROWS else "wrapped"))
    separate = bool(usual) or kind in NOTATIONS  # sequences without an order
    out = Path(how.out)
    try:
        with new_folder(out) as folder, tempfile.TemporaryDirectory(dir=folder) as scratch:
            parts = _parts(source, how, kind, Path(scratch), official=official, separate=separate)
            if isinstance(tokenizer, str):
                tokenizer = _make_tokenizer(tokenizer, how.vocab, how.eos, parts["train"], parts["valid"], how.report)
            if how.length is None:
                length, long = _usual_length(parts, tokenizer, how, bounded=separate)
                how = replace(how, length=length, long=long)
            _write(folder, parts, tokenizer, how)
    except FileExistsError as error:
        raise ValueError(f"out={str(out)!r}: it already exists and is not overwritten; choose a new folder") from error
    return TokenFile.open(out / "train.tokens"), TokenFile.open(out / "valid.tokens")


def _parts(
    source: Source, how: Preparation, kind: str, scratch: Path, *, official: bool, separate: bool
) -> dict[str, Part]:
    """The training part and the held-out ones, counted."""
    rows = how.layout == "rows"
    # A row is never cut, so there a chunk is a whole document.
    size = 1 << 62 if rows else min(how.chunk, PIECE)
    reader = Reader(source, how.column, by_line=rows, size=size, called=how.name, notate=NOTATIONS.get(kind))
    train = _read(reader, source, scratch / "train.jsonl", how)
    if how.valid is not None:
        return {"train": train, "valid": _read(reader, how.valid, scratch / "valid.jsonl", how)}
    if official:
        return cut_at(train, OFFICIAL.ends)
    at_random = (how.held_out or ("random" if separate else "end")) == "random"
    return (split_at_random if at_random else split_end)(train, how.holdout)


def _tell_layout(name: str, usual: Mapping[str, str], part: str) -> None:
    """What becomes of the records of a table, or of the lines of a list, by default."""
    if usual.get("tokenizer") == "smiles":
        return
    if usual:
        warnings.warn(f"{name}: each {part} is a sample; --layout wrapped joins them to one text", stacklevel=4)
    else:
        warnings.warn(
            f"{name}: the records are long, so they are joined to one text; --layout rows makes each a sample",
            stacklevel=4,
        )


def _read(like: Reader, source: Source, copy: Path, how: Preparation) -> Part:
    """A whole source, read with the same settings."""
    called = like.called or (source if isinstance(source, str) else None)
    if isinstance(source, str) and source.startswith("datasets:"):
        source = open_dataset(source, how.split, how.streaming)
    reader = replace(like, source=source, called=called)
    return counted(reader.repeatable(copy, lambda done: how.report("copy", done, None)), like.by_line, how.report)


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
    parts: Mapping[str, Part], tokenizer: AnyTokenizer, how: Preparation, *, bounded: bool
) -> tuple[int, str | None]:
    """The default length of sequences: for rows the longest, and what to do with longer ones."""
    train, other = parts["train"], parts["valid"]
    if not train.rows:
        return WRAPPED_LENGTH, how.long
    around = frame(tokenizer)
    ends = int(tokenizer.eos_id is not None) if around is None else len(around[0]) + len(around[1])
    rows = Counter(
        ends + len(ids)
        for part in (train, other)
        for batch in encoded(part.told(partial(how.report, "measure")), tokenizer, how.chunk)
        for _, ids in batch
    )
    lengths = sorted(rows)
    counts = list(accumulate(rows[one] for one in lengths))
    length, long = lengths[-1], how.long
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


def _write(folder: Path, parts: Mapping[str, Part], tokenizer: AnyTokenizer, how: Preparation) -> None:
    """The token file of each part, and the tokenizer."""
    assert how.length is not None and how.layout is not None
    for stage, part in parts.items():
        path = folder / f"{stage}.tokens"
        write = partial(write_rows, long=how.long) if part.rows else write_wrapped
        with TokenWriter(path, tokenizer, how.length, how.layout, dtype=how.dtype, source=part.name) as writer:
            try:
                write(writer, encoded(part.told(partial(how.report, stage)), tokenizer, how.chunk), tokenizer)
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
