"""A run's folder: its identity, its metrics, its checkpoints and its model.

config.toml       the effective configuration; ``unmask train --config`` reads it
run.json          what the run was started with: the data's fingerprint and the network
metrics.jsonl     one line per logged step, validation and preview
checkpoints/      see checkpoint.py
curve.png         at the end, a figure of the loss and the bound, if matplotlib is installed
model/            at the end, the averaged weights with config, card and tokenizer, for ``unmask sample``
data/             the token files, if DATA was a text
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.data.runs import IDENTITY, OVERFIT, SOURCE, named
from unmask.files import exclusive, sync, write_whole
from unmask.training.config import TrainConfig, differences, read_toml, to_toml
from unmask.training.data import Data
from unmask.training.network import Network

CONFIG, METRICS, LOCK = "config.toml", "metrics.jsonl", ".lock"
BEFORE_A_RUN = {
    "data",
    SOURCE,
    LOCK,
    OVERFIT,
    f".{OVERFIT}.verified",
}  # what a start that was broken off while preparing text leaves


def stored_config(out: str | Path) -> TrainConfig | None:
    """The configuration of the run in a folder, or None if there is no run."""
    path = Path(out) / CONFIG
    if not path.is_file():
        return None
    values = read_toml(path)
    if "data" not in values:
        raise ValueError(f"{path} is not the configuration of a run: it names no data")
    return TrainConfig(**values)


@dataclass(frozen=True)
class Run:
    """A folder that belongs to this configuration."""

    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.folder / METRICS

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def occupied(self, config: TrainConfig) -> bool:
        """Whether there is a run here to be resumed; a folder with anything else in it is refused."""
        if not (self.folder / CONFIG).is_file():
            strange = {path.name for path in self.folder.iterdir()} - BEFORE_A_RUN if self.folder.is_dir() else set()
            if strange:
                names = ", ".join(sorted(strange)[:5])
                raise ValueError(
                    f"out={str(self.folder)!r}: it is not a run and not empty ({names}); nothing was written"
                )
            if config.resume_from:
                raise ValueError(f"resume_from={config.resume_from!r}: there is no run in {self.folder}")
            return False
        if not (config.resume or config.resume_from):
            raise ValueError(
                f"out={str(self.folder)!r} holds a run already: --resume continues it, another --out starts a new one; "
                "nothing was written"
            )
        return True

    def check(self, config: TrainConfig, data: Data, network: Network) -> None:
        """Refuse to resume the run with another network, other data or another seed, and show the difference."""
        before = stored_config(self.folder)
        assert before is not None
        changed = differences(before, config) + self._other_identity(data, network)
        if changed:
            raise ValueError(
                f"{self.folder} belongs to another configuration and is not resumed ({'; '.join(changed)}); "
                "nothing was written"
            )

    def start(self, config: TrainConfig, data: Data, network: Network) -> None:
        """Record the run's identity; the configuration last, because it makes the folder a run."""
        from unmask import __version__

        self.checkpoints.mkdir(parents=True, exist_ok=True)
        identity = {
            "unmask": __version__,
            "data": data.fingerprint(),
            "files": named(data.files(), self.folder),
            "network": network.identity,
        }
        write_whole(self.folder / IDENTITY, (json.dumps(identity, indent=1) + "\n").encode())
        write_whole(self.folder / CONFIG, to_toml(config).encode())

    def _other_identity(self, data: Data, network: Network) -> list[str]:
        path = self.folder / IDENTITY
        try:
            stored = json.loads(path.read_bytes())
            pairs = [(stored["data"], data.fingerprint()), (network.defaults | stored["network"], network.identity)]
            return [
                f"{name}: {old.get(name)!r} -> {new[name]!r}"
                for old, new in pairs
                for name in new
                if old.get(name) != new[name]
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} cannot be read ({error!r}): the run cannot be resumed") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time trains in a folder; the lock of a killed one is released."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive(self.folder / LOCK, f"out={str(self.folder)!r}: another process is training there"):
            yield


class MetricsFile:
    """metrics.jsonl: appended line by line, truncated to a checkpoint's lines when a run is resumed."""

    def __init__(self, path: Path, lines: int) -> None:
        """Keep the first ``lines`` existing lines."""
        self.lines = 0
        offset = 0
        if path.is_file():
            with path.open("rb") as file:
                for line in file:
                    if self.lines == lines or not line.endswith(b"\n"):
                        break
                    self.lines += 1
                    offset += len(line)
            os.truncate(path, offset)
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        self.lines += 1

    def sync(self) -> None:
        sync(Path(self._file.name))

    def close(self) -> None:
        self._file.close()
