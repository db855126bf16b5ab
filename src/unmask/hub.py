"""The Hugging Face hub: whole repositories by name, and single files at a pinned revision with a known checksum.

Whether the hub can be reached is tested once per process, for a few seconds at most; ``HF_HUB_OFFLINE=1`` skips the
test. Without the hub, only its cache on this machine is used.
"""

from __future__ import annotations

import re
import shutil
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from unmask.files import sha256_of

ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")  # ORG/NAME, or ORG/NAME@REVISION
SECONDS = 3.0  # to wait for the hub's first answer
# The files fetched from a repository: never code, and pickles only if there is no safetensors file.
DATA_FILES, PICKLES = ("*.safetensors", "*.json", "*.txt"), ("*.bin", "*.ckpt", "*.pt", "*.pth")


@dataclass(frozen=True)
class Pinned:
    """Files of a repository at one commit: {our name: (name in the repository, sha256)}."""

    repository: str
    revision: str
    files: Mapping[str, tuple[str, str]] = field(repr=False)

    def download(self, folder: Path) -> bool:
        """Put the files into a folder; False, with a warning, if the hub has not got them as they should be."""
        from huggingface_hub import hf_hub_download

        where = f"{self.repository}@{self.revision[:7]}"
        try:
            for name, (theirs, sha256) in self.files.items():
                fetched = Path(hf_hub_download(self.repository, theirs, revision=self.revision))
                if sha256_of(fetched) != sha256:
                    raise OSError(f"{theirs} does not have the sha256 {sha256}")
                shutil.copyfile(fetched, folder / name)
        except Exception as error:  # the hub's exceptions have no common base class
            warnings.warn(f"{where} on the hub is not used: {error}", stacklevel=2)
            for name in self.files:
                (folder / name).unlink(missing_ok=True)
            return False
        return True


def reachable() -> bool:
    """Whether the hub may be asked, and answers."""
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE and _answers(constants.ENDPOINT)


@cache
def _answers(address: str) -> bool:
    from huggingface_hub import get_session

    answered = threading.Event()

    def ask() -> None:
        try:
            get_session().head(address, timeout=SECONDS)
        except Exception:  # of either HTTP library that huggingface_hub has used
            return
        answered.set()

    # In a thread: the timeout is for each of the host's addresses, and name resolution has none.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return answered.is_set()


def repository(name: str) -> Path:
    """The folder of ORG/NAME or ORG/NAME@REVISION, downloaded, or from the hub's cache if the hub is not reachable."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    called, _, revision = name.partition("@")

    def snapshot(*patterns: str) -> Path:
        return Path(
            snapshot_download(
                called, revision=revision or None, allow_patterns=list(patterns), local_files_only=not reachable()
            )
        )

    try:
        folder = snapshot(*DATA_FILES)
        return folder if any(folder.glob("*.safetensors")) else snapshot(*DATA_FILES, *PICKLES)
    except OSError as error:
        why = "it cannot be reached" if isinstance(error, LocalEntryNotFoundError) else error
        raise ValueError(f"{name} is not a folder, and could not be downloaded from the hub: {why}") from error
