"""The appendix on the efficiency gain of first-hitting sampling."""

from __future__ import annotations

import pytest

from unmask.theory import DIFFSOUND, PAPER_CASE, PAPER_CASE_2048, expected_nfe, sampling_time, speedup


def test_paper_case_at_10000_steps():
    assert round(PAPER_CASE.nfe) == 973
    assert PAPER_CASE.speedup == pytest.approx(17, abs=0.5)


def test_paper_case_at_2048_steps():
    assert PAPER_CASE_2048.speedup == pytest.approx(5, abs=0.1)


def test_diffsound():
    assert round(DIFFSOUND.nfe) == 93
    assert DIFFSOUND.speedup == pytest.approx(1.07, abs=0.005)


def test_speedup_is_the_ratio_of_the_two_times():
    N, L, V, t1, t2 = 300, 64, 100, 0.02, 1e-6
    nfe = expected_nfe(N, L)
    ancestral, first_hitting = sampling_time(nfe, N * L * V, t1, t2), sampling_time(nfe, L * V, t1, t2)
    assert ancestral == pytest.approx(nfe * t1 + N * L * V * t2)
    assert speedup(N, L, V, t1=t1, t2=t2) == pytest.approx(ancestral / first_hitting)
    assert speedup(N, L, V, t1=t1, t2=t2, nfe=50) == pytest.approx((1 + 1.92) / (1 + 0.0064))


def test_speedup_is_larger_for_smaller_models_and_for_more_steps_positions_or_classes():
    base = {"steps": 1000, "length": 128, "vocabulary": 1000, "t1": 0.01, "t2": 1e-8}
    reference = speedup(**base)
    for change in ({"t1": 0.005}, {"steps": 2000}, {"length": 256}, {"vocabulary": 2000}):
        assert speedup(**(base | change)) > reference


def test_speedup_at_its_limits():
    assert speedup(1, 64, 100, t1=1.0, t2=1.0) == 1
    assert speedup(500, 64, 100, t1=1.0, t2=0.0) == 1
    assert speedup(500, 64, 100, t1=0.0, t2=1.0) == 500


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"length": 0}, "length"),
        ({"vocabulary": 0}, "vocabulary"),
        ({"steps": 0}, "steps"),
        ({"t1": -1.0}, "t1"),
        ({"t1": 0.0, "t2": 0.0}, "t1"),
        ({"nfe": 0.0}, "nfe"),
    ],
)
def test_bad_arguments_are_named(change, name):
    with pytest.raises(ValueError, match=name):
        speedup(**({"steps": 10, "length": 4, "vocabulary": 4, "t1": 1.0, "t2": 1.0} | change))
