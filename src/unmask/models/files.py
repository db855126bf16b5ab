"""Files and folders that appear under their name whole or not at all, also under kill -9."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl


def sync(path: Path) -> None:
    """Bring a file, or a folder's list of names, to the disk."""
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
    """A folder to fill, which becomes ``path`` when the block ends well and vanishes when it does not.

    Of several processes that want the same folder one works and the others wait, and then find it there
    (FileExistsError). What a killed process left behind is cleared by the next one.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(path.with_name(f".{path.name}.lock")):
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
def _exclusive(lock: Path) -> Iterator[None]:
    # The kernel drops the lock of a killed process, so there is no stale lock. The file itself is removed in the end,
    # hence the second look at which file was locked.
    while True:
        with lock.open("a") as handle:
            if sys.platform != "win32":
                fcntl.flock(handle, fcntl.LOCK_EX)
                try:
                    if os.stat(lock).st_ino != os.fstat(handle.fileno()).st_ino:
                        continue
                except FileNotFoundError:
                    continue
            try:
                yield
            finally:
                if sys.platform != "win32":
                    lock.unlink()
            return


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
