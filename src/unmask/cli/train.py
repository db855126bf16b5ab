"""``unmask train``: the command line, the display, and the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from typing import Any

from unmask.cli import FAILED, INTERRUPTED
from unmask.cli.command import Command
from unmask.cli.options import short_warnings, told
from unmask.cli.train_display import display
from unmask.training.config import TrainConfig, read_toml
from unmask.training.events import Event
from unmask.training.learner import NotFinite
from unmask.training.loop import train
from unmask.training.run import stored_config
from unmask.training.signals import Interrupted

COMMAND = Command(
    "train",
    TrainConfig,
    {"data": "A corpus (kjv, text8, moses, digits, ...), prepared data, or text, which is prepared automatically."},
    ("unmask train book.txt --out runs/book", "unmask train kjv --out runs/kjv --preset mini --steps 2000"),
    note="--config FILE.toml reads settings from a file; flags overrule it.",
    pairs=True,
)


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask train``. 0; 143 or 130 after a signal; 2 with a one-line error."""
    try:
        config = parse(arguments)
        main_process = int(os.environ.get("RANK", 0)) == 0
        with short_warnings(), ExitStack() as stack:
            report, progress = stack.enter_context(display()) if main_process else (_silent, None)
            train(config, report=report, progress=progress)
        return 0
    except Interrupted as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except NotFinite as error:
        print(f"unmask train: {error}", file=sys.stderr)
        return FAILED
    except (ValueError, ImportError, OSError) as error:
        return told("train", error)


def parse(arguments: Sequence[str]) -> TrainConfig:
    """Precedence: flags, --config FILE, the stored configuration of a resumed run, the defaults."""
    rest, file = _taken(list(arguments), "--config")
    settings: dict[str, Any] = read_toml(file) if file else {}
    _, out = _taken(list(arguments), "--out")
    if any(argument.startswith("--resume") for argument in rest):
        stored = stored_config(out or settings.get("out", TrainConfig.out))
        if stored is not None:
            settings = {field.name: getattr(stored, field.name) for field in fields(stored)} | settings
    parsed = COMMAND.parsed(rest, settings)
    return TrainConfig(**{field.name: getattr(parsed, field.name) for field in fields(TrainConfig)})


def _taken(arguments: list[str], flag: str) -> tuple[list[str], str | None]:
    """The arguments without ``flag VALUE`` or ``flag=VALUE``, and the value."""
    for i, argument in enumerate(arguments):
        if argument == flag and i + 1 < len(arguments):
            return arguments[:i] + arguments[i + 2 :], arguments[i + 1]
        if argument.startswith(f"{flag}="):
            return arguments[:i] + arguments[i + 1 :], argument.removeprefix(f"{flag}=")
    if flag in arguments:
        raise ValueError(f"{flag} needs a value")
    return arguments, None


def _silent(event: Event) -> None:
    """The report of every process but the first."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
