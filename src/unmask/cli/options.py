"""What the verbs share: reading options, exit codes, and the machine to run on."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import torch

MODEL_HELP = "A name that unmask models lists, a run's folder, or ORG/NAME on the Hugging Face hub"
DATA_HELP = "A corpus (kjv, enwik8, text8, moses, sotu, digits), prepared data, a .tokens file, or a text"
CHECKPOINT_HELP = "A folder or a file (.safetensors, .ckpt, .bin, .pt, .pth), a name of unmask models, or ORG/NAME"

Chosen = TypeVar("Chosen")


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """Where the network runs."""

    device: str = "auto"
    """cpu, cuda, cuda:1, xpu, ...; auto takes an accelerator that has float64, if there is one."""


@dataclass(frozen=True, kw_only=True)
class OnMachine(OnDevice):
    """Where the network runs, and with how many threads."""

    threads: int | None = None
    """CPU threads. By default as many as there are cores; 1 is best where every core has other work (docs/speed.md)."""


def parsed(options: type[Chosen], arguments: Sequence[str], verb: str, **positional: str) -> Chosen:
    """The options from the command line. tyro leaves with 2 where they are wrong, and with 0 after --help.

    positional: which of the fields stand without a flag, in this order, each with its help.
    """
    try:
        import tyro
    except ImportError as error:
        raise ModuleNotFoundError("the command line needs tyro: pip install 'unmask[cli]'", name="tyro") from error
    known, hints = {one.name: one for one in fields(options)}, get_type_hints(options)  # type: ignore[arg-type]
    given: list[Any] = []
    for name, text in positional.items():
        optional, several = known[name].default is not MISSING, hints[name] == tuple[str, ...]
        shown = f"{name.upper().removesuffix('S')} ..." if several else name.upper()
        about = tyro.conf.arg(help=text, metavar=f"[{shown}]" if optional else shown)
        kind: Any = Annotated[hints[name], tyro.conf.Positional, about]
        given.append((name, kind, field(default=known[name].default)) if optional else (name, kind))
    Parsed: Any = make_dataclass("Parsed", given, bases=(options,), frozen=True, kw_only=True)
    chosen: Chosen = tyro.cli(
        Parsed,
        args=list(arguments),
        prog=f"unmask {verb}",
        description=inspect.cleandoc(options.__doc__ or ""),
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
    )
    return chosen


def guarded(
    verb: str, run: Callable[[], int | None], *, failed: int = 1, stopped: Callable[[], str] | None = None
) -> int:
    """Run a verb: what it returns, or 0; ``failed`` with one line for what went wrong; 130 after Ctrl-C.

    stopped: what to say then. 141, in silence, when nobody reads stdout any more.
    """
    try:
        try:
            with short_warnings():
                code = run() or 0
        finally:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # what is still in the buffer must go somewhere when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        if stopped and int(os.environ.get("RANK", 0)) == 0:
            print(stopped(), file=sys.stderr)
        return 130
    except (ValueError, OSError, ImportError, torch.OutOfMemoryError) as error:
        if int(os.environ.get("RANK", 0)) == 0:  # of several processes one speaks
            print(f"unmask {verb}: {' '.join(str(error).split())}", file=sys.stderr)
        return failed


@contextmanager
def short_warnings() -> Iterator[None]:
    """Warnings of this package as one line each, without the source line; those of other packages not at all."""

    def show(message: Warning | str, category: type[Warning], filename: str, *rest: Any, **named: Any) -> None:
        if Path(filename).is_relative_to(Path(__file__).parents[1]):
            print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():  # which puts showwarning back, too
        warnings.simplefilter("default")
        warnings.showwarning = show
        yield


def check_files(chosen: Any, *names: str) -> None:
    """Refuse a file that cannot be written before minutes of work are spent on what goes into it."""
    for name in names:
        value = getattr(chosen, name)
        if value is not None and (Path(value).is_dir() or not Path(value).absolute().parent.is_dir()):
            raise ValueError(f"--{name} {value}: {'it is' if Path(value).is_dir() else 'it is in no'} folder")


def use_threads(count: int | None) -> None:
    """So many CPU threads from now on; None leaves torch's choice."""
    if count is None:
        return
    if count < 1:
        raise ValueError(f"--threads must be at least 1, got {count}")
    torch.set_num_threads(count)


def device_named(name: str) -> str:
    """The device, with auto resolved."""
    if name != "auto":
        return name
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    # Draws are in float64, which Apple's GPUs do not have.
    return accelerator.type if accelerator is not None and accelerator.type != "mps" else "cpu"
