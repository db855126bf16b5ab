"""``unmask convert``: a checkpoint in another layout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from unmask.checkpoints.contents import look
from unmask.checkpoints.convert import to_mdlm, to_own
from unmask.cli.command import Command
from unmask.cli.options import CHECKPOINT_HELP, guarded
from unmask.loading import locate


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Convert a checkpoint of MDLM, SEDD or RADD to a folder of this project, or a folder of this project to MDLM's hub
    layout. A round trip restores the weights exactly."""

    path: str
    out: str
    to: Literal["unmask", "mdlm"] = "unmask"
    """The layout to write."""
    time: Literal["as-trained", "yes", "no"] = "as-trained"
    """Whether the time is fed to the network. In the paper, yes improved an MDLM that was trained without it."""
    raw: bool = False
    """Use the last weights instead of their average (EMA), if the file has both."""
    half: bool = False
    """Store the weights in float16; only for the layout unmask."""


COMMAND = Command(
    "convert",
    ConvertOptions,
    {"path": CHECKPOINT_HELP, "out": "The folder to write, which must not exist"},
    ("unmask convert mdlm.ckpt models/mdlm", "unmask convert kjv kjv-hub --to mdlm"),
)


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask convert``."""
    chosen = COMMAND.parsed(arguments)
    return guarded("convert", lambda: _convert(chosen))


def _convert(chosen: ConvertOptions) -> None:
    contents = look(locate(chosen.path))
    override: dict[str, Any] = {} if chosen.time == "as-trained" else {"time": chosen.time == "yes"}
    if chosen.raw:
        override["ema"] = False
    if chosen.to == "unmask":
        done = to_own(contents, chosen.out, half=chosen.half, **override)
    elif chosen.half:
        raise ValueError("--half is for the layout unmask: MDLM's keeps the dtype of the weights")
    else:
        done = to_mdlm(contents, chosen.out, **override)
    print(f"{done['from']} -> {done['format']}: {chosen.out}", file=sys.stderr)
    if done["note"]:
        print(f"note: no tokenizer was written: {done['note']}", file=sys.stderr)
