"""``unmask frontier``: compare models and samplers, as a table, a recommendation and a figure."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TextIO

from unmask.cli.command import Command
from unmask.cli.options import MODEL_HELP, OnDevice, StoredWeights, guarded
from unmask.evaluate import processes
from unmask.evaluate.data import found
from unmask.evaluate.frontier.advice import TOLERANCE, advice
from unmask.evaluate.frontier.points import Kept, Point
from unmask.evaluate.frontier.sweep import SAMPLERS, Conditions, SampledModel, Setting, reference, settings, sweep
from unmask.evaluate.judge.judge import Judge, load_judge
from unmask.files import write_whole
from unmask.loading import find, load
from unmask.names import DrawName

POINTS, PICTURE, REPORT = "points.jsonl", "frontier.png", "frontier.txt"
DEFAULT_SAMPLERS = "first-hitting,parallel,parallel-extrapolate,parallel-correct,ancestral"


@dataclass(frozen=True, kw_only=True)
class FrontierOptions(OnDevice, StoredWeights):
    """Compare models and samplers: perplexity under a judge against entropy, network calls and seconds.

    The models may be masked, SEDD or left-to-right. Every point has both perplexities and the entropy with intervals.
    The same command continues a run that was stopped. Under accelerate launch several processes share the work, with
    the same samples.
    """

    models: tuple[str, ...]
    out: str
    """The output folder, for points.jsonl (one line per point), frontier.png and frontier.txt."""
    judge: str = "smollm2"
    """As in unmask judge: smollm2, stories15m, a left-to-right model of unmask, a causal model of transformers."""
    number: int = 64
    """Sequences per point."""
    samplers: str = DEFAULT_SAMPLERS
    """A list of first-hitting, first-hitting-ahead (the same samples in fewer calls), parallel, parallel-extrapolate,
    parallel-correct, ancestral, and, for comparison and never recommended, published-ancestral, published-euler,
    published-tweedie. A left-to-right model has its own sampler."""
    steps: str = "8,16,32,64"
    """The numbers of steps, for the samplers that take steps."""
    temperatures: str = "1.0"
    """The temperatures. The published samplers support only 1."""
    draw: DrawName = "exponential-race"
    """How tokens are drawn. The last two have truncated Gumbel noise and are biased; they are for comparison."""
    data: str | None = None
    """Real sequences as a reference point: a corpus, prepared data, a .tokens file or a text."""
    split: Literal["train", "valid"] = "valid"
    """Which part of a corpus or of prepared data."""
    tolerance: float = TOLERANCE
    """A sampler is recommended if its entropy is at most this many nats below that of the data or, without data, of the
    exact sampler."""
    calls: float | None = None
    """Recommend for this budget of network calls per sequence. The default is a recommendation for every budget."""
    seconds: float | None = None
    """Recommend for this budget of seconds per sequence. The default is a recommendation for every budget."""
    length: int | None = None
    """Tokens per sequence. The default is the length of each model's training sequences."""
    batch: int = 16
    """Sequences per network call."""
    judge_batch: int = 1
    """Texts per call of the judge; use more on a GPU."""
    level: float = 0.95
    """The level of the confidence intervals (bootstrap over sequences)."""
    seed: int = 0
    """The seed of all random numbers; every point has its own random numbers."""
    json: bool = False
    """Print the points as JSON lines on stdout instead of the table and the recommendation."""


