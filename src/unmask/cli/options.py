"""Common to the commands: reading options, exit codes, and the machine to run on."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unmask.checkpoints.storage import Weights
from unmask.cli import BAD_INPUT, CLOSED, FAILED, INTERRUPTED
from unmask.cli.command import program
from unmask.extras import needed
from unmask.loading import load
from unmask.model import Model

MODEL_HELP = "A name that unmask models lists, a run's folder, or ORG/NAME on the Hugging Face hub"
DATA_HELP = "A corpus (kjv, enwik8, text8, moses, sotu, digits), prepared data, a .tokens file, or a text"
# The system's errors about a file named on the command line.
OF_INPUT = {
    errno.ENOENT: "there is no such file or folder",
    errno.EISDIR: "it is a folder, but a file is needed",
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EEXIST: "it exists already",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "it is a circular link",
}
CHECKPOINT_HELP = "A folder or a file (.safetensors, .ckpt, .bin, .pt, .pth), a name of unmask models, or ORG/NAME"


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """Where the network runs."""

    device: str = "auto"
    """cpu, cuda, cuda:1, xpu, mps, ...; auto takes an accelerator that supports float64, if there is one."""


@dataclass(frozen=True, kw_only=True)
class OnMachine(OnDevice):
    """Where the network runs, and with how many threads."""

    threads: int | None = None
    """CPU threads. The default is the number of cores; use 1 if all cores are busy (docs/speed.md)."""


@dataclass(frozen=True, kw_only=True)
class UserNetwork:
    """The code of a network that is not part of the project."""

    network: str | None = None
    """module:Class, for what unmask.train made with a network of your own; modules of this folder are found."""


@dataclass(frozen=True, kw_only=True)
class StoredWeights:
    """How the network is kept in memory."""

    weights: Weights = "auto"
    """How matrices are stored: float32, bfloat16 (half the memory), int8 (a quarter) or int4 (a sixth). auto keeps the
    precision of the files. docs/speed.md says what each costs."""


@dataclass(frozen=True, kw_only=True)
class OnCluster:
    """Where the work runs, if not only on this machine."""

    ray: bool = False
    """Divide the work among the workers of a Ray cluster. The results equal those of one process. The cluster is that
    of RAY_ADDRESS, one that runs on this machine, or a new local one. A worker has a GPU, or --threads cores."""


def guarded(verb: str, run: Callable[[], int | None], *, stopped: Callable[[], str] | None = None) -> int:
    """Run a verb and return its exit code; the table is in ``unmask.cli.main``. Errors are reported in one line.

    stopped: the message after Ctrl-C.
    """
    try:
        try:
            with short_warnings():
                code = run() or 0
        finally:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # flush the rest of the buffer somewhere before Python exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
    except KeyboardInterrupt:
        if stopped and int(os.environ.get("RANK", 0)) == 0:
            print(stopped(), file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError, ImportError, torch.OutOfMemoryError) as error:
        return told(verb, error)


def told(verb: str, error: Exception) -> int:
    """Report an error in one line, and return its exit code."""
    if int(os.environ.get("RANK", 0)) == 0:  # only one of several processes reports
        print(f"{program(verb)}: {sentence(error)}", file=sys.stderr)
    unforeseen = isinstance(error, OSError) and error.errno is not None and error.errno not in OF_INPUT
    return FAILED if unforeseen or isinstance(error, torch.OutOfMemoryError) else BAD_INPUT


def sentence(error: Exception) -> str:
    """An error in one line; those of the system in words."""
    if not isinstance(error, OSError) or error.filename is None or error.errno is None:
        return " ".join(str(error).split())
    words = OF_INPUT.get(error.errno)
    return f"{os.fsdecode(error.filename)}: {words or error.strerror or error}"


@contextmanager
def short_warnings() -> Iterator[None]:
    """Warnings of this package as one line each, without the source line; no warnings of other packages."""

    def show(message: Warning | str, category: type[Warning], filename: str, *rest: Any, **named: Any) -> None:
        if Path(filename).is_relative_to(Path(__file__).parents[1]):
            print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():  # which also restores showwarning
        warnings.simplefilter("default")
        warnings.showwarning = show
        yield


def loaded(name: str, network: str | None, device: str, weights: Weights = "auto") -> Model:
    """A model by name; network as in ``UserNetwork``, weights as in ``StoredWeights``."""
    own = None if network is None else imported(network, "another way to name a network")
    given = {} if own is None else {"network": own}
    return load(name, device=device, weights=weights, **given)


def imported(target: str, otherwise: str) -> Any:
    """The object at package.module:attribute, also in the working directory; otherwise: what else it may be."""
    module, colon, path = target.partition(":")
    if not (module and colon and path):
        raise ValueError(f"{target!r} is neither package.module:name nor {otherwise}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    value: Any = importlib.import_module(module)
    for name in path.split("."):
        if not hasattr(value, name):
            raise ValueError(f"there is no {name!r} in {target!r}")
        value = getattr(value, name)
    return value


def check_files(chosen: Any, *names: str) -> None:
    """Refuse a file that cannot be written, before minutes of work are spent on its contents."""
    for name in names:
        value = getattr(chosen, name)
        if value is not None and (Path(value).is_dir() or not Path(value).absolute().parent.is_dir()):
            problem = "it is a folder" if Path(value).is_dir() else "its folder does not exist"
            raise ValueError(f"--{name} {value}: {problem}")
        if value is not None and name == "picture":
            needed("matplotlib.figure", "the picture needs matplotlib", "plot")


def check_number(number: int | None) -> None:
    if number is not None and number < 1:
        raise ValueError(f"--number must be at least 1, got {number}")


def use_threads(count: int | None) -> None:
    """Use this many CPU threads from now on; None keeps torch's choice."""
    if count is None:
        return
    if count < 1:
        raise ValueError(f"--threads must be at least 1, got {count}")
    torch.set_num_threads(count)
