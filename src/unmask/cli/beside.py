"""``unmask evaluate --weights int8 --beside float32``: what storing weights in fewer bits costs."""

from __future__ import annotations

import math
from typing import Any

from unmask.errors import OptionError
from unmask.evaluate.likelihood.evaluation import Evaluation, paired


def check_beside(chosen: Any) -> None:
    """Refuse what cannot be compared, before minutes of work are spent."""
    if chosen.beside is None:
        return
    if chosen.beside == chosen.weights:
        raise OptionError("beside", f"--beside {chosen.beside} is what --weights already says: give another storage")
    for name in ("until", "zero_shot"):
        if getattr(chosen, name):
            option = name.replace("_", "-")
            raise OptionError("beside", f"--beside compares the same masks: leave --{option} out")


def difference(chosen: Any, made: Evaluation, other: Evaluation) -> dict[str, Any]:
    """The comparison as a record."""
    value, error = paired(made, other)
    return {
        "weights": chosen.weights,
        "than": chosen.beside,
        "bits_per_token_of_the_other": other.bound.bits_per_token,
        "difference_in_bits_per_token": value,
        "error_of_difference": error if math.isfinite(error) else None,
    }


def sentence_of(record: dict[str, Any]) -> str:
    """The comparison in words."""
    error, value = record["error_of_difference"], record["difference_in_bits_per_token"]
    return (
        f"weights as {record['weights']}: {value:+.2g} ± {'unknown' if error is None else f'{error:.1g}'} bits per "
        f"token compared with {record['than']} ({record['bits_per_token_of_the_other']:.6g}), on the same sequences "
        "and masks"
    )
