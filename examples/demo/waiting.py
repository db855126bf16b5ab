"""A spinner for waiting times. It imports nothing slow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner on a terminal, a plain line elsewhere."""
    from rich.console import Console

    if not sys.stdout.isatty():
        print(f"{what} ...", flush=True)
        yield
        return
    with Console(highlight=False).status(what):
        yield
