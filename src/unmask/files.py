"""Files and folders that are written atomically, even under kill -9."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to disk."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, then rename it into place."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        sync(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``path`` if the block succeeds and is removed if it does not.

    If several processes want the same folder, one works and the others wait, and then find it there (FileExistsError).
    Leftovers of a killed process are cleared by the next one.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(path.with_name(f".{path.name}.lock"), remove=True):
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise FileExistsError(f"{path} already exists; nothing was written")
        partial = path.with_name(f".{path.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
            for file in partial.rglob("*"):
                sync(file)
            sync(partial)
            os.rename(partial, path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync(path.parent)


@contextmanager
def exclusive(path: Path, taken: str | None = None, *, remove: bool = False) -> Iterator[None]:
    """An exclusive lock on this file; that of a killed process is released, and no file is truncated.

    taken: raise a ValueError with this message if another process holds it, instead of waiting. remove: at the end.
    """
    lock = FileLock(path, timeout=-1 if taken is None else 0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(taken) from None
    try:
        yield
    finally:
        if remove:
            path.unlink(missing_ok=True)  # waiting processes notice that it is gone, and take a new one
        lock.release()


def content_of(path: Path, most: int = 1 << 28) -> bytes:
    """The bytes of a regular file of at most ``most`` bytes: ValueError for a pipe, a device or a giant."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is a pipe, a socket or a device, but a file is needed")
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > most:
        raise ValueError(f"{path} is larger than {most:,} bytes")
    return content


def parsed(path: Path) -> Any:
    """The JSON of a file of settings."""
    try:
        return json.loads(content_of(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
