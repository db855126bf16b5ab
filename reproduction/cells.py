"""A cell of a figure: samples of a subject by one sampler and number of steps, their perplexity and entropy."""

from __future__ import annotations

import hashlib
import math
import sys
import time as clock
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import unmask
from reproduction.extrapolation import Extrapolation
from reproduction.item import Settings, Subject, Table
from reproduction.keep import kept
from reproduction.rare import CoupledRare
from reproduction.verdict import Number
from unmask.evaluate.judge.diversity import sequence_entropy
from unmask.evaluate.judge.samples import Samples
from unmask.names import DRAWS, PLANS, PREDICTORS
from unmask.noise import word
from unmask.samplers import published
from unmask.samplers.law import CoupledByLaw
from unmask.sampling import Sample

PUBLISHED = ("coupled", "sedd", "uncached")
LAWS = ("law", "sedd law")  # Tweedie's step is the ancestral one: the same distribution, another network
NAMES = {"parallel": "first-hitting", "truth": "the truth"}


@dataclass(frozen=True)
class How:
    """A way to sample.

    kind: "coupled" or "sedd", as published, in ``precision``, without the numbers that cannot win, and "uncached", with
    a network call in every step; "law" and "sedd law", which simulate the distribution of such steps; "parallel" and
    "ancestral", those of unmask; "left to right"; "truth", exact draws of an oracle.
    """

    kind: str
    precision: str = "float64"  # of a published sampler: "float32", "float64", "float64-truncated"
    draw: str = "exponential-race"
    predictor: str = "first-order"  # or "order 3", by Lagrange
    temperature: float = 1.0

    @property
    def label(self) -> str:
        if self.kind in (*PUBLISHED, *LAWS):
            name = f"published ({'SEDD' if self.kind.startswith('sedd') else 'MDLM'}), {self.precision}"
            return name + {"uncached": ", without the cache"}.get(self.kind, ", by its law" * (self.kind in LAWS))
        extras = [self.predictor] if self.predictor != "first-order" else []
        extras += [f"{self.draw} draw"] if self.draw != "exponential-race" else []
        extras += [f"T = {self.temperature:g}"] if self.temperature != 1 else []
        return ", ".join([NAMES.get(self.kind, self.kind), *extras])


@dataclass(frozen=True)
class Cell:
    """Sequences and the judge's result for each."""

    subject: str
    how: How
    steps: int | None
    tokens: Tensor  # int64 [B, L]
    nats: Tensor  # float64 [B], summed over the judged tokens
    judged: Tensor  # int64 [B]: the number of judged tokens
    entropies: Tensor  # float64 [B]: the paper's entropy of a sequence
    nfe: Tensor  # float64 [B]
    rows: Tensor  # float64 [B]: rows drawn, counted over all steps
    seconds: float  # per sequence

    @property
    def per_token(self) -> Tensor:
        """Nats per token of all sequences together, as values [B] whose mean it is."""
        rate = self.nats.sum() / self.judged.sum()
        return rate + (self.nats - rate * self.judged) / self.judged.double().mean()

    def row(self) -> tuple[Any, ...]:
        nats, error = _mean(self.per_token)
        entropy, entropy_error = _mean(self.entropies)
        size = (len(self.tokens), self.tokens.shape[1])
        costs = (float(self.nfe.mean()), float(self.rows.mean()), self.seconds)
        return (
            self.subject, self.how.label, self.steps, *size, nats, error, entropy, entropy_error, math.exp(nats), *costs
        )  # fmt: skip


COLUMNS = (
    "subject",
    "sampler",
    "N",
    "sequences",
    "L",
    "nats per token",
    "error",
    "entropy",
    "its error",
    "perplexity",
    "NFE",
    "draws of rows",
    "seconds per sequence",
)
PAIRS = ("subject", "sampler", "against", "N", "sequences", "nats below", "error", "entropy above", "its error")
Row = dict[str, Any]


def _mean(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std() / len(values) ** 0.5) if len(values) > 1 else math.nan


def table(cells: list[Cell]) -> Table:
    return Table(COLUMNS, tuple(dict.fromkeys(cell.row() for cell in cells)))


