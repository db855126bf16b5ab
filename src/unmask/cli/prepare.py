"""``unmask prepare``: the command line and its progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from unmask.cli.command import Command
from unmask.cli.options import guarded
from unmask.data import corpora
from unmask.data.parts import Progress
from unmask.data.prepare import prepare
from unmask.data.tokens import TokenFile

SECONDS_BETWEEN_UPDATES = 0.1
SECONDS_BETWEEN_LINES = 30.0  # without a terminal
STAGES = {  # the names of stages for display
    "copy": "copying the text",
    "count": "reading the text",
    "fetch": "fetching the corpus",
    "measure": "measuring the rows",
    "test": "writing the test part",
    "timing": "timing a few steps",
    "tokenizer": "making the tokenizer",
    "train": "writing the training part",
    "valid": "writing the held-out part",
}
HELP = {
    "source": "Text, .csv, .tsv, .jsonl, .parquet, FASTA or .smi (each also .gz, .bz2, .xz or .zst), a folder of them, "
    "datasets:NAME[@REVISION][:CONFIG], or one of " + ", ".join(corpora.NAMES),
    "out": "The folder to make; it must not exist yet",
}


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """Turn text into token files: a new folder with train.tokens, valid.tokens and tokenizer.json."""

    source: str
    out: str
    tokenizer: str | None = None
    """characters, bytes, bpe, gpt2, smiles, levels, or the path of a saved one. Default: bpe, or the corpus's own."""
    vocab: int | None = None
    """The vocabulary size of a BPE tokenizer. Default: 4096."""
    length: int | None = None
    """Tokens per sequence. Default: 128 for wrapped text, the longest row for rows."""
    layout: str | None = None
    """wrapped (concatenated, eos first, last and in between) or rows (one document each, padded). Default: rows for
    FASTA, molecules, short records of a table, and the lines of a list of names."""
    column: str | None = None
    """The column of a table or the field of records; its number if a table has no header. Default: the only one, or
    text, smiles or sequence."""
    valid: str | None = None
    """A separate held-out source, instead of the last part of the text."""
    holdout: float = 0.05
    """The fraction of the text that is held out."""
    held_out: str | None = None
    """What is held out: end, or random documents. Default: random for FASTA and molecules, otherwise end."""
    long: str | None = None
    """What to do with rows longer than --length: drop or cut; their number is printed. Default: an error;
    for FASTA, molecules and short records without --length, drop if few are longer than 512, and otherwise cut at 1,024
    at most."""
    eos: bool | None = None
    """Whether a new tokenizer has an end-of-sequence token. Default: yes, or as in the corpus."""
    dtype: str | None = None
    """uint8, uint16 or uint32. Default: the smallest that fits."""
    split: str = "train"
    """The split of a dataset of the datasets library."""
    streaming: bool = True
    """Whether such a dataset is streamed instead of downloaded first."""


COMMAND = Command(
    "prepare",
    PrepareOptions,
    HELP,
    (
        "unmask prepare book.txt data/book",
        "unmask prepare molecules.csv data/molecules --column smiles --tokenizer smiles",
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask prepare``."""
    chosen = COMMAND.parsed(arguments)

    def prepared() -> None:
        with display(sys.stderr) as progress:
            files = run(chosen, progress)
        for file in files:
            print(summary(file))

    return guarded("prepare", prepared, stopped=lambda: "unmask prepare: stopped; nothing was written")


def run(chosen: PrepareOptions, progress: Progress) -> tuple[TokenFile, TokenFile]:
    """Prepare the data; a corpus has its own settings, which flags override."""
    given: dict[str, Any] = {name: value for name, value in asdict(chosen).items() if value is not None}
    source, out = given.pop("source"), given.pop("out")
    if not Path(source).exists():
        corpora.check_synthetic(source)
        if source in corpora.NAMES:
            return corpora.load(source).prepare(out, **given, progress=progress)
    return prepare(source, out, **given, progress=progress)


def summary(file: TokenFile) -> str:
    """One line about a token file."""
    tokenizer = f"{file.tokenizer.kind} of {file.vocab_size:,} ids"
    return (
        f"{file.path}: {len(file):,} sequences of {file.length} tokens, {tokenizer}, {file.header.dtype}, "
        f"{file.characters_per_text_token:.3f} characters per token of text"
    )


def plain_lines(stream: TextIO, *, stages_are_told: bool = True) -> Progress:
    """A line for each stage, and one every half minute; downloads are always reported."""
    stages: set[str] = set()
    last = time.monotonic()

    def line(stage: str, done: int, total: int | None) -> None:
        nonlocal last
        if stage not in stages and (stages_are_told or stage == "fetch"):
            stages.add(stage)
            print(STAGES.get(stage, stage), file=stream, flush=True)
        elif time.monotonic() - last > SECONDS_BETWEEN_LINES:
            of = "" if total is None else f" of {total:,}, {done / max(total, 1):.0%}"
            print(f"{STAGES.get(stage, stage)}: {done:,}{of}", file=stream, flush=True)
        else:
            return
        last = time.monotonic()

    return line


@contextmanager
def display(stream: TextIO) -> Iterator[Progress]:
    """rich's progress bar if the stream is a terminal, otherwise a plain line for each stage."""
    stages: dict[str, Any] = {}

    line = plain_lines(stream)
    if not stream.isatty():
        yield line
        return
    from rich import progress as rich
    from rich.console import Console

    columns: tuple[Any, ...] = rich.TextColumn("{task.description:<26}"), rich.BarColumn()
    columns += rich.TextColumn("{task.completed:,.0f}"), rich.TimeElapsedColumn(), rich.TimeRemainingColumn()
    with rich.Progress(*columns, console=Console(file=stream)) as bar:
        latest: tuple[Any, int] = None, 0
        shown = 0.0

        def finish() -> None:
            task, done = latest
            if task is not None:
                bar.update(task, completed=done, total=done)

        def update(stage: str, done: int, total: int | None) -> None:
            nonlocal latest, shown
            if stage not in stages:
                finish()
                stages[stage] = bar.add_task(STAGES.get(stage, stage), total=total)
            latest = stages[stage], done
            # Rows are reported one by one, a million times.
            if time.monotonic() - shown > SECONDS_BETWEEN_UPDATES:
                bar.update(stages[stage], completed=done, total=total)
                shown = time.monotonic()

        yield update
        finish()
