"""Every verb ends well in a terminal, in a pipe, and when nobody reads its output any more.

Each runs in a process of its own, forked from one that has imported everything already.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pty
import signal
import sys
import termios
import threading
import time
from contextlib import suppress

import pytest

from tests.forked import PROCESSES
from tests.small_models import TEXT, folder
from unmask.cli import CLOSED, VERBS

TINY = ["--steps", "2", "--batch", "2", "--preset", "tiny", "--tokenizer", "characters", "--length", "16"]
# What each is asked to do in DATA, a folder with a model, a left-to-right one, a text and samples; OUT is new.
ASKED = {
    "prepare": ["DATA/text.txt", "OUT", "--tokenizer", "characters", "--length", "16"],
    "train": ["DATA/text.txt", "--out", "OUT", *TINY, "--no-tensorboard"],
    "sample": ["DATA/model", "--number", "2"],
    "infill": ["DATA/model", "In the ____ God"],
    "models": [],
    "evaluate": ["DATA/model", "DATA/text.txt", "--passes", "2", "--number", "4"],
    "steps": ["DATA/model", "DATA/text.txt", "--samples", "1"],
    "judge": ["DATA/samples.txt", "--judge", "DATA/causal"],
    "frontier": ["DATA/model", "--judge", "DATA/causal", "--out", "OUT", "--number", "2", "--samplers", "parallel"],
    "serve": ["DATA/model", "--port", "0"],
    "inspect": ["DATA/model"],
    "convert": ["DATA/model", "OUT", "--to", "mdlm"],
    "audit": ["numpy_choice", "--budget", "1e6", "--vocab", "256"],
    "new": ["OUT"],
}
FOREVER = ("serve",)  # until it is stopped


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    folder(path / "model"), folder(path / "causal", causal=True)
    (path / "text.txt").write_text(TEXT * 4)
    (path / "samples.txt").write_text("In the beginning\nGod created\nthe heaven\n")
    return path


@pytest.fixture
def asked(data, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))

    def arguments(verb: str) -> list[str]:
        return [a.replace("DATA", str(data)).replace("OUT", str(tmp_path / "out")) for a in ASKED[verb]]

    return arguments


def test_every_verb_is_asked():
    assert ASKED.keys() == VERBS.keys()


@pytest.mark.parametrize("verb", ASKED)
def test_in_a_terminal(verb, asked):
    ours, theirs = pty.openpty()
    process = started(verb, asked(verb), os.ttyname(theirs), os.ttyname(theirs))
    told = Reader(ours)
    code = finished(process, verb, lambda: "serving" in told.text())
    os.close(theirs)
    assert code == 0, told.text()
    assert "Traceback" not in told.text() and told.text().strip()
    assert told.text().rfind("\x1b[?25l") <= told.text().rfind("\x1b[?25h"), "the cursor stays hidden"


@pytest.mark.parametrize("verb", ASKED)
def test_in_a_pipe(verb, asked, tmp_path):
    for name in ("out.fifo", "err.fifo"):
        os.mkfifo(tmp_path / name)
    process = started(verb, asked(verb), str(tmp_path / "out.fifo"), str(tmp_path / "err.fifo"))
    out, err = (Reader(os.open(tmp_path / name, os.O_RDONLY)) for name in ("out.fifo", "err.fifo"))
    code = finished(process, verb, lambda: "serving" in err.text())
    assert code == 0, err.text()
    shown = out.text() + err.text()
    assert "Traceback" not in shown and "\x1b" not in shown and shown.strip()


@pytest.mark.parametrize("verb", ASKED)
def test_with_its_output_closed(verb, asked, tmp_path):
    """The reader of stdout has gone before the first word: a verb that prints there exits silently."""
    os.mkfifo(tmp_path / "err.fifo")
    process = started(verb, asked(verb), None, str(tmp_path / "err.fifo"))
    err = Reader(os.open(tmp_path / "err.fifo", os.O_RDONLY))
    code = finished(process, verb, lambda: "serving" in err.text())
    assert code in (0, CLOSED), err.text()
    assert "Traceback" not in err.text() and "Broken pipe" not in err.text() and "Exception ignored" not in err.text()
    assert code == CLOSED or verb in ("train", "serve", "convert")  # which say nothing on stdout


class Reader:
    """What comes out of a file descriptor, read by a thread until the other end is closed."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.read = descriptor, b""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with suppress(OSError):  # EIO: the last of a terminal has closed it
            while chunk := os.read(self.descriptor, 1 << 16):
                self.read += chunk

    def text(self) -> str:
        return self.read.decode(errors="replace")


def test_the_help_ends_quietly_when_nobody_reads_it(asked, tmp_path):
    err = tmp_path / "err"
    err.touch()
    process = started("sample", ["--help"], None, str(err))
    assert finished(process, "sample", lambda: True) == CLOSED
    assert err.read_text() == ""


def started(verb: str, arguments: list[str], out: str | None, err: str) -> multiprocessing.process.BaseProcess:
    """The verb in a process whose stdout and stderr are these files; None is a pipe without a reader."""
    own = {name: os.environ[name] for name in ("HOME", "UNMASK_CACHE")}
    process = PROCESSES.Process(target=child, args=(verb, arguments, out, err, own))
    process.start()
    return process


def finished(process, verb, ready) -> int:
    """Its exit code; one that serves for ever is interrupted as soon as it is ready."""
    if verb in FOREVER:
        while process.is_alive() and not ready():
            time.sleep(0.02)
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
    process.join(120)
    if process.is_alive():
        process.kill()
        pytest.fail(f"{verb} did not end")
    time.sleep(0.05)  # for the readers to see the end
    return process.exitcode


def child(verb: str, arguments: list[str], out: str | None, err: str, environment: dict[str, str]) -> None:
    os.environ |= environment | {"TERM": "xterm", "COLUMNS": "80"}
    os.setsid()
    if out is None:
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)
    else:
        os.dup2(os.open(out, os.O_WRONLY), 1)
    os.dup2(os.open(err, os.O_WRONLY), 2)
    if os.isatty(2):
        fcntl.ioctl(2, termios.TIOCSWINSZ, b"\x18\x00\x50\x00" + bytes(4))
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from unmask.cli import main

    sys.exit(main([verb, *arguments]))
