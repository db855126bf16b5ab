"""``unmask new``: a small project with its own network, to start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from unmask.cli.command import Command
from unmask.cli.options import guarded
from unmask.files import new_folder

TEMPLATES = ("README.md", "network.py", "train.py", "sample.py", "test_project.py")


@dataclass(frozen=True, kw_only=True)
class NewOptions:
    """Write a small project: a network, its training and sampling, and a test that passes offline in seconds."""

    name: str


COMMAND = Command(
    "new", NewOptions, {"name": "The folder to make."}, ("unmask new mine", "unmask new experiments/first")
)


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask new``."""
    chosen = COMMAND.parsed(arguments)
    return guarded("new", lambda: _new(Path(chosen.name)))


def _new(folder: Path) -> None:
    try:
        with new_folder(folder) as partial:
            for name in TEMPLATES:
                template = files("unmask.cli").joinpath("project", f"{name}.txt").read_text(encoding="utf-8")
                (partial / name).write_text(template.replace("NAME", folder.name), encoding="utf-8")
    except FileExistsError:
        raise ValueError(f"{folder} exists already and is not empty: choose another name") from None
    print(f"wrote {', '.join(TEMPLATES)} into {folder}")
    print(f"next:  cd {folder}\n       pytest\n       python train.py kjv --minutes 10\n       python sample.py")
