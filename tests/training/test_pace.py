"""Runs of given minutes: planned again as the speed changes, without a jump of the learning rate; the forecast."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.runs import metrics, settings, write_tokens
from unmask.training import loop
from unmask.training.events import Event, Finished, Replanned
from unmask.training.loop import train
from unmask.training.optimizer import learning_rate
from unmask.training.pace import Pace, StepPlan, forecast


def rate(step: int, plan: StepPlan) -> float:
    return learning_rate(step, peak=1.0, warmup=10, plan=plan, decay="cosine")


@pytest.mark.parametrize("steps", [50, 300])
def test_a_new_plan_has_no_jump_and_still_ends_at_zero(steps: int) -> None:
    first = StepPlan(110)
    second = first.again(40, steps, 10)
    assert rate(40, second) == pytest.approx(rate(40, first))
    assert rate(steps, second) == pytest.approx(0, abs=1e-12)
    rates = [rate(step, second) for step in range(40, steps + 1)]
    assert rates == sorted(rates, reverse=True)
    assert rate(60, second.again(45, 110, 10)) < rate(45, second)


def test_a_plan_during_the_warm_up_begins_the_decay_after_it() -> None:
    assert rate(10, StepPlan(110).again(5, 60, 10)) == 1
    assert rate(35, StepPlan(110).again(5, 60, 10)) == pytest.approx(0.5)


def test_what_fits_is_what_is_left_after_the_end() -> None:
    pace = Pace(240.0, validation=10.0, sample=2.0, saving=1.0)
    assert pace.ending == 16
    pace.steps.extend([0.5, 1.5])
    assert pace.left(20.0, every=11) == int((240 - 16 - 20) / (1 + 1))
    pace.planned = 20.0
    assert pace.left(31.0, every=11) is None, "less than a twentieth of the minutes later"
    assert pace.late(225.0) and not pace.late(223.0)
    assert Pace(math.inf).left(1e6, 10) is None


def test_a_run_that_becomes_slower_ends_on_time_and_one_that_becomes_faster_uses_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that the steps alone move: planned for 40 steps of 2 seconds, they take 8 or half a second."""
    letters = write_tokens(tmp_path)
    for seconds, least, most in ((8.0, 9, 14), (0.5, 150, 220)):
        now = [0.0]

        class Slow(loop.Learner):
            def update(self, *given: Any) -> Any:
                now[0] += seconds  # noqa: B023
                return super().update(*given)

        look = lambda: now[0]  # noqa: E731, B023
        with monkeypatch.context() as patch:
            patch.setattr(loop, "time", SimpleNamespace(monotonic=look, perf_counter=look))
            patch.setattr(loop, "Learner", Slow)
            patch.setattr(
                loop,
                "plan",
                lambda asked, data, network, *rest: (
                    loop.resolved(replace(asked, steps=40), data, loop.Run(Path(asked.out)), rest[0]),
                    network,
                ),
            )
            events: list[Event] = []
            out = tmp_path / f"run-{seconds}"
            train(
                settings(
                    letters, out, steps=None, minutes=100 / 60, decay="cosine", save_every=400, validate_every=400
                ),
                report=events.append,
            )
        ended = events[-1]
        assert isinstance(ended, Finished) and ended.why == "", "it ends by its plan"
        assert least <= ended.step <= most
        assert 100 - 2 * seconds <= now[0] <= 100
        assert [one for one in events if isinstance(one, Replanned)]
        rates = [line["learning_rate"] for line in metrics(out, "train")]
        assert rates[-1] < 0.1 * max(rates)
        falling = rates[rates.index(max(rates)) :]
        assert falling == sorted(falling, reverse=True)


def test_a_power_law_is_forecast_and_a_flat_curve_is_not() -> None:
    points = [(float(t), 6.0 * t**-0.1) for t in (30, 60, 120, 240)]
    assert forecast(points, 6.0 * 1000**-0.1) == pytest.approx(1000)
    assert forecast([(60, 4.0), (120, 4.0), (180, 4.1)], 3.0) == math.inf
    assert forecast(points[:1], 3.0) is None
    assert forecast([], 3.0) is None
    decayed = [(30, 2.0), (60, 1.5), (120, 1.125), (125, 1.126)]  # the last two, close to each other, do not fall
    assert 200 < forecast(decayed, 0.9) < 400
