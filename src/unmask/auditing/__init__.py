"""``unmask.audit``: does a categorical sampler draw from the distribution it should draw from?

The tests are in ``probes``, the closed forms they compare with in ``law``, and the built-in samplers in ``subjects``;
``unmask audit`` is the command.
"""

from __future__ import annotations

import math
import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from unmask.auditing.law import (
    Consequence,
    GumbelFit,
    binomial_tails,
    chi_square_tail,
    consequences,
    fit,
    leave_truncated,
)
from unmask.auditing.probes import LADDER, SHARE, Probe, measure, rung, rung_cost, sure_first, ties, zero_clock, zipf
from unmask.auditing.subjects import AuditedDraw, builtin, seeded, subject

SMALLEST_BUDGET = 1e6
REFINE_AT = (0.7, 1.5, 3.0)  # c = e^-M / p
EXPLAINED = 1e-4  # p-value below which truncation does not explain the counts
REFINE_ROUNDS, NARROW = 4, 0.5
REFINE_BY = 2000  # random numbers per e^M and c: gives M to about 0.03
FLAT = 20.0  # the temperature above which Zipf's law over 4,096 classes is as good as uniform
BEST_REFINED = 2.0  # c at which a random number is most informative about M


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit. ``exact`` is the verdict; an exact sampler is called faulty once in a million audits."""

    name: str
    exact: bool
    verdict: str
    maximum: float  # the largest Gumbel M; inf if no truncation was seen, nan if the error is of another kind
    interval: tuple[float, float]  # 95 %; if it extends to inf, its lower end is what the audit ruled out
    precision: str  # the precision with this largest Gumbel
    law: str  # "exact"; "grid", or "truncated" if clearly likelier; "zero", "order" or "other" for other errors
    p_value: float  # the smallest of all tests, corrected for their number
    temperature: float  # the best fit to the draws from Zipf's law; inf if they are uniform, or rarer is likelier
    temperature_error: float
    probes: tuple[Probe, ...]
    consequences: tuple[Consequence, ...]  # at the given vocabulary, length and steps
    numbers: int  # random numbers that Gumbel-max would have drawn: rows times classes
    seconds: float

    @property
    def decisive(self) -> Probe:
        """The test with the worst result."""
        return min(self.probes, key=lambda probe: probe.p_value)

    def __str__(self) -> str:
        return f"{self.name}: {self.verdict}"


def audit(
    draw: Callable[..., Any] | str,
    *,
    takes: str | None = None,
    library: str | None = None,
    budget: float = 3e9,
    vocab: int = 50_257,
    length: int = 1024,
    steps: int = 1000,
    seed: int = 0,
    name: str | None = None,
) -> AuditReport:
    """Test whether a categorical sampler draws from the distribution it is given.

    Args:
        draw: A function from an array [rows, classes] to one id per row, in torch, numpy or jax, or the name of a
            built-in sampler.
        takes: "probabilities" or "logits"; detected if not given.
        library: The kind of array, "torch", "numpy" or "jax"; detected if not given.
        budget: The largest number of random numbers per test; 3e9 is enough for float32, 1e8 for 17 bits.
        vocab: The largest number of classes to try.
        length: The sequence length of the coupled sampler whose behaviour is predicted.
        steps: Its number of steps.
        seed: The seed of the generators that the function is given.
        name: The function's name in the report.
    """
    if not (budget >= SMALLEST_BUDGET and vocab >= 256 and steps >= 2 and length >= 1):
        raise ValueError(
            f"budget >= {SMALLEST_BUDGET:g}, vocab >= 256, steps >= 2 and length >= 1 are needed, "
            f"got budget={budget}, vocab={vocab}, steps={steps}, length={length}"
        )
    started = clock.perf_counter()
    with seeded(seed), torch.inference_mode():
        how: dict[str, Any] = {"name": name, "takes": takes, "library": library, "seed": seed}
        who = builtin(draw, seed=seed) if isinstance(draw, str) else subject(draw, **how)
        whole, warmth, temperature, error = zipf(who, vocab, min(6e7, budget / 5))
        probes = [whole, warmth, ties(who, vocab, min(3e7, budget / 5)), *_ladder(who, vocab, budget)]
        gumbels, refined = _fit(who, probes, vocab, budget)
    worst = min(probes, key=lambda probe: probe.p_value)
    law = _kind(probes, gumbels) if worst.fault else "exact"
    truncated, gumbels = law in ("grid", "truncated"), _as_concluded(gumbels, law)
    return AuditReport(
        name=who.name,
        exact=not worst.fault,
        verdict=_verdict(law, worst, gumbels, temperature),
        maximum=gumbels.maximum,
        interval=gumbels.interval,
        precision=gumbels.precision,
        law=law,
        p_value=min(1.0, worst.p_value),
        temperature=temperature,
        temperature_error=error,
        probes=tuple(_against_closed_form(probe, gumbels) for probe in probes),
        consequences=consequences(gumbels.maximum, law, vocab=vocab, length=length, steps=steps) if truncated else (),
        numbers=refined + sum(probe.numbers for probe in probes if probe is not probes[1]),
        seconds=clock.perf_counter() - started,
    )


def _as_concluded(gumbels: GumbelFit, law: str) -> GumbelFit:
    """The fit, with the largest Gumbel that the verdict leaves."""
    if law == "exact":  # one exact sampler in twenty is outside its 95 % interval, but exact nevertheless
        return replace(gumbels, maximum=math.inf, interval=(gumbels.interval[0], math.inf), truncated=math.inf)
    if law not in ("grid", "truncated") and math.isfinite(gumbels.maximum):
        return replace(gumbels, maximum=math.nan, interval=(math.nan, math.nan))
    return gumbels


def _ladder(who: AuditedDraw, vocab: int, budget: float) -> list[Probe]:
    """Tests of increasing precision up to the first failure; then those for errors of other kinds."""
    bits = [b for b in LADDER if rung_cost(b) <= budget]
    probes = []
    for b in bits:
        share = SHARE["top"] if b == bits[-1] else SHARE["rungs"] / (len(bits) - 1)
        probes.append(rung(who, b, vocab, share))
        if probes[-1].fault:
            return probes
    probes.append(zero_clock(who, min(bits[-1], 24), vocab))
    if bits[-1] >= 24:
        probes.append(sure_first(who, vocab))
    return probes


def _fit(who: AuditedDraw, probes: Sequence[Probe], vocab: int, budget: float) -> tuple[GumbelFit, int]:
    """M from the test counts; after a failure also from further counts, in the middle of the range left open."""
    rungs = [probe for probe in probes if probe.name.endswith("bits")]
    counts = [probe.count for probe in rungs if probe.count is not None]
    gumbels = fit(counts)
    numbers = 0
    for _ in range(REFINE_ROUNDS):
        if not rungs[-1].fault or math.isinf(gumbels.maximum) or gumbels.interval[1] - gumbels.interval[0] < NARROW:
            break
        middle = sum(gumbels.interval) / 2
        dear = len(REFINE_AT) * REFINE_BY * math.exp(middle) > budget / 5
        each = budget / 5 if dear else REFINE_BY * math.exp(middle)
        more = [measure(who, middle, c, vocab, each) for c in ((BEST_REFINED,) if dear else REFINE_AT)]
        counts += more
        numbers += sum(count.rows * (count.tokens + 1) for count in more)
        gumbels = fit(counts)
        if dear:
            break
    return gumbels, numbers


def _against_closed_form(probe: Probe, gumbels: GumbelFit) -> Probe:
    """In addition: how far the draws are from Prop. 5.2 with the best-fitting M."""
    if probe.count is not None:
        count = probe.count
        leave = float(leave_truncated(count.r, count.p, math.exp(-gumbels.truncated)))
        distance = abs(count.left / count.rows - leave)
        p_value = min(1.0, 2 * min(binomial_tails(count.left, count.rows, leave)))
    elif probe.bins is not None:
        distance, statistic = probe.bins.against(gumbels.truncated)
        p_value = chi_square_tail(statistic, len(probe.bins.observed) - 1)
    else:
        return probe
    return replace(probe, closed_form_distance=distance, closed_form_p_value=p_value, bins=None)


def _kind(probes: Sequence[Probe], gumbels: GumbelFit) -> str:
    """The kind of error: truncation, if it explains the failures; or that of the only test that failed."""
    failed = {probe.name for probe in probes if probe.fault}
    if any(name.endswith("bits") for name in failed):
        zipf_s = next(probe.bins for probe in probes if probe.bins is not None)
        explained = gumbels.p_value > EXPLAINED and math.isfinite(gumbels.maximum)
        if explained and probes[0].fault:
            explained = zipf_s.against(gumbels.truncated)[1] < zipf_s.against()[1] / 4
        return gumbels.law if explained else "other"
    if failed == {"zero clocks"}:
        return "zero"
    return "order" if failed == {"sure class first"} else "other"


def _verdict(law: str, worst: Probe, gumbels: GumbelFit, temperature: float) -> str:
    low, high = gumbels.interval
    if law == "exact":
        return f"exact: no truncation below M = {low:.1f} could be seen ({gumbels.precision})"
    if law in ("grid", "truncated"):
        return f"FAULT: no Gumbel exceeds M = {gumbels.maximum:.2f} ({low:.2f} to {high:.2f}): {gumbels.precision}"
    if law == "zero" and worst.count is not None:
        once = math.log2(worst.count.rows * worst.count.tokens / max(worst.count.left, 1))
        return f"FAULT: rare classes win too often, each about once in 2^{once:.1f} draws however rare it is"
    if law == "order":
        return "FAULT: classes behind a large one are lost, as from a cumulative sum in float32"
    comes = f"at T = {temperature:.3f}" if temperature < FLAT else "flat, as if all classes were equally likely"
    return f"FAULT: the law is wrong ({worst.name}), not by truncation; Zipf's law comes out {comes}"