def pair(a: Cell, b: Cell) -> tuple[Any, ...]:
    """How far a is below b in nats per token and above it in entropy, paired by sequence: they share their noise.

    If hardly any pair differs, the spread is unreliable: the error is at least that of one unrelated pair.
    """
    assert len(a.tokens) == len(b.tokens)
    found: list[float] = []
    for one, other, of in ((b.per_token, a.per_token, b.per_token), (a.entropies, b.entropies, b.entropies)):
        value, error = _mean(one - other)
        found += [value, max(error, 2**0.5 * float(of.std()) / len(of))]
    return (a.subject, a.how.label, b.how.label, a.steps, len(a.tokens), *found)


def base_of(table: Table, subject: str) -> Row:
    """The row of ``reference``."""
    truth = curve(table, subject, How("truth"))
    return truth[0] if truth else curve(table, subject, How("parallel"))[-1]


def known_law(table: Table, subject: str) -> bool:
    return bool(curve(table, subject, How("truth")))


def below(a: Row, b: Row, what: str = "") -> Number:
    """By how many nats per token a is below b, for independent cells."""
    return _apart(b, a, "nats per token", "error", what or "nats per token below")


def above(a: Row, b: Row, what: str = "") -> Number:
    """By how much a's entropy is above b's, for independent cells."""
    return _apart(a, b, "entropy", "its error", what or "entropy above")


def _apart(a: Row, b: Row, value: str, error: str, what: str) -> Number:
    """Few sequences estimate their spread badly: the larger of the two is used for both."""
    rows = (a, b)
    spread = max((row[error] ** 2 * row["sequences"] for row in rows if row[error] is not None), default=math.nan)
    n = min(row["sequences"] for row in rows)
    return Number(what, a[value] - b[value], math.sqrt(spread * sum(1 / row["sequences"] for row in rows)), n)


def part(a: Row, b: Row, base: Row, what: str) -> Number:
    """The fraction of b's fall below a base that a has too: r = (base - a) / (base - b), for independent cells.

    The base is in both falls, so its error enters with the factor 1 - r.
    """
    fall = base["nats per token"] - b["nats per token"]
    if not fall or any(row["error"] is None for row in (a, b, base)):
        return Number(what, None)
    r = (base["nats per token"] - a["nats per token"]) / fall
    error = math.hypot(a["error"], r * b["error"], (1 - r) * base["error"]) / abs(fall)
    return Number(what, r, error, min(row["sequences"] for row in (a, b, base)))


def curve(table: Table, subject: str, sampler: How | str) -> list[Row]:
    """The rows of a subject and a sampler, ordered by N."""
    label = sampler if isinstance(sampler, str) else sampler.label
    found = [row for row in table.records() if (row["subject"], row["sampler"]) == (subject, label)]
    return sorted(found, key=lambda row: row["N"] or 0)


def subjects_of(table: Table) -> list[str]:
    return list(dict.fromkeys(table.column("subject")))


def on(row: Row) -> str:
    return f"{row['subject']}: {row['sequences']} sequences of {row['L']} tokens"


@lru_cache(maxsize=512)
def measure(
    subject: Subject, how: How, steps: int | None, num: int, length: int, settings: Settings, *, paired: bool = False
) -> Cell:
    """Sample and judge; a cell that two items need is measured once.

    Every cell has its own seeds and is independent of every other. ``paired`` cells of one N share seeds and therefore
    noise. Batches are sampled in parallel, one thread each: networks this small do not gain from a second one. Finished
    cells are stored in ``settings.cells``.
    """
    num = min(num, subject.most or num)
    what = f"{subject.name}, {how.label}" + (f", N = {steps:,}" if steps else "")
    print(f"  {clock.strftime('%H:%M:%S')} {what}: {num} sequences of {length} tokens", file=sys.stderr, flush=True)
    size = subject.at_once
    starts = range(0, num, size)
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // settings.workers))

    def part(start: int) -> dict[str, Tensor]:
        return _part(subject, how, steps, range(start, min(start + size, num)), length, settings, paired)

    try:
        with ThreadPoolExecutor(settings.workers) as pool:
            made = list(pool.map(part, starts))
    finally:
        torch.set_num_threads(threads)
    whole = {name: torch.cat([one[name] for one in made]) for name in made[0]}
    seconds = float(whole.pop("seconds").mean())
    return Cell(subject.name, how, steps, **whole, seconds=seconds)


