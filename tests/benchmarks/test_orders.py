"""Stored results with fixed seeds are what their commands give: some rows of each are computed again, at full size."""

import json
from pathlib import Path

import pytest

from benchmarks import bias, orders

RESULTS = Path(__file__).parents[2] / "docs/results"


def stored(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def test_the_distance_of_parallel_decoding():
    [row] = [row for row in stored("bias")["variation"] if (row["switch"], row["steps"]) == (0.1, 4)]
    assert bias.variation(0.1, 4) == pytest.approx(row)


def test_the_nats_of_parallel_decoding():
    [row] = [row for row in stored("bias")["judged"] if row["steps"] == 4]
    again = bias.judged(4)
    assert list(again) == list(row)
    assert [again[name] for name in bias.PREDICTORS] == [pytest.approx(row[name]) for name in bias.PREDICTORS]


@pytest.mark.parametrize("name", ["parallel (Alg. 2)", "margin()", "remdm_cap(0.1)"])
def test_decoding_orders(name):
    _, options = next(run for run in orders.runs() if run[0] == name)
    row = next(row for row in stored("orders")["rows"] if row["order"] == name)
    again = orders.row(name, options)
    assert again.pop("nats") == pytest.approx(row.pop("nats"))
    assert again == pytest.approx(row)
