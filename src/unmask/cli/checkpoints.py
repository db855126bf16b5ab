"""``unmask inspect`` and ``unmask convert``: other people's checkpoints on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from unmask.cli.options import parsed
from unmask.text.adapters import look
from unmask.text.adapters.convert import to_mdlm, to_own
from unmask.text.adapters.report import inspect as report_of
from unmask.text.adapters.report import lines
from unmask.text.find import locate

PATH_HELP = "A folder or a file (.safetensors, .ckpt, .bin, .pt, .pth), a name that unmask models lists, or ORG/NAME"


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """Say what a checkpoint is, without reading its weights: its format, sizes and dtypes, its mask and tokenizer, what
    is missing or does not belong, and whether it can be sampled. What its pickles name is listed and never run.

    Exit code 0 if it can be sampled, and 1 if not.
    """

    path: str
    json: bool = False
    """One JSON object."""


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Write a checkpoint of MDLM, SEDD or RADD as a folder of this project, which unmask.load, sample and infill
    know; or a folder of this project in MDLM's hub layout. What once was in that layout comes back bit for bit."""

    path: str
    out: str
    to: Literal["unmask", "mdlm"] = "unmask"
    """The layout to write."""
    time: Literal["as-trained", "yes", "no"] = "as-trained"
    """Whether the network is fed the time; the paper found yes to help an MDLM that was trained without."""
    raw: bool = False
    """Take the weights as they were last, and not their average (EMA) where the file has it."""
    half: bool = False
    """Store float16, half the size; for the layout unmask."""


def inspect(arguments: Sequence[str]) -> int:
    """Run ``unmask inspect``."""
    chosen = parsed(InspectOptions, arguments, "inspect", path=PATH_HELP)
    report = report_of(locate(chosen.path))
    print(json.dumps(report) if chosen.json else "\n".join(lines(report)))
    return 0 if report["can_be_sampled"] else 1


def convert(arguments: Sequence[str]) -> int:
    """Run ``unmask convert``."""
    chosen = parsed(
        ConvertOptions, arguments, "convert", path=PATH_HELP, out="The folder to write, which must not exist"
    )
    found = look(locate(chosen.path))
    override: dict[str, Any] = {} if chosen.time == "as-trained" else {"time": chosen.time == "yes"}
    if chosen.raw:
        override["ema"] = False
    if chosen.to == "unmask":
        done = to_own(found, chosen.out, half=chosen.half, **override)
    elif chosen.half:
        raise ValueError("--half is for the layout unmask: MDLM's keeps the dtype of the weights")
    else:
        done = to_mdlm(found, chosen.out, **override)
    print(f"{done['from']} -> {done['format']}: {chosen.out}", file=sys.stderr)
    if done["note"]:
        print(f"note: no tokenizer was written: {done['note']}", file=sys.stderr)
    return 0
