"""Bootstrap intervals: they hold the truth at the stated rate, and do not pretend to know what they cannot."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.helpers import FALSE_ALARM
from unmask.evaluate.judge.interval import Interval, bootstrap, student
from unmask.evaluate.judge.judge import corpus_perplexity

Make = Callable[[np.random.Generator], tuple[np.ndarray, ...]]


def sequences(random: np.random.Generator, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Token counts that differ, and nats whose rate differs from sequence to sequence: skewed perplexities."""
    tokens = random.integers(20, 80, num)
    return random.gamma(4.0, 0.75, num) * tokens, tokens


def mean_of_perplexities(nats: np.ndarray, tokens: np.ndarray) -> Any:
    return np.exp(nats / tokens).mean(-1)


@pytest.mark.parametrize(("num", "level"), [(12, 0.95), (60, 0.95), (60, 0.5)])
def test_intervals_hold_the_truth_at_their_stated_rate(num: int, level: float) -> None:
    """Of corpus perplexity: E nats / E tokens = 3 exactly. Two-sided binomial threshold, false alarms 1e-6."""
    random, trials = np.random.default_rng(1), 800
    hits = 0
    for trial in range(trials):
        found = bootstrap(corpus_perplexity, *sequences(random, num), level=level, resamples=600, seed=trial)
        hits += found.low <= math.exp(3.0) <= found.high
    low, high = stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], trials, level)
    assert low <= hits <= high, f"{hits / trials:.3f} instead of {level}"


def test_the_mean_of_skewed_perplexities_is_covered_too() -> None:
    """exp of a normal variable; its mean is exp(mu + s^2 / 2). Binomial threshold, false alarms 1e-6."""
    random, trials, hits = np.random.default_rng(2), 600, 0
    for trial in range(trials):
        rate = random.normal(3.0, 0.35, 60)
        found = bootstrap(mean_of_perplexities, rate * 50, np.full(60, 50), resamples=600, seed=trial)
        hits += found.low <= math.exp(3.0 + 0.35**2 / 2) <= found.high
    assert hits >= stats.binom.ppf(FALSE_ALARM, trials, 0.95), hits / trials


def test_an_interval_that_is_too_narrow_would_be_noticed() -> None:
    """The same simulation with intervals of 80% that claim 95%."""
    random, trials, hits = np.random.default_rng(1), 800, 0
    for trial in range(trials):
        found = bootstrap(corpus_perplexity, *sequences(random, 60), level=0.8, resamples=300, seed=trial)
        hits += found.low <= math.exp(3.0) <= found.high
    assert hits < stats.binom.ppf(FALSE_ALARM / 2, trials, 0.95)


def test_arrays_are_resampled_together_and_one_by_one_gives_the_same() -> None:
    nats, tokens = sequences(np.random.default_rng(3), 30)
    at_once = bootstrap(corpus_perplexity, nats, tokens, resamples=200)
    one_by_one = bootstrap(lambda n, t: math.exp(n.sum() / t.sum()), nats, tokens, resamples=200)
    assert at_once == one_by_one
    twice = bootstrap(lambda n, t: (n / t).mean(-1), tokens * 2.0, tokens)
    assert (twice.value, twice.low, twice.high) == (2.0, 2.0, 2.0)
    assert bootstrap(corpus_perplexity, nats, tokens, resamples=200, seed=1) != at_once


def test_rows_of_several_numbers_are_one_sequence_each() -> None:
    rows = np.random.default_rng(4).normal(size=(25, 3))
    found = bootstrap(lambda x: x.mean(axis=(-2, -1)), rows, resamples=300)
    assert found.value == pytest.approx(rows.mean())
    assert found.low < found.value < found.high


def test_more_sequences_than_jackknife_groups() -> None:
    found = bootstrap(lambda x: x.mean(-1), np.random.default_rng(5).exponential(size=3001), resamples=300)
    assert found.low < found.value < found.high
    assert found.high - found.low == pytest.approx(2 * 1.96 / math.sqrt(3001), rel=0.25)


def test_what_cannot_be_known_is_not_pretended() -> None:
    one = bootstrap(lambda x: x.mean(-1), [2.0])
    assert one.value == 2.0 and math.isnan(one.low) and math.isnan(one.high)
    assert str(one) == "2 [no interval from one sequence]"
    infinite = bootstrap(corpus_perplexity, np.array([math.inf, 3.0, 4.0, 2.0]), np.array([1, 1, 1, 1]))
    assert infinite.value == infinite.high == math.inf


def test_decimals_follow_the_width() -> None:
    assert str(Interval(41.32, 39.81, 42.93, 0.95)) == "41.3 [39.8, 42.9]"
    assert str(Interval(5.6601, 5.6142, 5.7055, 0.95)) == "5.660 [5.614, 5.705]"
    assert str(Interval(13993.2, 9011.0, 20117.0, 0.95)) == "13,993 [9,011, 20,117]"
    assert str(Interval(3.0, 3.0, 3.0, 0.95)) == "3 [3, 3]"
    assert str(Interval(math.inf, 3.0, math.inf, 0.95)) == "inf [3, inf]"


@pytest.mark.parametrize("degrees", [5, 11, 100])
def test_students_quantile(degrees: int) -> None:
    assert student(1.959964, degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=2e-3)


@pytest.mark.parametrize(
    ("arrays", "options"),
    [
        (([1.0, 2.0], [1.0]), {}),
        (([],), {}),
        ((1.0,), {}),
        ((), {}),
        (([1.0, 2.0],), {"level": 95}),
        (([1.0, 2.0],), {"resamples": 0}),
    ],
)
def test_wrong_arguments(arrays: tuple[Any, ...], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        bootstrap(lambda *x: x[0].mean(-1), *arrays, **options)
