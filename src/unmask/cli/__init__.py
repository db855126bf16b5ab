"""The command line: each command is a module with a ``main``, which reads its arguments and returns an exit code.

Nothing here imports torch, so that --help and --version are fast, and so that ``ready`` runs first.
"""

from __future__ import annotations

import ctypes
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import unmask
from unmask.cli.flags import wrong

FAILED, BAD_INPUT, INTERRUPTED, CLOSED = 1, 2, 130, 141
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8  # of malloc.h
VERBS = {
    "prepare": "turn text, CSV, JSON lines or a dataset into a token file",
    "train": "train a model on a corpus, a token file or a text file",
    "sample": "sample texts from a model, and watch them appear",
    "infill": "fill the blanks of a text",
    "new": "write a small project with a network of your own",
    "models": "list the models that can be loaded by name",
    "evaluate": "estimate the likelihood of data under a model, with errors",
    "steps": "show how many network calls a model needs, and the cost of fewer",
    "judge": "measure the perplexity of samples under a judge, and their entropy",
    "frontier": "compare models and samplers by perplexity, entropy and cost",
    "serve": "serve models: OpenAI's API, our own API, and a web page",
    "inspect": "describe a checkpoint without executing its code",
    "convert": "convert a checkpoint to the format of unmask or MDLM",
    "audit": "test whether a categorical sampler has the right distribution",
}
MOVED = {"reproduce": "in a checkout, python -m reproduction does that"}


def usage() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in VERBS.items())
    return f"""unmask {unmask.__version__}: train, sample and evaluate masked (diffusion) models of discrete data

usage: unmask COMMAND [options]

{verbs}

unmask COMMAND --help describes a command; unmask --completion bash (or zsh, fish) prints a completion script.
In Python: import unmask; help(unmask.sample).
exit codes: 0 success, 1 negative result or machine failure, 2 bad input, 130 Ctrl-C, 143 SIGTERM, 141 output closed"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code.

    0: done. 1: done with a negative answer (audit: faulty; inspect: cannot be sampled), or a
    machine failure (memory, disk). 2: bad input; one line on stderr says what to change. 130, 143: ended by Ctrl-C or
    SIGTERM. 141: the output was closed.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(unmask.__version__)
        return 0
    name, *rest = arguments
    if name == "--completion":
        return completion(rest)
    if name not in VERBS:
        close = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the commands are {', '.join(VERBS)}"
        hint = MOVED.get(name, hint)
        print(f"unmask: there is no command {name!r}; {hint}", file=sys.stderr)
        return BAD_INPUT
    if says := wrong(name, rest):
        print(f"unmask {name}: {says}", file=sys.stderr)
        raise SystemExit(BAD_INPUT)  # as the parser does
    ready()
    try:
        code: int = importlib.import_module(f"unmask.cli.{name}").main(rest)
        return code
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("unmask"):
            raise
        print(f"unmask {name}: {error}; pip install unmask installs it", file=sys.stderr)
    except BrokenPipeError:  # while the help was printed: a command's own output is guarded
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
    return BAD_INPUT


def completion(shells: Sequence[str]) -> int:
    """Print a shell's completion script, to be stored in a file once."""
    from unmask.cli.options import guarded

    def run() -> None:
        from unmask.cli.completion import SHELLS, script

        if len(shells) != 1:
            raise ValueError(f"name one shell: {', '.join(SHELLS)}")
        sys.stdout.write(script(shells[0]))

    return guarded("--completion", run)


def ready() -> None:
    """Setup that every command does before torch is imported."""
    # Threads that spin while waiting are slow beside another process (docs/speed.md). torch reads this at startup.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next network call; True if it will.

    By default it returns large blocks to the system at once. Each network call allocates the same sizes again, and the
    system clears every page anew: about a seventh of the time of a training step. With one arena, what one thread frees
    is there for the others. Not changed if the user has set MALLOC_ variables, or with another allocator.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    wanted = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 64 * 2**20), (M_ARENA_MAX, 1))
    return all(mallopt(option, value) for option, value in wanted)