def _part(
    subject: Subject, how: How, steps: int | None, which: range, length: int, settings: Settings, paired: bool
) -> dict[str, Tensor]:
    """One batch of a cell, sampled and judged, or as stored."""
    told = (unmask.__version__, subject.about, how, steps, which, length, settings.seed, paired, settings.judge)
    name = hashlib.sha256(repr(told).encode()).hexdigest()[:24]

    def make() -> dict[str, Tensor]:
        if how.kind == "truth":
            assert subject.exact is not None
            tokens = subject.exact(len(which), length, word(settings.seed, "truth", which.start))
            nfe, rows, seconds = *torch.full((2, len(which)), math.nan), math.nan
        else:
            shared = "paired" if paired else how.label
            seeds = [word(settings.seed, subject.name, shared, steps or 0, i) for i in which]
            made = sampled(subject, how, steps, seeds, length)
            tokens, nfe, rows, seconds = made.tokens, made.nfe, made.ncs, made.seconds / len(which)
        texts = [] if subject.exact is not None else [subject.decode(row) for row in tokens.tolist()]
        said = subject.judge.nats(Samples(texts, tokens, {"draw": how.label}))
        return {
            "tokens": tokens,
            "nats": torch.tensor([float(one.sum()) for one in said], dtype=torch.float64),
            "judged": torch.tensor([len(one) for one in said]),
            "entropies": sequence_entropy(tokens),
            "nfe": nfe.double(),
            "rows": rows.double(),
            "seconds": torch.full((len(which),), seconds, dtype=torch.float64),
        }

    return kept(Path(settings.cells) / f"{name}.pt" if settings.cells else None, make)


def sampled(subject: Subject, how: How, steps: int | None, seeds: list[int], length: int) -> Sample:
    """The sequences of these seeds."""
    options: dict[str, Any] = {"num": len(seeds), "length": length, "seed": seeds}
    if how.kind in (*PUBLISHED, *LAWS):
        options |= {"sampler": sampler(how), "steps": steps or length}
    else:
        options |= {"draw": DRAWS[how.draw], "temperature": how.temperature}
    if how.kind == "left to right":
        if subject.left_to_right is None:
            raise ValueError(f"{subject.name} has no left-to-right counterpart")
        return subject.left_to_right(**options)
    if how.predictor.startswith("order"):
        options |= {"sampler": Extrapolation(int(how.predictor.split()[1])), "steps": steps or length}
    elif how.kind in PLANS:
        options |= {"plan": PLANS[how.kind], "steps": steps or length, "predict": PREDICTORS[how.predictor]}
    return unmask.sample(network(subject, how), **options)


def sampler(how: How) -> Any:
    """A published sampler, or a simulation of its distribution."""
    if how.kind in LAWS:
        return CoupledByLaw("grid" if how.precision == "float32" else "truncated")
    # Neither the oracle nor the bundled networks read the time, so the cache changes no token of SEDD's either.
    law = published.tweedie_law if how.kind == "sedd" else published.ancestral_law
    if how.kind == "uncached":
        return published.Coupled(how.precision, cache=False)
    return CoupledRare(how.precision, law)


def network(subject: Subject, how: How) -> Any:
    """SEDD's samplers run the network that was trained with SEDD's objective, if there is one."""
    return subject.sedd if how.kind.startswith("sedd") and subject.sedd is not None else subject.model


def left_to_right(
    subject: Subject, num: int, length: int, settings: Settings, *, paired: bool = False, **options: Any
) -> Cell | None:
    """The left-to-right counterpart, AR in the paper, if there is one."""
    if subject.left_to_right is None:
        return None
    return measure(subject, How("left to right", **options), None, num, length, settings, paired=paired)


def reference(subject: Subject, length: int, settings: Settings) -> Cell:
    """The model's distribution: exact draws of an oracle, or first-hitting sampling token by token."""
    if subject.exact is None:
        return measure(subject, How("parallel"), length, settings.pick(full=128, fast=8, tiny=8), length, settings)
    num = settings.pick(full=2000, fast=1000, tiny=200)
    return measure(subject, How("truth"), None, num, length, settings)
