"""Tables with fixed seeds are what their commands print: some rows of each are computed again, at their full size."""

from pathlib import Path

import pytest
from benchmarks import bias, orders

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("row", [lambda: bias.variation(0.1, 4), lambda: bias.judged(4)], ids=["variation", "judged"])
def test_the_bias_of_parallel_decoding(row):
    assert f"{row()}\n" in (DOCS / "bias.md").read_text()


@pytest.mark.parametrize("name", ["parallel (Alg. 2)", "margin()", "remdm_cap(0.1)"])
def test_decoding_orders(name):
    _, options = next(run for run in orders.runs() if run[0] == name)
    assert f"{orders.row(name, options)}\n" in (DOCS / "orders.md").read_text()
