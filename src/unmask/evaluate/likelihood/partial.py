"""The file of an evaluation in progress: its identity, and one line for each finished batch.

A killed process leaves at most one half-written line, which the next run removes. A file belongs to one model, one
token file and one setting, and is refused for any other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from unmask.files import exclusive, sync
from unmask.networks.stored import Matrix

Key = tuple[int, int]  # round, batch
Result = dict[str, list[float]]  # "nats" of each row, and more
Done = dict[Key, Result]


class Partial:
    """Finished batches, and the file that stores them."""

    def __init__(self, file: BinaryIO | None, done: Done) -> None:
        self.done: Done = {}
        self.rows, self.nats = 0, 0.0  # in total
        self._file = None
        for key, result in done.items():
            self.add(key, result)
        self._file = file

    def add(self, key: Key, result: Result) -> None:
        self.done[key] = result
        self.rows += len(result["nats"])
        self.nats += sum(result["nats"])
        if self._file is not None:
            self._file.write(json.dumps({"round": key[0], "batch": key[1], **result}).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())


@contextmanager
def opened(path: Path | None, identity: dict[str, Any]) -> Iterator[Partial]:
    """The finished batches, to be added to. Without a path nothing is stored."""
    if path is None:
        yield Partial(None, {})
        return
    new = not path.exists()
    with exclusive(path, f"{path}: another evaluation is writing there"), path.open("a+b") as file:
        file.seek(0)
        done, sound = _read(path, file, identity)
        file.truncate(sound)
        if not sound:
            file.write(json.dumps(identity).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync(path.absolute().parent)
        yield Partial(file, done)


def _read(path: Path, file: BinaryIO, identity: dict[str, Any]) -> tuple[Done, int]:
    """The valid batches, and the offset at which they end."""
    done: Done = {}
    first = file.readline()
    if not first.endswith(b"\n"):
        if not json.dumps(identity).encode().startswith(first):
            raise ValueError(f"{path} is not an evaluation in progress and is not overwritten")
        return done, 0
    try:
        before = json.loads(first)
        changed = [
            f"{name}: {before.get(name)!r} -> {identity[name]!r}"
            for name in identity
            if before.get(name) != identity[name]
        ]
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path} is not an evaluation in progress and is not overwritten") from error
    if changed:
        raise ValueError(f"{path} belongs to another evaluation and is not continued ({'; '.join(changed)})")
    sound = file.tell()
    for line in file:
        try:
            result = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            result = None
        if result is None:  # a line that was being written when the process was killed
            break
        done[result.pop("round"), result.pop("batch")] = result
        sound += len(line)
    return done, sound


def fingerprint(network: Any) -> str:
    """sha256 of a network's weights, or of the tables of an oracle."""
    named = _tensors(network) if isinstance(network, torch.nn.Module) else vars(network)
    digest = hashlib.sha256(type(network).__name__.encode())
    for name, value in sorted(named.items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _tensors(network: torch.nn.Module) -> dict[str, Any]:
    if any(isinstance(module, Matrix) for module in network.modules()):  # it has no state_dict
        return dict(chain(network.named_parameters(), network.named_buffers()))
    return network.state_dict()
