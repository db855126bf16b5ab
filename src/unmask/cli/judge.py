"""``unmask judge``: generative perplexity, with what is needed to interpret it, as a table, JSON and a figure."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unmask.cli.command import Command
from unmask.cli.options import OnCluster, OnDevice, check_files, guarded, imported
from unmask.data.tokens import TokenFile
from unmask.evaluate import processes
from unmask.evaluate.judge import diversity
from unmask.evaluate.judge.causal import CausalJudge
from unmask.evaluate.judge.judge import Judge, Judgement, Samples, judge, load_judge
from unmask.evaluate.judge.real import LEAST, MOST, Real
from unmask.extras import needed
from unmask.files import write_whole
from unmask.tokenizers.tokenizer import Tokenizer

SECONDS_BETWEEN_LINES = 10.0
TRAINING_TOKENS = 1 << 23  # in which copies are looked for
SAMPLES_HELP = "What unmask sample wrote, best with --json; or any texts, one per line or paragraph; - reads stdin"


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(OnDevice, OnCluster):
    """Measure the perplexity of samples under a judge model, and their entropy, with confidence intervals.

    Both definitions of generative perplexity are reported: the corpus perplexity after retokenising, and the mean of
    the per-sequence perplexities. No sample is dropped. Under accelerate launch several processes share the work, with
    the same numbers.
    """

    samples: str
    judge: str = "smollm2"
    """smollm2 or stories15m, downloaded once; a left-to-right model of unmask by name or folder; a causal model of
    transformers by folder, .gguf file or name on the hub (the paper uses gpt2-large); a llama2.c .bin file; or
    module:function, which returns a judge of your own (unmask.evaluate.judge.judge.Judge)."""
    first: Literal["given", "judged"] | None = None
    """For a model of transformers: given (the first token is not judged, as in the paper's code; the default), or
    judged (after bos). Other judges judge it after their start token."""
    window: int | None = None
    """The context window of the judge in tokens. The default is its own, at most 1024 for a model of transformers."""
    separation: Literal["auto", "lines", "paragraphs"] = "auto"
    """How samples are separated in a text file; auto means by empty lines if there are any."""
    draw: str | None = None
    """How the tokens of the samples were drawn, if the file does not say."""
    dtype: str | None = None
    """The precision of the draw, if the file does not say."""
    rejection: str | None = None
    """The rule by which samples were dropped beforehand, if any; it is printed in the report."""
    data: str | None = None
    """The training data, a .tokens file or prepared data, for the KL divergence between the unigram distributions.
    Prepared data also say how the samples compare with training sequences, and how much is copied."""
    mauve: str | None = None
    """Reference texts, in a file like SAMPLES, for MAUVE with the judge's features."""
    molecules: str | None = None
    """The samples are SMILES: also report the fractions that are valid, unique and novel, as in MOSES. The value is
    the reference set: moses, or a file of SMILES (lines, .smi, or a table with a column smiles)."""
    level: float = 0.95
    """The level of the confidence intervals (bootstrap over sequences)."""
    seed: int = 0
    """The seed of the bootstrap."""
    batch: int = 1
    """Texts per network call; use more on a GPU."""
    json: bool = False
    """Print the result as JSON on stdout instead of the table."""
    output: str | None = None
    """Write the result to this file as JSON, with the numbers of every sequence."""
    picture: str | None = None
    """Write a PNG to this file: the perplexity of each sequence against its entropy."""


COMMAND = Command(
    "judge",
    JudgeOptions,
    {"samples": SAMPLES_HELP},
    ("unmask judge samples.jsonl", "unmask judge samples.jsonl --judge kjv-ar --picture judged.png"),
)


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask judge``."""
    chosen = COMMAND.parsed(arguments)

    def run() -> None:
        if not 0 < chosen.level < 1:
            raise ValueError(f"--level must be between 0 and 1, got {chosen.level}")
        check_files(chosen, "output", "picture")
        with processes.joined(ray=chosen.ray):
            judgement = _judged(chosen)
            if processes.main():
                _write(chosen, judgement)

    return guarded("judge", run)


def _judged(chosen: JudgeOptions) -> Judgement:
    samples = _samples(chosen)
    counts = None if chosen.data is None else _counts(chosen.data, samples)
    real = None if chosen.data is None else _real(Path(chosen.data), samples)
    references = None if chosen.mauve is None else Samples.read(chosen.mauve, separation=chosen.separation)
    if references is not None:
        needed("mauve", "MAUVE needs mauve-text", "mauve")
    device = processes.device(chosen.device)
    counted = chosen.molecules is not None and processes.main()
    measured = _molecules(samples, str(chosen.molecules)) if counted else {}
    known = _judge(chosen, device)
    sent: Judge = known
    if isinstance(known, CausalJudge):
        sent = replace(known, device=processes.worker_device(chosen.device))
    judgement = judge(
        samples, sent, level=chosen.level, seed=chosen.seed, counts=counts, real=real, progress=_progress()
    )
    if chosen.data is not None and not isinstance(known, CausalJudge):
        measured |= _above(judgement, chosen.data)
    if references is not None:
        if not isinstance(known, CausalJudge):
            raise ValueError(f"--mauve needs a judge with features, and {known.name} has none")
        measured |= _mauve(samples, references, known, chosen)
    return replace(judgement, diversity=judgement.diversity | measured)


def _judge(chosen: JudgeOptions, device: str) -> Judge:
    """The judge that is named: a model, or a function of the user's that returns one."""
    if ":" in chosen.judge and not Path(chosen.judge).exists():
        if chosen.window is not None or chosen.first is not None:
            raise ValueError(f"judge={chosen.judge!r} takes no options: leave window and first out")
        judge: Judge = imported(chosen.judge, "the name of a judge")()
        return judge
    return load_judge(chosen.judge, device=device, batch=chosen.batch, window=chosen.window, first=chosen.first)


def _samples(chosen: JudgeOptions) -> Samples:
    if chosen.samples == "-":
        content = processes.broadcast(sys.stdin.read() if processes.main() else "")
        samples = Samples.parse(content, name="stdin", separation=chosen.separation)
    else:
        samples = Samples.read(chosen.samples, separation=chosen.separation)
    asked = {name: getattr(chosen, name) for name in ("draw", "dtype", "rejection")}
    given = {name: value for name, value in asked.items() if value is not None}
    for name, value in given.items():
        if samples.about.get(name) not in (None, value):
            raise ValueError(f"--{name} {value}: {chosen.samples} itself says {samples.about[name]!r}")
    return replace(samples, about=samples.about | given)


def _counts(data: str, samples: Samples) -> Tensor:
    """How often each id occurs in the training data, which must have the samples' tokenizer, if that is known."""
    from unmask.loading import tokenizer_of

    if samples.tokens is None:
        raise ValueError("--data needs samples with tokens: those of unmask sample --json")
    tokenizer = None
    if samples.about.get("model"):
        with suppress(ValueError, OSError):  # a model that is not here has no known tokenizer
            tokenizer = tokenizer_of(str(samples.about["model"]))
    own = tokenizer if isinstance(tokenizer, Tokenizer) else None
    file = TokenFile.open(Path(data) / "train.tokens" if Path(data).is_dir() else data, tokenizer=own)
    counts = torch.zeros(file.vocab_size, dtype=torch.int64)
    for part in torch.split(torch.arange(len(file)), max(1, (1 << 22) // file.length)):
        counts += torch.bincount(file.sequences(part).flatten(), minlength=file.vocab_size)
    return counts


def _real(data: Path, samples: Samples) -> Real | None:
    """Training sequences of prepared data, and random ones taken out of them; None if there is too little to compare.

    The part valid.tokens may be of other books, so that even training sequences differ from it.
    """
    if not data.is_dir() or sum(len(row) > 0 for row in samples.rows) < LEAST:
        return None
    file = TokenFile.open(data / "train.tokens")
    order = np.random.default_rng(0).permutation(len(file))[: max(1, TRAINING_TOKENS // file.length)]
    apart = min(MOST, len(order) // 5)
    if apart < LEAST:
        return None
    rows = list(file.sequences(order))
    return Real(training=rows[apart:], held_out=rows[:apart])


def _above(judgement: Judgement, data: str) -> dict[str, float]:
    """The samples' nats under a judge minus the data's own nats, if their distribution is known.

    0 if the judge is that distribution and the samples follow it.
    """
    file = TokenFile.open(Path(data) / "valid.tokens" if Path(data).is_dir() else data)
    truth = file.truth(torch.arange(len(file)))
    if truth is None:
        return {}
    own = truth / (file.length - (file.header.layout == "wrapped"))  # the first token of wrapped text is given
    error = float(own.std()) / len(own) ** 0.5
    return {
        "nats per token above the data's own": float((judgement.nats / judgement.tokens).mean() - own.mean()),
        f"the data's own, ± {error:.2g}": float(own.mean()),
    }


def _molecules(samples: Samples, training: str) -> dict[str, float]:
    from unmask.data import corpora
    from unmask.data.formats import documents
    from unmask.evaluate.judge.molecules import canonical, judged

    if not samples.texts:
        raise ValueError("--molecules needs samples with texts")
    if training == "moses":
        known = frozenset(corpora.load("moses").texts())  # these are canonical
    else:
        written = (canonical(text) for text, _ in documents(Path(training), None, True, 1 << 62))
        known = frozenset(one for one in written if one is not None)
    molecules = judged(samples.texts, training=known)
    assert molecules.novelty is not None
    return {
        "valid molecules": molecules.validity,
        "unique, of the valid": molecules.uniqueness,
        f"not in {training}, of the unique": molecules.novelty,
    }


def _mauve(samples: Samples, references: Samples, known: CausalJudge, chosen: JudgeOptions) -> dict[str, float]:
    if not processes.main():
        return {}
    score = diversity.mauve(known.features(samples), known.features(references), seed=chosen.seed)
    return {f"MAUVE to {len(references):,} references by {known.name}": score}


def _write(chosen: JudgeOptions, judgement: Judgement) -> None:
    if chosen.output is not None:
        write_whole(Path(chosen.output), (json.dumps(judgement.to_dict(), indent=1) + "\n").encode())
    if chosen.picture is not None:
        from unmask.evaluate.judge.picture import draw

        draw(judgement, Path(chosen.picture))
    print(json.dumps(judgement.to_dict(sequences=False)) if chosen.json else judgement)


def _progress() -> Callable[[int, int], None] | None:
    """A line that is overwritten if stderr is a terminal, otherwise an occasional line."""
    if not processes.main():
        return None
    last, terminal = time.monotonic(), sys.stderr.isatty()

    def line(done: int, total: int) -> None:
        nonlocal last
        if terminal:
            print(f"\r{done:,} of {total:,} judged", end="\n" if done == total else "", file=sys.stderr, flush=True)
        elif time.monotonic() - last > SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(f"{done:,} of {total:,} judged", file=sys.stderr, flush=True)

    return line
