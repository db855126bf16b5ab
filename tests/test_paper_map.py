"""docs/paper_map.md is true: every function it names is called by a test it names, and by the item of its row."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from reproduction.items import ITEMS

ROOT = Path(__file__).parents[1]
ITEM_TESTS = "tests/reproduction/test_items.py"
ROWS = [
    [cell.strip() for cell in line.strip("| \n").split(" | ")]
    for line in (ROOT / "docs/paper_map.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| item")
]


def names(column):
    return sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[column])})


@cache
def defined(path):
    """The tests of a file, as pytest would name them."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


def test_every_row_has_five_columns_a_function_and_a_test():
    assert len(ROWS) > 30
    for row in ROWS:
        assert len(row) == 5, row
        assert "`unmask." in row[2], row
        assert "`tests/" in row[3], row


def found(name):
    """The object that a dotted name refers to."""
    module, attribute = name.rsplit(".", 1)
    return getattr(importlib.import_module(module), attribute)


def functions(thing):
    """A function by its full name, or what it has made; a class by its methods; an object by the functions it holds."""
    if isinstance(thing, type):
        return [f"{base.__module__}.{base.__qualname__}." for base in thing.__mro__ if base is not object]
    if hasattr(thing, "__qualname__"):
        name = f"{thing.__module__}.{thing.__qualname__}"
        return [name, f"{name}.<locals>."]
    held = [value for value in vars(thing).values() if hasattr(value, "__qualname__")]
    return [name for value in held or [type(thing)] for name in functions(value)]


def wishes():
    """Every function is called by a test of its row, and one of them by the row's item, which tests of items run."""
    for row in ROWS:
        mapped, tests, items = (re.findall(r"`([^`]+)`", row[column]) for column in (2, 3, 4))
        tests = [one for name in tests for one in (items if name.startswith(ITEM_TESTS) else [name])]
        for name in mapped:
            label = f"{row[0]}: no test of its row calls {name}"
            yield {"label": label, "functions": functions(found(name)), "sources": tests}
        if items:
            every = [one for name in mapped for one in functions(found(name))]
            label = f"{row[0]}: {items[0]} calls none of its functions"
            yield {"label": label, "functions": every, "sources": items}


@pytest.mark.parametrize("name", names(2))
def test_the_function_exists(name):
    assert found(name) is not None


def test_every_function_is_called_by_a_test_of_its_row_and_by_its_item(tmp_path):
    file = tmp_path / "wishes.json"
    file.write_text(json.dumps(list(wishes())))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run([sys.executable, "-m", "tests.called", file], cwd=ROOT, env=environment, capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()
    assert [wish["label"] for wish in json.loads(file.read_text())] == []


@pytest.mark.parametrize("name", names(3))
def test_the_test_exists(name):
    path, _, test = name.partition("::")
    assert test in defined(path)


def test_the_last_column_is_what_reproduce_takes():
    assert set(names(4)) == set(ITEMS)


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
