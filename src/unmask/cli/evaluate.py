"""``unmask evaluate``: the likelihood of data under a model, as a table, JSON and a picture."""

from __future__ import annotations

import io
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TextIO

from unmask.checkpoints.storage import Weights
from unmask.cli import zero_shot
from unmask.cli.beside import check_beside, difference, sentence_of
from unmask.cli.command import Command
from unmask.cli.options import (
    DATA_HELP,
    MODEL_HELP,
    OnCluster,
    OnMachine,
    StoredWeights,
    UserNetwork,
    check_files,
    check_number,
    guarded,
    loaded,
    use_threads,
)
from unmask.cli.prepare import plain_lines
from unmask.data.overlap import overlap
from unmask.data.parts import Progress as Preparing
from unmask.data.runs import RunData, data_of
from unmask.data.text8 import compared
from unmask.data.tokens import TokenFile
from unmask.evaluate import processes
from unmask.evaluate.data import found, own_text, train_and
from unmask.evaluate.likelihood.evaluation import Evaluation
from unmask.evaluate.likelihood.tokenfiles import Progress, evaluate, evaluate_ngram, evaluate_truth
from unmask.files import write_whole
from unmask.loading import locate
from unmask.model import Model
from unmask.processes.process import By
from unmask.tokenizers.chat import template_of

NGRAM, LONGEST_NGRAM = "ngram:", 20
TRUTH = "truth"
SECONDS_BETWEEN_LINES = 10.0
# Fractions of the data. Above the first, copies are reported; above the second, or with more than the third in the
# training data for any reason, the number is not held out.
COPIES_TOLD, COPIES_TOO_MANY, FOUND_TOO_MANY = 0.01, 0.1, 0.5
OF_ESTIMATE = "of the estimate for these sequences; more passes make it smaller"
OVER_SEQUENCES = "over the sequences, for the text they were taken from; more sequences make it smaller"


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(OnMachine, StoredWeights, UserNetwork, OnCluster):
    """Estimate the likelihood of data under a model: nats per token, perplexity, bits per token and per character.

    For a masked model the result is an upper bound on -log p, with its errors; for a model that is sampled from left to
    right it is exact. By default p is what sample draws from by default.
    The model ngram:5 is a Kneser-Ney 5-gram model fitted on the training part of the data, for comparison. The model
    truth is the distribution that the data were drawn from, if that is known (FOLDER/valid.nats.npy); other models are
    compared with it. Under accelerate launch several processes share the work, with the same numbers.
    """

    model: str
    data: str | None = None
    by: By | None = None
    """How the bound is estimated: count (Eq. 7), time (Eq. 6), or the chain rule along random orders, one call for each
    token. A mixture of the passes' orders is a tighter bound, whose error needs three passes. left-to-right is the
    chain rule along that order alone, and exact for it. The default is count, and left-to-right for a model that is
    sampled so."""
    passes: int = 16
    """The number of masks for each sequence, stratified over the counts or times."""
    until: float | None = None
    """Repeat the passes until the error of the estimate is below this value, in nats per token."""
    number: int | None = None
    """The number of sequences, evenly spaced in the data. The default is all."""
    zero_shot: bool = False
    """Evaluate on several corpora that the model was not trained on, in one table: kjv, sotu, text8 and enwik8, or
    those of DATA, as in kjv,book.txt. Each is represented by the beginning of its held-out part."""
    beside: Weights | None = None
    """Evaluate the model with this storage of its weights as well, on the same sequences and masks, and print the
    difference with its paired error: --weights int8 --beside float32."""
    split: Literal["train", "valid", "test"] = "valid"
    """Which part of a corpus, of prepared data, or of a run's own data. The whole file of text8 has a test part."""
    batch: int | None = None
    """Rows of one network call. The default is as many as fit into half a gigabyte of logits, at most 64."""
    seed: int = 0
    """Pass k of sequence i of a seed always has the same mask."""
    json: bool = False
    """Print the result as JSON on stdout instead of the table."""
    output: str | None = None
    """Write the result to this file as JSON, with the numbers of every sequence. The same command continues an
    interrupted run, from OUTPUT.partial."""
    resume: bool = True
    """Start again instead of continuing."""
    picture: str | None = None
    """Plot to this file where in the process the nats are, and their distribution over the sequences."""


