"""docs/paper_map.md is true: every function it names can be imported, every test it names exists."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

from unmask.reproduce.items import ITEMS

ROOT = Path(__file__).parents[1]
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


@pytest.mark.parametrize("name", names(2))
def test_the_function_exists(name):
    module, attribute = name.rsplit(".", 1)
    assert hasattr(importlib.import_module(module), attribute)


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
