"""``unmask inspect``: describe any checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from unmask.checkpoints.report import inspect, lines
from unmask.cli.command import Command
from unmask.cli.options import CHECKPOINT_HELP, guarded
from unmask.loading import locate


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """Describe a checkpoint without reading its weights: its format, sizes and dtypes, its mask and tokenizer, missing
    and unexpected tensors, and whether it can be sampled. Globals named in its pickles are listed and never executed.

    The exit code is 0 if it can be sampled, and 1 if not.
    """

    path: str
    json: bool = False
    """Print one JSON object."""


COMMAND = Command(
    "inspect", InspectOptions, {"path": CHECKPOINT_HELP}, ("unmask inspect kjv", "unmask inspect mdlm.ckpt --json")
)


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask inspect``."""
    chosen = COMMAND.parsed(arguments)

    def run() -> int:
        report = inspect(locate(chosen.path))
        print(json.dumps(report) if chosen.json else "\n".join(lines(report)))
        return 0 if report["can_be_sampled"] else 1

    return guarded("inspect", run)
