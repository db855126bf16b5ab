"""The help texts of options: the string below each field of a dataclass, for Python and the command line."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap


def help_texts(options: type) -> dict[str, str]:
    """The string below each field of a dataclass, in the class or in one that it extends, in one line."""
    texts: dict[str, str] = {}
    for one in reversed(options.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in itertools.pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return texts
