"""Processes forked from one that has imported torch and the commands already: each costs a fork instead of seconds.

What must be seen from its very start, as the setup of a command or the imports that a base installation can do, runs
in an ordinary process instead.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.cli import VERBS

PROCESSES = multiprocessing.get_context("forkserver")
"""The server also has what torch imports at the first step, and what the picture of a run needs."""
PROCESSES.set_forkserver_preload(
    [
        "accelerate",
        "torch._dynamo",
        "matplotlib.pyplot",
        "matplotlib.backends.backend_agg",
        "unmask.training.loop",
        *(f"unmask.cli.{verb}" for verb in VERBS),
        "tests.forked",
        "tests.training.runs",
        "tests.cli.test_ends",
    ]
)


@dataclass(frozen=True)
class Done:
    """A process that has ended."""

    returncode: int
    stdout: str
    stderr: str


def python(*arguments: str, cwd: Path, **environment: str) -> Done:
    """``python -c CODE``, ``python -m MODULE ...`` or ``python FILE ...``: one thread, no warnings, no network."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = PROCESSES.Process(target=_run, args=(arguments, cwd, environment, out, err))
        process.start()
        process.join()
        assert process.exitcode is not None
        return Done(process.exitcode, out.read_text(), err.read_text())


def _run(arguments: Sequence[str], cwd: Path, environment: dict[str, str], out: Path, err: Path) -> None:
    import huggingface_hub.constants
    import torch

    for descriptor, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    os.environ |= environment
    os.chdir(cwd)
    sys.path.insert(0, "")
    huggingface_hub.constants.HF_HUB_OFFLINE = True  # it was imported by the server
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    first, *rest = arguments
    sys.argv = [*arguments] if first not in ("-c", "-m") else rest
    if first == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(first, run_name="__main__")
