"""Optional dependencies, imported when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any


def needed(module: str, why: str, extra: str) -> Any:
    """A module of an extra; without it, the error says why it is needed and what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f"{why}: pip install 'unmask[{extra}]'"
        raise ModuleNotFoundError(hint, name=module.partition(".")[0]) from error
