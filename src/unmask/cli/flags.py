"""Options that do not exist, and values that are no numbers, before a verb is imported: torch alone takes a second.

The names and types are read from the source of the verb's dataclass. Whatever this does not see, the parser checks.
"""

from __future__ import annotations

import ast
import difflib
import functools
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path

NUMBERS = {"int": (int, "a whole number"), "float": (float, "a number")}


def wrong(verb: str, arguments: Sequence[str]) -> str | None:
    """What is wrong with the options of a command line, in a sentence, or None."""
    if {"-h", "--help"} & set(arguments):
        return None
    known = options(verb)
    for word, following in zip_longest(arguments, arguments[1:]):
        if word == "--":
            return None
        flag, given, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--"):
            continue
        if name not in known and name.removeprefix("no_") not in known:
            close = difflib.get_close_matches(flag, [f"--{one.replace('_', '-')}" for one in known], n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            return f"there is no option {flag}; {hint}unmask {verb} --help lists them"
        text = value if given else following
        kind, says = NUMBERS.get(known.get(name, "").removesuffix(" | None"), (str, ""))
        try:
            kind("0" if text in (None, "", "None") else text)
        except ValueError:
            return f"{flag} takes {says}, got {text!r}"
    return None


def options(verb: str) -> dict[str, str]:
    """The name and the annotation of each option of a verb."""
    module = f"unmask.cli.{verb}"
    calls = [node for node in ast.walk(_tree(module)) if isinstance(node, ast.Call)]
    command = next(call for call in calls if ast.unparse(call.func) == "Command")
    return _fields(module, ast.unparse(command.args[1]))


def _fields(module: str, name: str) -> dict[str, str]:
    """The annotated names of a class, of those that it extends, and of those that it nests."""
    tree = _tree(module)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if name not in classes:
        place = _imported(tree, name)
        return {} if place is None else _fields(*place)
    found: dict[str, str] = {}
    for base in classes[name].bases:
        found |= _fields(module, ast.unparse(base))
    for entry in classes[name].body:
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name):
            nested = "default_factory" in ast.unparse(entry) and _fields(module, ast.unparse(entry.annotation))
            found |= nested or {entry.target.id: ast.unparse(entry.annotation)}
    return found


def _imported(tree: ast.Module, name: str) -> tuple[str, str] | None:
    """The module of this package and the name there of what is imported as ``name`` or ``module.name``."""
    first, dot, rest = name.partition(".")
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("unmask"):
            continue
        for alias in node.names:
            if (alias.asname or alias.name) == first:
                return (f"{node.module}.{alias.name}", rest) if dot else (str(node.module), alias.name)
    return None


@functools.cache
def _tree(module: str) -> ast.Module:
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
