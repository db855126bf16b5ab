"""A fair comparison (Sec. 6): models and samplers by perplexity, entropy, network calls and time, with intervals.

A Setting says how sequences are sampled, and ``measure`` samples and judges them: one Point. ``sweep`` measures many,
and stores every Point at once, so that it can be stopped and resumed. Every Point has its own random numbers, the same
for any number of processes, so Points are independent, as the comparison of their intervals assumes.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from unmask.evaluate import processes
from unmask.evaluate.frontier.points import AHEAD, DATA, EXACT, LEFT_TO_RIGHT, Kept, Point
from unmask.evaluate.judge.interval import Interval
from unmask.evaluate.judge.judge import Judge, judge
from unmask.evaluate.judge.samples import Samples
from unmask.evaluate.likelihood.partial import fingerprint
from unmask.model import Model
from unmask.names import DRAWS, PLANS, PRECISIONS, SamplerOptions
from unmask.network import device_of, inference, logits_of
from unmask.noise import word
from unmask.processes import Process, process_of
from unmask.protocol import length_of
from unmask.sampling import Sample
from unmask.sampling import sample as sample_tokens

PUBLISHED = ("published-ancestral", "published-euler", "published-tweedie")
SAMPLERS: dict[str, dict[str, Any]] = {
    **{name: {"sampler": name} for name in PLANS},
    AHEAD: {"sampler": "first-hitting", "ahead": "auto"},
    **{f"parallel-{name}": {"sampler": "parallel", "predictor": name} for name in ("extrapolate", "correct")},
    **{name: {"sampler": name} for name in PUBLISHED},
    LEFT_TO_RIGHT: {},
}
"""The samplers of a sweep, as SamplerOptions: a plan, one with a second-order predictor, or as published."""

PUBLISHED_DRAW = "published race"  # over tokens and mask together, in float32


@dataclass(frozen=True)
class Setting:
    """How sequences are sampled. The published samplers run as published, at temperature 1 with their own draw."""

    sampler: str
    steps: int | None = None
    temperature: float = 1.0
    draw: str = "exponential-race"

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)}, got {self.sampler!r}")
        if (self.sampler in EXACT) != (self.steps is None):
            needs = "takes no steps" if self.sampler in EXACT else "needs steps"
            raise ValueError(f"sampler {self.sampler} {needs}, got steps={self.steps}")
        allowed = (PUBLISHED_DRAW,) if self.published else tuple(DRAWS)
        if self.draw not in allowed:
            raise ValueError(f"draw of {self.sampler} must be one of {', '.join(allowed)}, got {self.draw!r}")
        if self.published and self.temperature != 1:
            raise ValueError(f"{self.sampler} runs as published, at temperature 1, got {self.temperature}")

    @property
    def published(self) -> bool:
        return self.sampler in PUBLISHED

    @property
    def dtype(self) -> str:
        return "float32" if self.published else PRECISIONS[self.draw]

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of ``Model.sample``."""
        shape: dict[str, Any] = {} if self.published else {"draw": self.draw, "temperature": self.temperature}
        return SamplerOptions(steps=self.steps, **SAMPLERS[self.sampler], **shape).arguments()

    def seed(self, seed: int, model: str, i: int) -> int:
        """The seed of sequence i, which depends on the Setting and the model."""
        return word(seed, "frontier", model, repr(self), i)


@dataclass(frozen=True)
class SampledModel:
    """A model to be sampled: a Model, whose samples also have texts, or any denoiser."""

    name: str
    model: Any
    kind: str = "masked"  # for display: masked, score (SEDD's objective) or left-to-right

    @property
    def network(self) -> Any:
        return self.model.denoiser if isinstance(self.model, Model) else self.model

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.network)

    @property
    def process(self) -> Process:
        return process_of(self.network)

    def sample(self, num: int, length: int, seeds: Sequence[int], options: dict[str, Any]) -> tuple[Sample, list[str]]:
        if isinstance(self.model, Model):
            sample = self.model.sample(num, length=length, seed=seeds, **options)
            return sample, sample.text
        return sample_tokens(self.model, num=num, length=length, seed=seeds, **options), []


@dataclass(frozen=True)
class Conditions:
    """The settings common to all Points of a comparison. length: by default each model's own."""

    num: int = 64
    length: int | None = None
    seed: int = 0
    batch: int = 16
    level: float = 0.95
    own_tokens: bool = True  # entropy of the samples' tokens; otherwise of the judge's, for several tokenizers

    def __post_init__(self) -> None:
        if self.num < 2 or self.batch < 1:
            raise ValueError(f"num must be at least 2 and batch at least 1, got num={self.num} and batch={self.batch}")

    def length_of(self, subject: SampledModel) -> int:
        length = self.length or length_of(subject.network)
        if length is None:
            raise ValueError(f"{subject.name} does not say how long its sequences are: give length")
        return length


def settings(
    subject: SampledModel,
    samplers: Sequence[str],
    steps: Sequence[int],
    temperatures: Sequence[float] = (1.0,),
    *,
    length: int | None = None,
    draw: str = "exponential-race",
) -> list[Setting]:
    """The Settings of a sweep for one model: one sampler for a left-to-right model, all requested ones otherwise.

    Parallel decoding with more steps than tokens equals that with as many, and is left out.
    """
    subject.process.require("be_measured_by_steps")
    if not subject.process.chooses:
        return [Setting(LEFT_TO_RIGHT, None, temperature, draw) for temperature in temperatures]
    runs = []
    for name in samplers:
        if name == LEFT_TO_RIGHT:
            continue
        for temperature in (1.0,) if name in PUBLISHED else temperatures:
            own = PUBLISHED_DRAW if name in PUBLISHED else draw
            for n in (None,) if name in EXACT else steps:
                if not (name.startswith("parallel") and length is not None and n is not None and n > length):
                    runs.append(Setting(name, n, temperature, own))
    return runs


