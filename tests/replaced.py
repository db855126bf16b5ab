"""Which tests fail when functions are replaced by one that raises.

``python -m tests.replaced FUNCTION ... -- TEST ...`` prints the failing tests as JSON, in its last line, each with the
functions that raised. A function's code is exchanged, so it raises wherever it was imported to or stored.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest

RAISED = "replaced: "


def named(name: str) -> Any:
    """The object of a dotted name."""
    module, attribute = name.rsplit(".", 1)
    return getattr(importlib.import_module(module), attribute)


def functions(thing: Any) -> Iterator[FunctionType]:
    """A function itself; the methods of a class; the functions that an object holds, or the methods of its class."""
    if isinstance(thing, staticmethod | classmethod):
        thing = thing.__func__
    if isinstance(thing, property):
        thing = thing.fget
    thing = inspect.unwrap(thing) if callable(thing) else thing
    if isinstance(thing, FunctionType):
        yield thing
    elif isinstance(thing, type):
        methods = [
            one
            for base in thing.__mro__
            if base.__module__.startswith(("unmask", "reproduction"))
            for one in vars(base).values()
        ]
        for one in methods:
            if isinstance(one, FunctionType | staticmethod | classmethod | property):
                yield from functions(one)
    else:
        held = [one for one in vars(thing).values() if callable(one)] if hasattr(thing, "__dict__") else []
        for one in held or [type(thing)]:
            yield from functions(one)


def replace(function: FunctionType, name: str) -> None:
    """Exchange its code. Python wants as many free variables as the function has."""
    free = function.__code__.co_freevars
    source = f"""
def outer({", ".join(free)}):
    def replaced(*arguments, **options):
        raise RuntimeError("{RAISED}{name}"); ({"".join(f"{one}, " for one in free)})
    return replaced
"""
    scope: dict[str, Any] = {}
    exec(source, scope)
    function.__code__ = scope["outer"](*free).__code__


class Replacing:
    """A plugin of pytest, which collects the failing tests and the functions that raised in them."""

    def __init__(self, names: list[str]) -> None:
        self.names, self.failed = names, dict[str, list[str]]()

    def pytest_collection_finish(self) -> None:
        for name in self.names:
            for function in functions(named(name)):
                replace(function, name)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            raised = re.findall(rf"RuntimeError: {RAISED}([\w.]+)", report.longreprtext)
            self.failed.setdefault(report.nodeid.split("[")[0], []).extend(raised)


def main(arguments: list[str]) -> int:
    at = arguments.index("--")
    plugin = Replacing(arguments[:at])
    options = ["-q", "-m", "", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:xdist"]
    code = pytest.main([*options, *arguments[at + 1 :]], plugins=[plugin])
    print(json.dumps(plugin.failed))
    return 0 if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