COMMAND = Command(
    "frontier",
    FrontierOptions,
    {"models": f"One or more of: {MODEL_HELP[0].lower()}{MODEL_HELP[1:]}"},
    (
        "unmask frontier kjv kjv-ar --judge smollm2 --out frontier",
        "unmask frontier runs/book --judge kjv-ar --number 16 --steps 8,32 --out frontier-book",
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask frontier``."""
    chosen = COMMAND.parsed(arguments)

    def run() -> None:
        if not chosen.models:
            raise ValueError("name at least one model; see --help")
        if chosen.number < 2:
            raise ValueError(f"--number must be at least 2, for the intervals, got {chosen.number}")
        with processes.joined():
            points = _measured(chosen)
            if processes.main():
                _write(chosen, points)

    return guarded("frontier", run, stopped=lambda: "stopped; the same command goes on from here")


def _measured(chosen: FrontierOptions) -> list[Point]:
    """The points, those of the data first."""
    samplers, steps = _names(chosen.samplers), _numbers("steps", chosen.steps, int)
    temperatures = _numbers("temperatures", chosen.temperatures, float)
    conditions = Conditions(
        num=chosen.number, length=chosen.length, seed=chosen.seed, batch=chosen.batch, level=chosen.level
    )
    folder = Path(chosen.out)
    if processes.main():
        folder.mkdir(parents=True, exist_ok=True)
    device = processes.device(chosen.device)
    subjects = [
        SampledModel(name, load(name, device=device, weights=chosen.weights), kind_of(name)) for name in chosen.models
    ]
    # Tokens of one tokenizer are compared as they are; with several tokenizers, the judge's are used.
    same = all(subject.model.tokenizer == subjects[0].model.tokenizer for subject in subjects)
    conditions = replace(conditions, own_tokens=same)
    plan: list[tuple[SampledModel, Setting]] = []
    for subject in subjects:
        length = conditions.length_of(subject)
        own = settings(subject, samplers, steps, temperatures, length=length, draw=chosen.draw)
        plan += [(subject, setting) for setting in own]
    judged_by = load_judge(chosen.judge, device=device, batch=chosen.judge_batch)
    kept = Kept(folder / POINTS)
    real = [] if chosen.data is None else [_reference(chosen, subjects[0], judged_by, conditions, kept)]
    return real + sweep(plan, judged_by, conditions, kept=kept, progress=_progress(len(plan)))


def _reference(
    chosen: FrontierOptions, subject: SampledModel, judged_by: Judge, conditions: Conditions, kept: Kept
) -> Point:
    """``num`` sequences of the data, evenly spaced, in the first model's tokens."""
    assert chosen.data is not None
    with found(chosen.data, subject.model, split=chosen.split) as tokens:
        if len(tokens) < conditions.num and processes.main():
            print(f"note: {chosen.data} has no more than {len(tokens)} sequences", file=sys.stderr)
        num = min(conditions.num, len(tokens))
        rows = tokens.sequences([i * len(tokens) // num for i in range(num)])
        texts = [subject.model.decode(row) for row in rows.tolist()]
        identity = f"{tokens.header.sha256} {num} of {len(tokens)}"
        return reference(chosen.data, identity, rows, texts, judged_by, conditions, kept)


def kind_of(name: str) -> str:
    """masked, score (trained with SEDD's score entropy) or left-to-right, according to the model's files."""
    from unmask.networks.pretrained import read_header

    folder = find(name)
    if folder is None:
        return "masked"
    header = read_header(folder)
    if header["architecture"] == "causal":
        return "left-to-right"
    return "score" if (header.get("extra") or {}).get("objective") == "score-entropy" else "masked"


def _progress(total: int) -> Callable[[Point, bool], None]:
    done = 0

    def say(point: Point, new: bool) -> None:
        nonlocal done
        done += 1
        figures = f"perplexity {point.perplexity}, entropy {point.entropy}, {point.calls:.4g} calls"
        was = "" if new else " (was there)"
        print(f"{done}/{total} {point.model}: {point.label}: {figures}{was}", file=sys.stderr, flush=True)

    return say


def _write(chosen: FrontierOptions, points: list[Point]) -> None:
    """Write the table and the recommendation to stdout and the folder, and the figure to the folder."""
    advised = advice(points, tolerance=chosen.tolerance, calls=chosen.calls, seconds=chosen.seconds)
    report = f"{table(points)}\n\n{advised}\n"
    write_whole(Path(chosen.out) / REPORT, report.encode())
    if chosen.json:
        _lines(points, sys.stdout)
    else:
        sys.stdout.write(report)
    try:
        from unmask.evaluate.frontier.picture import draw

        draw(points, Path(chosen.out) / PICTURE)
    except ImportError as error:
        print(f"note: {error}", file=sys.stderr)


def _lines(points: Sequence[Point], stream: TextIO) -> None:
    for point in points:
        print(json.dumps(point.to_dict()), file=stream)


def table(points: Sequence[Point]) -> str:
    """Every point with everything needed to interpret it."""
    header = (
        "model",
        "kind",
        "sampler",
        "steps",
        "T",
        "draw",
        "samples",
        "perplexity (corpus)",
        "(mean of sequences)",
        "entropy, nats",
        "calls",
        "seconds",
        "CPU seconds",
    )
    rows = [header] + [
        (
            point.model,
            point.kind,
            point.sampler,
            "" if point.steps is None else str(point.steps),
            f"{point.temperature:g}",
            point.draw if point.dtype == "none" else f"{point.draw}, {point.dtype}",
            f"{point.num} x {point.length}",
            str(point.perplexity),
            str(point.mean_perplexity),
            str(point.entropy),
            f"{point.calls:.4g}",
            f"{point.seconds:.3g}",
            f"{point.cpu_seconds:.3g}",
        )
        for point in points
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if not points:
        return lines[0]
    of = "the samples' own" if points[0].own_tokens else "the judge's"
    notes = [
        f"judge: {points[0].judge}; {points[0].conventions}",
        f"intervals: {points[0].level:.0%}, bootstrap over sequences; entropy of {of} tokens; no sample is dropped; "
        f"calls and seconds are per sequence, {points[0].batch} sequences per network call",
    ]
    return "\n".join([*lines, *notes])


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in SAMPLERS:
            raise ValueError(f"--samplers {text}: {name!r} is not one of {', '.join(SAMPLERS)}")
    if not names:
        raise ValueError("--samplers must name at least one")
    return list(dict.fromkeys(names))


def _numbers(option: str, text: str, kind: type[Any]) -> list[Any]:
    with suppress(ValueError):
        values = [kind(part) for part in text.split(",") if part.strip()]
        if values and all(value >= 0 for value in values) and (kind is float or min(values) >= 1):
            return list(dict.fromkeys(values))
    what = "whole numbers from 1" if kind is int else "numbers from 0"
    raise ValueError(f"--{option} must be {what} with commas between them, got {text!r}")
