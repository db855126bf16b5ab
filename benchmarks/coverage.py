"""How often the judge's intervals hold the truth: python -m benchmarks.coverage > docs/results/coverage.json

Sequences whose log-perplexities have a known law, so that both perplexities of the whole law are known: 95% intervals
of each, of many sets of 12 and of 60 sequences. Beside them Efron's BCa of scipy for the mean of perplexities. No clock
is involved.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable

import numpy as np
from scipy import stats

from unmask.evaluate.judge.interval import Interval, mean_interval

TRIALS, RESAMPLES = 4_000, 1_000
# Of a sequence's nats per token: how it is drawn, its mean, and the mean of its exponential.
LAWS: dict[str, tuple[Callable[[np.random.Generator, int], np.ndarray], float, float]] = {
    "normal, sd 1": (lambda random, n: random.normal(3.0, 1.0, n), 3.0, math.exp(3.5)),
    "normal, sd 0.35": (lambda random, n: random.normal(3.0, 0.35, n), 3.0, math.exp(3 + 0.35**2 / 2)),
    "gamma, mean 1, sd 0.5": (lambda random, n: random.gamma(4.0, 0.25, n), 1.0, 0.75**-4),
}


def bca(x: np.ndarray, seed: int) -> Interval:
    random = np.random.default_rng(seed)
    found = stats.bootstrap((x,), np.mean, n_resamples=RESAMPLES, method="BCa", rng=random).confidence_interval
    return Interval(float(x.mean()), found.low, found.high, 0.95)


def coverage(law: str, num: int) -> dict[str, float | int | str]:
    draw, mean, mean_of_exp = LAWS[law]
    random, hits = np.random.default_rng(0), {"corpus": 0, "mean": 0, "mean_bca": 0}
    for trial in range(TRIALS):
        nats = draw(random, num)
        for name, found, truth in (
            ("corpus", mean_interval(nats, resamples=RESAMPLES, seed=trial), mean),
            ("mean", mean_interval(np.exp(nats), log=True, resamples=RESAMPLES, seed=trial), mean_of_exp),
            ("mean_bca", bca(np.exp(nats), trial), mean_of_exp),
        ):
            hits[name] += found.low <= truth <= found.high
    return {"law": law, "sequences": num, **{name: count / TRIALS for name, count in hits.items()}}


def main() -> None:
    cells = []
    for law in LAWS:
        for num in (12, 60):
            cells.append(coverage(law, num))
            print(cells[-1], file=sys.stderr, flush=True)
    about = {"level": 0.95, "trials": TRIALS, "resamples": RESAMPLES, "error": math.sqrt(0.05 * 0.95 / TRIALS)}
    print(json.dumps({"command": "python -m benchmarks.coverage", **about, "cells": cells}, indent=1))


if __name__ == "__main__":
    main()
