"""A cell of a figure: a subject, a way to sample and a number of steps; samples, their perplexity and entropy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask import draw, plan, predict, theory
from unmask.evaluate.judge.interval import Interval
from unmask.evaluate.judge.judge import Samples, judge
from unmask.reproduce.item import Settings, Table
from unmask.reproduce.subjects import Subject
from unmask.samplers import published
from unmask.samplers.law import Law, coupled_by_law
from unmask.sampling import Sample

PUBLISHED = ("coupled", "sedd")
LAWS = ("law", "sedd law")  # Tweedie's step is the ancestral one: the same law, of a network trained otherwise
APART = 10**6  # between the sequences of one seed and those of the next: another seed shares none of them
PREDICTORS = {"first order": predict.first_order, "extrapolate": predict.extrapolate, "correct": predict.correct}
DRAWS = {
    "exact": draw.inverse_cdf,
    "float64": draw.gumbel(torch.float64),
    "float32": draw.gumbel(torch.float32),
    "truncated": draw.truncated(theory.maximum_gumbel("float32")),
}


@dataclass(frozen=True)
class How:
    """A way to sample.

    kind: "coupled" or "sedd", as published, in ``precision``; "law" and "sedd law", the same by the law of such steps;
    "parallel" and "ancestral", unmask's own; "left to right"; "truth", exact draws of an oracle.
    """

    kind: str
    precision: str = "float64"  # of a published sampler: "float32", "float64", "float64-truncated"
    draw: str = "exact"
    predict: str = "first order"
    temperature: float = 1.0
    cache: bool = True

    @property
    def label(self) -> str:
        if self.kind in (*PUBLISHED, *LAWS):
            name = f"published ({'SEDD' if self.kind.startswith('sedd') else 'MDLM'}), {self.precision}"
            if self.kind in LAWS:
                return f"{name}, by its law"
            return name + ("" if self.cache or self.kind == "sedd" else ", no cache")
        name = {
            "parallel": "first-hitting",
            "ancestral": "ancestral",
            "left to right": "left to right",
            "truth": "the truth",
        }[self.kind]
        extras = [self.predict] if self.predict != "first order" else []
        extras += [f"{self.draw} draw"] if self.draw != "exact" else []
        extras += [f"T = {self.temperature:g}"] if self.temperature != 1 else []
        return ", ".join([name, *extras])


@dataclass(frozen=True)
class Cell:
    """Samples and what became of them."""

    subject: str
    how: How
    steps: int | None
    tokens: Tensor
    per_token: Tensor  # float64 [B]: the judge's nats per token of each sequence
    perplexity: Interval
    entropy: Interval  # the paper's entropy of a sequence, averaged
    nfe: float
    seconds: float  # per sequence

    def row(self) -> tuple[Any, ...]:
        p, e = self.perplexity, self.entropy
        return (
            self.subject,
            self.how.label,
            self.steps,
            len(self.tokens),
            self.tokens.shape[1],
            p.value,
            p.low,
            p.high,
            e.value,
            e.low,
            e.high,
            self.nfe,
            self.seconds,
        )


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
def measure(subject: Subject, how: How, steps: int | None, num: int, length: int, settings: Settings) -> Cell:
    """Sample and judge; a cell that two items ask for is measured once.

    Sequences are sampled side by side, one thread each: networks this small do not gain from a second one.
    """
    num = min(num, subject.most or num)
    seeds = [settings.seed * APART + i for i in range(num)]
    # One by one where steps cost N L V numbers, in as many batches as there are workers where networks are called.
    at_once = 1 if how.kind in PUBLISHED else -(-num // settings.workers)
    parts = [seeds[start : start + at_once] for start in range(0, num, at_once)]
    run = _published if how.kind in PUBLISHED else _planned
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // settings.workers))
    try:
        with ThreadPoolExecutor(settings.workers) as pool:
            made = list(pool.map(lambda part: run(subject, how, steps, part, length, settings), parts))
    finally:
        torch.set_num_threads(threads)
    tokens = torch.cat([one.tokens for one in made])
    nfe = float(torch.cat([one.nfe for one in made]).double().mean())
    return judged(subject, how, steps, tokens, nfe, sum(one.seconds for one in made) / num)


def judged(subject: Subject, how: How, steps: int | None, tokens: Tensor, nfe: float, seconds: float) -> Cell:
    """The cell of finished sequences."""
    texts = [] if subject.exact is not None else [subject.decode(row) for row in tokens.tolist()]
    about = {"model": subject.name, "sampler": how.label, "steps": steps, "draw": how.label}
    said = judge(Samples(texts, tokens, about), subject.judge)
    per_token = (said.nats / said.tokens)[said.tokens > 0]  # an empty text has nothing to judge
    return Cell(subject.name, how, steps, tokens, per_token, said.perplexity, said.entropy, nfe, seconds)


@lru_cache(maxsize=16)
def truth(subject: Subject, num: int, length: int, settings: Settings) -> Cell:
    """Exact draws of the joint, where it is known: what every sampler should look like."""
    assert subject.exact is not None
    tokens = subject.exact(num, length, settings.seed)
    return judged(subject, How("truth"), None, tokens, float("nan"), float("nan"))


def left_to_right(subject: Subject, num: int, length: int, settings: Settings, **options: Any) -> Cell | None:
    """The counterpart that the paper calls AR, where there is one."""
    if subject.left_to_right is None:
        return None
    return measure(subject, How("left to right", **options), None, num, length, settings)


def reference(subject: Subject, num: int, length: int, settings: Settings) -> Cell:
    """What the model's own law looks like: exact draws of an oracle, or first-hitting sampling token by token."""
    if subject.exact is None:
        return measure(subject, How("parallel"), length, num // 16, length, settings)
    return truth(subject, num, length, settings)


def lower(a: Cell, b: Cell, like: Cell | None = None) -> tuple[float, float]:
    """How many nats per token a lies below b, and the error of that.

    Cells of few sequences know their spread badly: the largest of those at hand is taken for all (``like``: a further
    cell, of many sequences).
    """
    spread = max(float(cell.per_token.var()) for cell in (a, b, like or b))
    return float(b.per_token.mean() - a.per_token.mean()), (spread * sum(1 / len(x.per_token) for x in (a, b))) ** 0.5


def decided(gap: float, error: float, *, sigmas: float = 3.0) -> bool | None:
    """Whether a gap is there (True), is the other way round (False), or is too small to tell at this size."""
    return None if not abs(gap) > sigmas * error else gap > 0


def agree(gap: float, error: float, fault: float, *, sigmas: float = 3.0) -> bool | None:
    """Whether two laws agree: None where a difference as large as ``fault`` would not have been seen."""
    if abs(gap) > sigmas * error:
        return False
    return True if sigmas * error < abs(fault) else None


def network(subject: Subject, how: How) -> Any:
    """SEDD's samplers run the network that was trained as SEDD's, where there is one."""
    return subject.sedd if how.kind.startswith("sedd") and subject.sedd is not None else subject.model


def _published(
    subject: Subject, how: How, steps: int | None, seeds: list[int], length: int, settings: Settings
) -> Sample:
    run = published.sedd_tweedie if how.kind == "sedd" else published.coupled_ancestral
    cache = True if subject.exact is not None and how.kind == "sedd" else how.cache  # an oracle does not read the time
    options: dict[str, Any] = {"num": len(seeds), "precision": how.precision, "cache": cache, "seed": seeds}
    return run(network(subject, how), steps=steps or length, length=length, **options)


def _planned(
    subject: Subject, how: How, steps: int | None, seeds: list[int], length: int, settings: Settings
) -> Sample:
    num, batch = len(seeds), settings.pick(full=8, fast=8, tiny=None)
    options: dict[str, Any] = {"draw": DRAWS[how.draw], "temperature": how.temperature}
    if how.kind == "left to right":
        if subject.left_to_right is None:
            raise ValueError(f"{subject.name} has no left-to-right counterpart")
        return subject.left_to_right(num, length, seeds, **options)
    if how.kind in LAWS:
        law: Law = "grid" if how.precision == "float32" else "truncated"
        options = {"num": num, "length": length, "law": law, "seed": seeds, "batch": batch}
        return coupled_by_law(network(subject, how), steps=steps or length, **options)
    return unmask.sample(
        subject.model,
        num=num,
        length=length,
        plan=plan.ancestral if how.kind == "ancestral" else plan.parallel,
        steps=steps or length,
        predict=PREDICTORS[how.predict],
        seed=seeds,
        batch=batch,
        **options,
    )
