"""A cell of a figure: a subject, a way to sample and a number of steps; samples, their perplexity and entropy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask.evaluate.judge.interval import Interval
from unmask.evaluate.judge.judge import Samples, judge
from unmask.noise import word
from unmask.reproduce.item import Settings, Subject, Table
from unmask.samplers import published
from unmask.samplers.law import CoupledByLaw
from unmask.samplers.names import DRAWS, PLANS, PREDICTORS
from unmask.sampling import Sample

PUBLISHED = ("coupled", "sedd")
LAWS = ("law", "sedd law")  # Tweedie's step is the ancestral one: the same law, of a network trained otherwise
NAMES = {"parallel": "first-hitting", "truth": "the truth"}


@dataclass(frozen=True)
class How:
    """A way to sample.

    kind: "coupled" or "sedd", as published, in ``precision``; "law" and "sedd law", the same by the law of such steps;
    "parallel" and "ancestral", unmask's own; "left to right"; "truth", exact draws of an oracle.
    """

    kind: str
    precision: str = "float64"  # of a published sampler: "float32", "float64", "float64-truncated"
    draw: str = "exponential-race"
    predictor: str = "first-order"
    temperature: float = 1.0

    @property
    def label(self) -> str:
        if self.kind in (*PUBLISHED, *LAWS):
            name = f"published ({'SEDD' if self.kind.startswith('sedd') else 'MDLM'}), {self.precision}"
            return f"{name}, by its law" if self.kind in LAWS else name
        extras = [self.predictor] if self.predictor != "first-order" else []
        extras += [f"{self.draw} draw"] if self.draw != "exponential-race" else []
        extras += [f"T = {self.temperature:g}"] if self.temperature != 1 else []
        return ", ".join([NAMES.get(self.kind, self.kind), *extras])


@dataclass(frozen=True)
class Cell:
    """Samples and what became of them."""

    subject: str
    how: How
    steps: int | None
    tokens: Tensor
    per_token: Tensor  # float64 [B]: the judge's nats per token of each sequence; nan for a text without a token
    perplexity: Interval
    entropy: Interval  # the paper's entropy of a sequence, averaged
    nfe: float
    seconds: float  # per sequence

    def row(self) -> tuple[Any, ...]:
        p, e = self.perplexity, self.entropy
        size = (len(self.tokens), self.tokens.shape[1])
        intervals = (p.value, p.low, p.high, e.value, e.low, e.high)
        return (self.subject, self.how.label, self.steps, *size, *intervals, self.nfe, self.seconds)


COLUMNS = (
    "subject",
    "sampler",
    "N",
    "sequences",
    "L",
    "perplexity",
    "from",
    "to",
    "entropy",
    "entropy from",
    "entropy to",
    "NFE",
    "seconds per sequence",
)


def table(cells: list[Cell]) -> Table:
    return Table(COLUMNS, tuple(cell.row() for cell in cells))


@lru_cache(maxsize=256)
def measure(
    subject: Subject, how: How, steps: int | None, num: int, length: int, settings: Settings, *, paired: bool = False
) -> Cell:
    """Sample and judge; a cell that two items ask for is measured once.

    Every cell has seeds of its own, and is independent of every other. ``paired`` cells of one N share theirs, and with
    them their noise. Sequences are sampled side by side, one thread each: networks this small do not gain from a
    second one.
    """
    num = min(num, subject.most or num)
    name = "paired" if paired else how.label
    seeds = [word(settings.seed, subject.name, name, steps or 0, i) for i in range(num)]
    # One by one where steps cost N L V numbers, in as many batches as there are workers where networks are called.
    at_once = 1 if how.kind in PUBLISHED else -(-num // settings.workers)
    parts = [seeds[start : start + at_once] for start in range(0, num, at_once)]
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // settings.workers))
    try:
        with ThreadPoolExecutor(settings.workers) as pool:
            made = list(pool.map(lambda part: sampled(subject, how, steps, part, length, settings), parts))
    finally:
        torch.set_num_threads(threads)
    tokens = torch.cat([one.tokens for one in made])
    nfe = float(torch.cat([one.nfe for one in made]).double().mean())
    return judged(subject, how, steps, tokens, nfe, sum(one.seconds for one in made) / num)


def sampled(subject: Subject, how: How, steps: int | None, seeds: list[int], length: int, settings: Settings) -> Sample:
    """The sequences of these seeds."""
    options: dict[str, Any] = {"num": len(seeds), "length": length, "seed": seeds}
    if how.kind in (*PUBLISHED, *LAWS):
        options |= {"sampler": sampler(how), "steps": steps or length}
    else:
        options |= {"draw": DRAWS[how.draw], "temperature": how.temperature}
    if how.kind not in PUBLISHED:
        options["batch"] = settings.pick(full=8, fast=8, tiny=None)
    if how.kind == "left to right":
        if subject.left_to_right is None:
            raise ValueError(f"{subject.name} has no left-to-right counterpart")
        return subject.left_to_right(**options)
    if how.kind in PLANS:
        options |= {"plan": PLANS[how.kind], "steps": steps or length, "predict": PREDICTORS[how.predictor]}
    return unmask.sample(network(subject, how), **options)


def sampler(how: How) -> Any:
    """A published sampler, or its law."""
    if how.kind in LAWS:
        return CoupledByLaw("grid" if how.precision == "float32" else "truncated")
    # Neither the oracle nor the box's networks read the time, so the cache changes no token of SEDD's either.
    law = published.tweedie_law if how.kind == "sedd" else published.ancestral_law
    return published.Coupled(how.precision, law=law)


def network(subject: Subject, how: How) -> Any:
    """SEDD's samplers run the network that was trained as SEDD's, where there is one."""
    return subject.sedd if how.kind.startswith("sedd") and subject.sedd is not None else subject.model


def judged(subject: Subject, how: How, steps: int | None, tokens: Tensor, nfe: float, seconds: float) -> Cell:
    """The cell of finished sequences."""
    texts = [] if subject.exact is not None else [subject.decode(row) for row in tokens.tolist()]
    about = {"model": subject.name, "sampler": how.label, "steps": steps, "draw": how.label}
    said = judge(Samples(texts, tokens, about), subject.judge)
    return Cell(subject.name, how, steps, tokens, said.nats / said.tokens, said.perplexity, said.entropy, nfe, seconds)


@lru_cache(maxsize=16)
def truth(subject: Subject, num: int, length: int, settings: Settings) -> Cell:
    """Exact draws of the joint, where it is known: what every sampler should look like."""
    assert subject.exact is not None
    tokens = subject.exact(num, length, settings.seed)
    return judged(subject, How("truth"), None, tokens, float("nan"), float("nan"))


def left_to_right(
    subject: Subject, num: int, length: int, settings: Settings, *, paired: bool = False, **options: Any
) -> Cell | None:
    """The counterpart that the paper calls AR, where there is one."""
    if subject.left_to_right is None:
        return None
    return measure(subject, How("left to right", **options), None, num, length, settings, paired=paired)


def reference(subject: Subject, num: int, length: int, settings: Settings) -> Cell:
    """What the model's own law looks like: exact draws of an oracle, or first-hitting sampling token by token."""
    if subject.exact is None:
        return measure(subject, How("parallel"), length, num // 16, length, settings)
    return truth(subject, num, length, settings)


def lower(a: Cell, b: Cell, like: Cell | None = None) -> tuple[float, float]:
    """How many nats per token a lies below b, and the error of that, for cells that are independent.

    Cells of few sequences know their spread badly: the largest of those at hand is taken for all (``like``: a further
    cell, of many sequences).
    """
    known = [cell.per_token[~cell.per_token.isnan()] for cell in (a, b, like or b)]
    spread = max(float(values.var()) for values in known)
    return float(known[1].mean() - known[0].mean()), (spread * sum(1 / len(values) for values in known[:2])) ** 0.5


def lower_in_pairs(a: Cell, b: Cell) -> tuple[float, float]:
    """The same for paired cells: sequence i of both has the same noise, so their differences are what is compared."""
    gaps = b.per_token - a.per_token
    gaps = gaps[~gaps.isnan()]
    return float(gaps.mean()), float(gaps.std()) / len(gaps) ** 0.5


def decided(gap: float, error: float, *, sigmas: float = 3.0) -> bool | None:
    """Whether a gap is there (True), is the other way round (False), or is too small to tell at this size."""
    return None if not abs(gap) > sigmas * error else gap > 0


def agree(gap: float, error: float, fault: float, *, sigmas: float = 3.0) -> bool | None:
    """Whether two laws agree: None where a difference as large as ``fault`` would not have been seen."""
    if abs(gap) > sigmas * error:
        return False
    return True if sigmas * error < abs(fault) else None
