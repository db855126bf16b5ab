"""docs/paper_map.md is true: every name in it exists, and every test of a row needs the functions of the row."""

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.replaced import named

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("| \n").split(" | ")]
    for line in (ROOT / "docs/paper_map.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| item")
]


def names(row, column):
    return re.findall(r"`([^`]+)`", row[column])


def all_names(column):
    return sorted({name for row in ROWS for name in names(row, column)})


@cache
def defined(path):
    """The tests of a file, as pytest would name them."""
    tests = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            tests.add(node.name)
        if isinstance(node, ast.ClassDef):
            tests |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return tests


def failing(functions, tests):
    """The tests that fail when these functions raise, in a process of its own, with those that raised."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # importing them takes seconds
    command = [sys.executable, "-m", "tests.replaced", *functions, "--", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_row_has_five_columns_a_function_and_a_test():
    assert len(ROWS) > 30
    for row in ROWS:
        assert len(row) == 5, row
        assert "`unmask." in row[2] or "`reproduction." in row[2], row
        assert "`tests/" in row[3], row


@pytest.mark.parametrize("name", all_names(2))
def test_the_function_exists(name):
    assert named(name) is not None


@pytest.mark.parametrize("name", all_names(3))
def test_the_test_exists(name):
    path, _, test = name.partition("::")
    assert test in defined(path)


def test_a_test_fails_without_the_function_that_it_needs_and_only_then():
    names = "test_stratified_counts_cover_each_n_equally", "test_vdm_is_an_evenly_spaced_comb"
    needs, does_not = (f"tests/test_timing.py::{name}" for name in names)
    assert failing(["unmask.timing.stratified"], [needs, does_not]) == {needs: ["unmask.timing.stratified"]}


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]}: {row[1]}" for row in ROWS])
def test_every_test_of_a_row_needs_its_functions_and_every_function_has_a_test(row):
    functions, tests = names(row, 2), names(row, 3)
    failed = failing(functions, tests)
    assert set(failed) == set(tests)
    for one in set(functions).difference(*failed.values()):  # another one raised before it
        assert failing([one], ["-x", *tests]), f"no test of the row needs {one}"


@pytest.mark.parametrize(
    "item",
    [f"Algorithm {n}" for n in (1, 2, 3, 4)]
    + [f"Proposition {n}" for n in ("3.1", "3.2", "4.1", "5.2")]
    + [f"Equation {n}" for n in (1, 2, 3, 4, 7, 8, 9, 10)]
    + ["Equations 5, 6", "Table 1", "Table 2"],
)
def test_the_item_is_there(item):
    assert item in {row[0] for row in ROWS}


@pytest.mark.parametrize("path", [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
