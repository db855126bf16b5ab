"""The quick form of the benchmark of sampling: operations and shapes are counted, no clock is read."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from benchmarks.sampling import SIZES, Size
from benchmarks.sampling_more import counts

from benchmarks import sampling, sampling_more, sampling_report

SIZE = SIZES["smallest"]
L, V = SIZE.length, SIZE.vocab


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, int]]:
    return counts(SIZE)


def test_first_hitting_calls_once_per_token_and_computes_one_row_of_the_head_for_each(counted: Any) -> None:
    alone, batch = counted["first-hitting"], counted["first-hitting, batch of 3"]
    assert (alone["calls"], alone["head_rows"]) == (L, L)
    assert (batch["calls"], batch["head_rows"]) == (L, 3 * L)  # the calls of a batch are those of its longest row


@pytest.mark.parametrize("steps", [4, 50, 10_000])
def test_ancestral_never_calls_for_nothing_and_its_head_sees_every_position_once(counted: Any, steps: int) -> None:
    found = counted[f"ancestral {steps}"]
    assert found["calls"] <= min(steps, L) and found["head_rows"] == L


def test_rows_of_a_batch_that_ask_for_fewer_are_not_padded_at_the_head(counted: Any) -> None:
    found = counted["ancestral 10, batch of 3"]
    assert found["calls"] <= 10 and found["head_rows"] == found["tokens"] == 3 * L


def test_no_tensor_of_ours_has_a_column_for_every_id_at_every_position(counted: Any) -> None:
    for name, found in counted.items():
        everywhere = found["tokens"] * V
        if name.startswith(("first-hitting", "ancestral")):
            assert found["largest"] < everywhere / 2, name
        else:  # and the count would tell: the full head and the published sampler have one
            assert found["largest"] >= everywhere, name
            assert found["head_rows"] == found["calls"] * L


def test_the_published_sampler_needs_its_full_head_in_every_call(counted: Any) -> None:
    assert counted["coupled 50"]["head_rows"] > 5 * counted["ancestral 50"]["head_rows"]


def test_flops_are_counted_by_hand() -> None:
    size = Size(layers=2, width=4, heads=2, length=3, vocab=5)
    block = 3 * (2 * 12 * 16 + 4 * 3 * 4)  # three positions: products with weights, scores and mixing
    assert size.flops(everywhere=True) == 2 * block + 3 * 2 * 4 * 5
    first = block - 3 * 2 * 3 * 16  # queries, keys and values are there already
    last = 3 * 4 * 16 + 2 * 10 * 16 + 4 * 3 * 4  # keys and values of all; of one row the rest
    assert size.flops() == first + last + 2 * 4 * 5


def test_sequences_are_multiplied_up_from_steps() -> None:
    seconds = {
        "ours, one row a call": 2.0,
        "ours, 16 rows a call": 2.0,
        "coupled float32, call": 3.0,
        "coupled float32, cached": 0.5,
    }
    size = Size(2, 4, 2, length=1, vocab=5)  # one token: one call, whatever N is
    assert sampling.whole_sequence(size, seconds, 10, "ours") == pytest.approx(2.0)
    assert sampling.whole_sequence(size, seconds, 10, "float32") == pytest.approx(3.0 + 9 * 0.5)
    calls = 10 * (1 - 0.9**2)  # steps in which one of two sequences changes: both need the call
    assert sampling.whole_sequence(size, seconds, 10, "ours", batch=2) == pytest.approx(2.0)
    assert sampling.whole_sequence(size, seconds, 10, "float32", batch=2) == pytest.approx(3 * calls + (10 - calls) / 2)


@pytest.mark.slow
def test_whole_runs_finish_alone() -> None:
    made = sampling_more.whole(SIZE)
    assert set(made) == {"ours", *sampling.WAYS, "ours, B = 4", "float32, B = 4"} and min(made.values()) > 0
    assert "B = 4" in sampling_report.tables({"whole": {"tiny": made}})


def test_exponents_are_those_of_powers() -> None:
    assert sampling.exponent({n: 3.0 * n**1.5 for n in (2, 8, 100)}) == pytest.approx(1.5)


def test_a_measured_run_becomes_tables(tmp_path: Any) -> None:
    size = replace(SIZE, rounds=1)
    made: dict[str, Any] = {"steps": {"tiny": sampling.steps(size)}, "parts": {"tiny": sampling.parts(size)}}
    made["sizes"] = {"tiny": asdict(size)}
    made["alone"] = {"tiny": sampling_more.alone(replace(size, inner=2))}
    made |= {"tricks": {"tiny": sampling_more.tricks(size)}, "batches": {"tiny": sampling_more.batches(size)}}
    made = json.loads(json.dumps(made))
    shares = made["parts"]["tiny"]
    assert sum(shares[name] for name in ("body", "head", "draw", "rest")) == pytest.approx(1)
    text = sampling_report.tables(made)
    assert "N = 50,000, float64" in text and "of the float32 matmul rate" in text
    assert "### alone" in text and "GELU by tanh" in text and "B = 16" in text
    sampling_report.picture(made, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