def measure(subject: SampledModel, setting: Setting, judged_by: Judge, conditions: Conditions) -> Point:
    """Sample sequences and judge them. With several processes each samples some of the batches; all get the Point."""
    parts = [range(i, min(i + conditions.batch, conditions.num)) for i in range(0, conditions.num, conditions.batch)]
    batches = list(processes.results(parts, lambda part: _batch(subject, setting, part, conditions)))
    tokens, texts = torch.cat([batch.tokens for batch in batches]), [text for batch in batches for text in batch.texts]
    asked = asked_for(subject, setting, judged_by, conditions)
    judged = _judged(asked, tokens, texts, judged_by, conditions)
    return replace(
        judged,
        calls=sum(batch.calls for batch in batches) / conditions.num,
        seconds=sum(batch.seconds for batch in batches) / conditions.num,
        cpu_seconds=sum(batch.cpu_seconds for batch in batches) / conditions.num,
    )


def asked_for(subject: SampledModel, setting: Setting, judged_by: Judge, conditions: Conditions) -> Point:
    """The Point without its result; its key says whether it has been measured."""
    about = (subject.name, subject.kind, subject.fingerprint, setting.sampler, setting.steps, setting.temperature)
    size = (conditions.num, conditions.length_of(subject))
    return _without_result(*about, setting.draw, setting.dtype, *size, judged_by=judged_by, conditions=conditions)


def _without_result(*asked: Any, judged_by: Judge, conditions: Conditions) -> Point:
    """The Point of a model, a sampler, the number of sequences and their length: the first ten fields."""
    judging = (judged_by.name, judged_by.conventions, conditions.own_tokens, conditions.level)
    nothing = Interval(0.0, 0.0, 0.0, conditions.level)
    known: list[Any] = [*asked, conditions.seed, conditions.batch, *judging]
    known += [nothing, nothing, nothing, 0.0, 0.0, 0.0]  # calls and seconds
    return Point(*known)


def reference(
    name: str, identity: str, tokens: Tensor, texts: list[str], judged_by: Judge, conditions: Conditions, kept: Kept
) -> Point:
    """Real sequences as a Point: their perplexity and entropy under the same judge. identity: that of the data."""
    about = (name, DATA, identity, DATA, None, 1.0, "none, real data", "none")
    asked = _without_result(*about, *tokens.shape, judged_by=judged_by, conditions=conditions)
    return kept.once(asked, lambda: _judged(asked, tokens, texts, judged_by, conditions))


def sweep(
    plan: Iterable[tuple[SampledModel, Setting]],
    judged_by: Judge,
    conditions: Conditions,
    *,
    kept: Kept | None = None,
    progress: Callable[[Point, bool], object] | None = None,
) -> list[Point]:
    """Measure every Setting. kept: existing Points, to which the new ones are added.

    progress is called with every Point, and whether it is new.
    """
    kept = kept or Kept()
    points = []
    warm: set[str] = set()
    for subject, setting in plan:
        asked = asked_for(subject, setting, judged_by, conditions)
        new = asked.key not in kept.points
        if new and subject.name not in warm:
            _warm_up(subject, conditions)
            warm.add(subject.name)
        points.append(kept.once(asked, partial(measure, subject, setting, judged_by, conditions)))
        if progress is not None and processes.main():
            progress(points[-1], new)
    return points


@dataclass(frozen=True)
class _Batch:
    """Some sequences, and their total cost."""

    tokens: Tensor
    texts: list[str]
    calls: int
    seconds: float
    cpu_seconds: float


def _batch(subject: SampledModel, setting: Setting, indices: Sequence[int], conditions: Conditions) -> _Batch:
    seeds = [setting.seed(conditions.seed, subject.name, i) for i in indices]
    started, worked = clock.perf_counter(), clock.process_time()
    sample, texts = subject.sample(len(indices), conditions.length_of(subject), seeds, setting.options)
    seconds, cpu_seconds = clock.perf_counter() - started, clock.process_time() - worked
    return _Batch(sample.tokens.cpu(), texts, int(sample.nfe.sum()), seconds, cpu_seconds)


def _judged(asked: Point, tokens: Tensor, texts: list[str], judged_by: Judge, conditions: Conditions) -> Point:
    own = tokens if conditions.own_tokens else None
    samples = Samples(texts, own, {"draw": asked.draw, "dtype": asked.dtype})
    judgement = judge(samples, judged_by, level=conditions.level, seed=conditions.seed)
    return replace(
        asked, perplexity=judgement.perplexity, mean_perplexity=judgement.mean_perplexity, entropy=judgement.entropy
    )


def _warm_up(subject: SampledModel, conditions: Conditions) -> None:
    """One network call, so that no Point includes one-time costs."""
    network, length = subject.network, conditions.length_of(subject)
    canvas = torch.full((conditions.batch, length), network.mask_id, device=device_of(network))
    first = canvas.new_zeros(len(canvas), 1)
    with inference(network):
        logits_of(network, canvas, canvas.new_ones(len(canvas), dtype=torch.float32), first, first.cpu() == 0)
