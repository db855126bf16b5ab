"""What a network is stands in one place: no file outside the processes and the networks asks which kind it has."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import unmask
from unmask import processes

ROOT = Path(unmask.__file__).parent
KNOW = ("processes", "networks", "models")  # the rooms that may name a kind
KINDS = {name for name in processes.__all__ if name not in ("Process", "process_of", "trained")}
WORDS = {getattr(processes, name).name for name in KINDS}
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] not in KNOW]


def probes(source: str) -> list[str]:
    """The lines that name a kind: an import of its class, or a comparison with its word."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unmask.processes"):
            names = {alias.name for alias in node.names} & KINDS
            found += [f"{node.lineno}: imports {', '.join(sorted(names))}"] if names else []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            asked = any(isinstance(side, ast.Attribute) and side.attr in ("name", "kind", "process") for side in sides)
            words = {leaf.value for side in sides for leaf in ast.walk(side) if isinstance(leaf, ast.Constant)} & WORDS
            found += [f"{node.lineno}: compares with {words}"] if asked and words else []
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_asks_which_kind_a_network_is(path: Path) -> None:
    assert probes(path.read_text(encoding="utf-8")) == []


def test_the_search_finds_what_it_is_for() -> None:
    assert probes("from unmask.processes import LeftToRight") and probes(
        "from unmask.processes.blocks import BlockByBlock"
    )
    assert probes("if served.kind == 'block':\n    pass") and probes("x = process.name in ('masked', 'any-order')")
    assert not probes("from unmask.processes import Process, process_of") and not probes("x = tokenizer.kind == 'bpe'")