COMMAND = Command(
    "evaluate",
    EvaluateOptions,
    {"model": MODEL_HELP, "data": f"{DATA_HELP}. By default the run's own"},
    ("unmask evaluate kjv kjv --number 64", "unmask evaluate runs/book --until 0.01 --output book.json"),
)


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask evaluate``."""
    chosen = COMMAND.parsed(arguments)

    def run() -> None:
        check_files(chosen, "output", "picture")
        with processes.joined(ray=chosen.ray):
            if chosen.zero_shot:
                use_threads(chosen.threads)
                check_number(chosen.number)
                zero_shot.run(chosen)
                return
            check_beside(chosen)
            evaluation = _evaluated(chosen)
            other = _evaluated(replace(chosen, weights=chosen.beside, output=None)) if chosen.beside else None
            if processes.main():
                _write(chosen, evaluation, other)

    def stopped() -> str:
        kept = chosen.output is not None and _partial(chosen.output).exists()
        return f"stopped{'; the same command goes on from here' if kept else ''}"

    return guarded("evaluate", run, stopped=stopped)


def _evaluated(chosen: EvaluateOptions) -> Evaluation:
    use_threads(chosen.threads)
    check_number(chosen.number)
    if chosen.model.startswith(NGRAM):
        return _evaluated_ngram(chosen)
    if chosen.model == TRUTH and not Path(TRUTH).exists():
        _, tokens = train_and(chosen.split, chosen.data, progress=_preparing())
        return evaluate_truth(tokens, sequences=chosen.number)
    model = loaded(chosen.model, chosen.network, processes.device(chosen.device), chosen.weights)
    partial = _partial(chosen.output) if chosen.output is not None else None
    if partial is not None and not chosen.resume and processes.main():
        partial.unlink(missing_ok=True)
    place = locate(chosen.model)
    run, template = data_of(place), template_of(place if place.is_dir() else place.parent)
    with (
        found(chosen.data, model, split=chosen.split, run=run, template=template, progress=_preparing()) as tokens,
        _display(sys.stderr) as progress,
    ):
        if processes.main():
            for note in _notes(chosen, model, tokens, run):
                print(note, file=sys.stderr, flush=True)
        return evaluate(
            model,
            tokens,
            by=chosen.by,
            passes=chosen.passes,
            until=chosen.until,
            sequences=chosen.number,
            batch=chosen.batch,
            seed=chosen.seed,
            partial=partial,
            progress=progress,
        )


def _evaluated_ngram(chosen: EvaluateOptions) -> Evaluation:
    order = chosen.model.removeprefix(NGRAM)
    if not (order.isascii() and order.isdigit() and 1 <= int(order) <= LONGEST_NGRAM):
        raise ValueError(f"model={chosen.model!r}: it must be {NGRAM}N with N from 1 to {LONGEST_NGRAM}")
    train, tokens = train_and(chosen.split, chosen.data, progress=_preparing())
    return evaluate_ngram(int(order), train, tokens, sequences=chosen.number)


def _notes(chosen: EvaluateOptions, model: Model, tokens: TokenFile, run: RunData | None) -> Iterator[str]:
    """Notes about the data that a reader of the number needs."""
    if model.length not in (None, tokens.length):
        yield f"note: sequences of {tokens.length} tokens; the model was trained on {model.length} at a time"
    if note := tokens.units_note:
        yield f"note: {note}"
    if run is None:
        return
    its_own = chosen.data is None or own_text(chosen.data, run)
    if its_own:
        part = {"valid": "held-out part", "train": "training part", "test": "test part"}[chosen.split]
        yield f"note: {chosen.data or chosen.model}: the run's own {part} of its data"
    if not run.files["train"].is_file():
        return
    shared = overlap(tokens, run.open("train"))
    if shared.copied >= COPIES_TOO_MANY or shared.found >= FOUND_TOO_MANY:
        held_out = its_own and chosen.split != "train"
        advice = "Take the copies out of the data" if held_out else f"unmask evaluate {chosen.model} has one"
        yield (
            f"WARNING: {shared.found:.0%} of these data are in the run's training data: this is not a held-out result. "
            f"{advice}"
        )
    elif shared.copied >= COPIES_TOLD:
        most = 1 / (1 - shared.copied) - 1
        yield (
            f"note: {shared.copied:.1%} of these data are copied from the run's training data; without them the number "
            f"would be {most:.1%} higher at most"
        )


def _write(chosen: EvaluateOptions, evaluation: Evaluation, other: Evaluation | None) -> None:
    more = {} if other is None else {"beside": difference(chosen, evaluation, other)}
    if chosen.output is not None:
        record = _named(chosen, evaluation.to_dict()) | more
        write_whole(Path(chosen.output), (json.dumps(record, indent=1) + "\n").encode())
        _partial(chosen.output).unlink(missing_ok=True)
    if chosen.picture is not None:
        from unmask.evaluate.likelihood.picture import draw

        draw(evaluation, Path(chosen.picture))
    if chosen.json:
        print(json.dumps(_named(chosen, evaluation.to_dict(sequences=False)) | more))
    else:
        _table(evaluation, chosen, sys.stdout)
        if other is not None:
            print(sentence_of(more["beside"]))


def _named(chosen: EvaluateOptions, result: dict[str, Any]) -> dict[str, Any]:
    """With the data as given: the token file of a text no longer exists."""
    return result | {"data": chosen.data or f"{chosen.model}, its own {chosen.split} part", "weights": chosen.weights}


def _table(evaluation: Evaluation, chosen: EvaluateOptions, stream: TextIO) -> None:
    """Every unit with both errors; an exact likelihood has one."""
    bound = evaluation.bound
    of = "" if bound.sequences == evaluation.about["of_sequences"] else f" of {evaluation.about['of_sequences']:,}"
    number = evaluation.passes
    passes = "" if bound.exact else f", {number} {'pass' if number == 1 else 'passes'}, seed {chosen.seed}"
    data = chosen.data or f"its own {chosen.split} part"
    print(f"{chosen.model} on {data}: {evaluation.how}{passes}", file=stream)
    print(f"{bound.sequences:,}{of} sequences of {evaluation.about['length']} tokens", file=stream)
    if law := evaluation.about.get("law"):
        print(f"law: tokens drawn {law}", file=stream)
    header = ["", "value", *([] if bound.exact else ["± estimate"]), "± sequences"]
    rows = [
        [unit, f"{value:.6g}", *([] if bound.exact else [_error(estimate)]), _error(over)]
        for unit, (value, estimate, over) in bound.units().items()
    ]
    from rich.console import Console
    from rich.table import Table

    table = Table(*header)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    drawn = io.StringIO()  # rich exits with 1 if the output is closed
    Console(file=drawn, highlight=False).print(table)
    stream.write(drawn.getvalue())
    if evaluation.entropy is not None and evaluation.distance is not None and chosen.model != TRUTH:
        (truth, over), (distance, paired) = evaluation.entropy, evaluation.distance
        most = "" if bound.exact else "at most "
        print(f"truth: {truth:.6g} ± {over:.2g} nats per token, under the distribution of the data", file=stream)
        print(f"distance from it (Kullback-Leibler): {most}{distance:.6g} ± {paired:.2g} nats per token", file=stream)
    bits = bound.bits_per_character
    if bits is not None and (beside := compared(evaluation.about["source"], bits)):
        print(beside, file=stream)
    lines = ["± are standard errors"] + ([] if bound.exact else [f"estimate: {OF_ESTIMATE}"])
    print("\n".join([*lines, f"sequences: {OVER_SEQUENCES}"]), file=stream)


def _error(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "unknown"


@contextmanager
def _display(stream: TextIO) -> Iterator[Progress | None]:
    """rich's progress bar if the stream is a terminal, otherwise an occasional line."""
    if not processes.main():
        yield None
        return
    last = time.monotonic()

    def line(done: int, total: int, nats: float) -> None:
        nonlocal last
        if time.monotonic() - last > SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(f"{done:,} of {total:,} rows, {nats:.3f} nats per token so far", file=stream, flush=True)

    if not stream.isatty():
        yield line
        return
    from rich import progress as rich
    from rich.console import Console

    columns: tuple[Any, ...] = rich.TextColumn("{task.description}"), rich.BarColumn()
    columns += rich.TimeRemainingColumn(compact=True), rich.TextColumn("{task.fields[shown]}")
    with rich.Progress(*columns, console=Console(file=stream), transient=True) as bar:
        # The number of rows is known only with the first of them.
        task = bar.add_task("reading the data", total=None, shown="")

        def update(done: int, total: int, nats: float) -> None:
            shown = f"{nats:.3f} nats per token so far"
            bar.update(task, completed=done, total=total, description=f"{done:,}/{total:,} rows", shown=shown)

        yield update


def _preparing() -> Preparing | None:
    """Progress of preparation, shown only if it takes longer than a few seconds."""
    return plain_lines(sys.stderr, stages_are_told=False) if processes.main() else None


def _partial(output: str) -> Path:
    return Path(f"{output}.partial")
