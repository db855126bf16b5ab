"""``unmask sample``: texts on stdout, everything else on stderr."""

from __future__ import annotations

import functools
import sys
import time as clock
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from unmask.cli import texts, trace
from unmask.cli.command import Command
from unmask.cli.options import MODEL_HELP, OnCluster, check_files, guarded, short_warnings
from unmask.evaluate import processes
from unmask.files import write_whole
from unmask.loading import DEFAULT, default, tokenizer_of
from unmask.sampling import divided

if TYPE_CHECKING:
    from unmask.model import Model
    from unmask.tokenizers.external import ExternalTokenizer
    from unmask.tokenizers.tokenizer import Tokenizer

BATCH = 16  # sequences per piece of work on a cluster, if --batch is not given
REPLAY_SECONDS, REPLAY_CALLS_PER_SECOND = 6.0, 20.0


@dataclass(frozen=True, kw_only=True)
class SampleOptions(texts.TextOptions, OnCluster):
    """Sample from a model. Texts go to stdout; wrapped texts are separated by an empty line."""

    model: str | None = None
    prompt: str = ""
    """The beginning of every text."""
    length: int | None = None
    """Tokens per sequence. The default is the length of the training sequences."""
    max_tokens: int | None = None
    """The maximum number of tokens after the prompt, instead of --length."""
    watch: str | None = None
    """Replay the output of --json from this file, or from stdin (-), instead of sampling."""
    svg: str | None = None
    """With --watch, write the first sequence as an animated SVG to this file instead of showing it."""


COMMAND = Command(
    "sample",
    SampleOptions,
    {"model": f"{MODEL_HELP}. By default {DEFAULT}"},
    (
        'unmask sample kjv --steps 32 --prompt "And God said"',
        "unmask sample molecules --number 10 --json --output molecules.jsonl",
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask sample``."""
    given = COMMAND.parsed(texts.read(arguments))
    chosen = texts.seeded(given)

    def run() -> None:
        if chosen.watch is not None:
            return _watch(chosen, chosen.watch)
        if chosen.svg is not None:
            raise ValueError("--svg needs a saved run: --watch FILE, where FILE is the output of --json")
        if not chosen.ray:
            _sample(chosen)
            return texts.tell_seed(given, chosen)
        with processes.joined(ray=True):
            return _sample(chosen, processes.device(chosen.device))

    return guarded("sample", run)


def _sample(chosen: SampleOptions, device: str | None = None) -> None:
    if chosen.length is not None and chosen.length < 1:
        raise ValueError(f"--length must be at least 1, got {chosen.length}")
    model = texts.model_for(chosen, chosen.model or default(), device)
    if chosen.max_tokens is not None and (chosen.length is not None or chosen.max_tokens < 1):
        raise ValueError(
            f"--max-tokens {chosen.max_tokens}: it must be at least 1, and cannot be combined with --length"
        )
    ids: Sequence[int] = [model.denoiser.mask_id] * (chosen.length or chosen.max_tokens or model.length or 0)
    if model.rows.begins(chosen.prompt, chosen.stop or chosen.schema):
        ids = model.rows.prompted(chosen.prompt, chosen.length, room=chosen.max_tokens).ids
    number = chosen.in_all()
    if chosen.ray:
        return texts.put(chosen, model, _on_cluster(chosen, model, ids))
    with short_warnings(), texts.shown(model, ids, number) as callback:
        how = chosen.sampling() | {"length": chosen.length, "max_tokens": chosen.max_tokens}
        how |= texts.draft_for(chosen, model)
        sample = model.sample(chosen.number, prompt=chosen.prompt, callback=callback, **how)
    texts.write(chosen, model, sample)


@dataclass(frozen=True)
class _Sampling:
    """The work of a worker: the lines of some sequences of the seed."""

    chosen: SampleOptions
    model: Model

    def __call__(self, index: Sequence[int]) -> list[str]:
        how = self.chosen.sampling() | {"index": index, "batch": None}
        how |= {"length": self.chosen.length, "max_tokens": self.chosen.max_tokens}
        sample = self.model.sample(len(index), prompt=self.chosen.prompt, **how)
        return texts.lines(self.chosen, self.model, sample, index)


def _on_cluster(chosen: SampleOptions, model: Model, ids: Sequence[int]) -> list[str]:
    """The lines of all sequences, in order: the same batches as with one process, each on some worker."""
    if chosen.compile:
        raise ValueError("--compile is for one machine: leave it out with --ray")
    if chosen.draft is not None:
        raise ValueError("--draft is for one machine: leave it out with --ray")
    canvas = torch.tensor([ids] * chosen.number, dtype=torch.int64)
    how = chosen.sampling() | {"batch": chosen.batch or BATCH, "schedule": model.schedule}
    for name in ("stop", "contains", "pattern", "schema"):  # these change no batch
        how.pop(name, None)
    parts = divided(model.denoiser, canvas, **(how | {"particles": 1}))
    lines: dict[int, str] = {}
    for part, texts_of_part in zip(parts, processes.results(parts, _Sampling(chosen, model)), strict=True):
        lines |= zip(part, texts_of_part, strict=True)
        print(f"{len(lines):,} of {chosen.number:,} sequences", file=sys.stderr, flush=True)
    return [lines[i] for i in range(chosen.number)]


def _watch(chosen: SampleOptions, file: str) -> None:
    """Show each saved sequence as it was filled, slowly enough to watch, and then its text."""
    from unmask.cli.film import svg

    check_files(chosen, "svg")
    saved = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    known = functools.cache(tokenizer_of)
    for number, line in enumerate(saved.splitlines(), 1):
        try:
            record = trace.parse(line)
            tokenizer = known(chosen.model or record["model"])
            if chosen.svg is not None:
                return write_whole(Path(chosen.svg), svg(record, tokenizer).encode())
            _replay(record, tokenizer)
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: {error}") from error
        print(texts.for_terminal(record["text"], record["tokens"], tokenizer), flush=True)


def _replay(record: dict[str, Any], tokenizer: Tokenizer | ExternalTokenizer) -> None:
    from unmask.cli.view import view

    mask_id = tokenizer.vocab_size if tokenizer.mask_id is None else tokenizer.mask_id
    steps = trace.steps(record)
    pause = min(REPLAY_SECONDS / max(len(steps), 1), 1 / REPLAY_CALLS_PER_SECOND) if sys.stderr.isatty() else 0.0
    width = len(record["text"]) / max(len(record["tokens"]), 1)
    with view(tokenizer, trace.canvas(record, mask_id), mask_id, stream=sys.stderr, width=width) as show:
        for step in steps:
            show(step)
            clock.sleep(pause)
