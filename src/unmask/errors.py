"""The error of a user's option: which one, and a sentence that says what to do."""

from __future__ import annotations

import math
from typing import Any


class OptionError(ValueError):
    """An option that cannot be used as given. ``option`` is its name; front ends report it with the message."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(option, message)
        self.option = option

    def __str__(self) -> str:
        return str(self.args[1])


def check_number(
    option: str,
    value: Any,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    whole: bool = False,
) -> None:
    """Refuse a value that is not a finite number within these bounds."""
    lower = f"at least {ge:g}" if ge is not None else f"greater than {gt:g}" if gt is not None else ""
    bounds = " and ".join(part for part in (lower, "" if le is None else f"at most {le:g}") if part)
    kind = isinstance(value, int) if whole else isinstance(value, int | float)
    inside = (
        kind
        and not isinstance(value, bool)
        and math.isfinite(value)
        and (ge is None or value >= ge)
        and (gt is None or value > gt)
        and (le is None or value <= le)
    )
    if not inside:
        what = f"{'a whole number' if whole else 'a number'}{' of ' * bool(bounds)}{bounds}"
        raise OptionError(option, f"{option} must be {what}, got {value!r}")
