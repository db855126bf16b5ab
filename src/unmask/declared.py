"""The help texts of options: the string below each field of a dataclass, for Python and the command line."""

from __future__ import annotations

import functools
import inspect
import re
import sys

CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
# A field, perhaps of several lines, and the string below it. A parser would take as long as the other imports together.
FIELD = re.compile(r'^    (\w+): [^\n]*\n(?:(?:     |    [)\]}])[^\n]*\n)*    """(.*?)"""', re.MULTILINE | re.DOTALL)


def help_texts(options: type) -> dict[str, str]:
    """The string below each field of a dataclass, in the class or in one that it extends, in one line."""
    texts: dict[str, str] = {}
    for one in reversed(options.__mro__[:-1]):
        texts |= _texts_in(one.__module__).get(one.__qualname__, {})
    return texts


@functools.cache
def _texts_in(module: str) -> dict[str, dict[str, str]]:
    """Those of every class of a module."""
    _, *parts = CLASS.split(inspect.getsource(sys.modules[module]))
    return {
        name: {field: " ".join(text.split()) for field, text in FIELD.findall(body.partition("\n\n\n")[0])}
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }
