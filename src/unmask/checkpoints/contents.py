"""Read a checkpoint without executing anything: names and shapes of tensors, config, and names in pickles."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from unmask.checkpoints.settings import beside, check_numbers, reachable, read_json
from unmask.checkpoints.weight_file import Tensorlike, WeightFile, weights_of
from unmask.files import sha256_of
from unmask.networks.pretrained import check_finite
from unmask.protocol import Denoiser
from unmask.schedule import Linear, Schedule
from unmask.tokenizers.tokenizer import Layout

WHOLE = ("model.safetensors", "pytorch_model.bin")  # the file names of weights in transformers and on the hub
SUFFIXES = (".safetensors", ".bin", ".ckpt", ".pt", ".pth", ".gguf")
INDEX = ".index.json"
RUN = "checkpoints-meta/checkpoint.pth"  # the newest weights of a SEDD run
# Checkpoint folders of other frameworks, by a characteristic file.
OTHER_LIBRARIES = {
    "_METADATA": "orbax (JAX; MD4's are)",
    "_CHECKPOINT_METADATA": "orbax (JAX; MD4's are)",
    "saved_model.pb": "TensorFlow",
}


@dataclass(frozen=True)
class Scan:
    """The checkpoint at a path. Tensor names are without the wrappers of torch.compile and DDP."""

    path: Path  # the folder, or the file
    config: dict[str, Any]  # config.json, or a .ckpt's hyper_parameters or fairseq's args as plain data
    tensors: Mapping[str, Tensorlike]
    files: tuple[str, ...]  # the files there, for messages
    pickled: tuple[str, ...] = ()  # the globals named in pickles: listed, never executed
    ema: bool = False  # whether there are averaged weights
    weights: tuple[str, ...] = ()  # the files that contain the tensors
    parts: tuple[WeightFile, ...] = field(default=(), repr=False)
    tokenizer: tuple[str, dict[str, str]] | None = field(default=None, repr=False)  # pickled: JSON and special tokens

    @property
    def folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    @cached_property
    def sha256(self) -> str:
        """Of all the weights' files."""
        sums = "".join(sha256_of(self.folder / name) for name in self.weights)
        return hashlib.sha256(sums.encode()).hexdigest()

    def read(self, *, ema: bool = True) -> dict[str, Tensor]:
        """The weights as stored; with ``ema`` the averages over training, if there are any."""
        weights = {name: tensor for part in self.parts for name, tensor in part.read(ema).items()}
        check_finite(weights, self.path)
        return weights


@dataclass(frozen=True)
class Loaded:
    """A checkpoint, ready to sample."""

    denoiser: Denoiser  # with .length, that of the training sequences
    tokenizer: Any  # a Tokenizer, an ExternalTokenizer of unmask.tokenizers, or None if the folder has none
    schedule: Schedule = field(default_factory=Linear)
    layout: Layout = "wrapped"
    about: dict[str, Any] = field(default_factory=dict)
    # format, parameters, mask_id, special_ids, length, time, ema, missing, unexpected, needs
    names: Mapping[str, str] = field(default_factory=dict)
    # the tensor names of its files and of the denoiser's state_dict, for networks of other libraries


def look(path: str | Path) -> Scan:
    """The checkpoint in a folder or file. A one-line ValueError if it is damaged or refers outside of its folder."""
    path = reachable(Path(path).expanduser())
    if (path / RUN).is_file():
        path = path / RUN
    files = tuple(sorted(file.name for file in path.iterdir())) if path.is_dir() else (path.name,)
    weights = _weights(path, files) if path.is_dir() else {path.name: None}
    folder = path if path.is_dir() else path.parent
    parts = [weights_of(folder / name, wanted) for name, wanted in weights.items()]
    tensors: dict[str, Tensorlike] = {}
    for part in parts:
        twice = tensors.keys() & part.tensors.keys()
        if twice:
            raise ValueError(f"{path}: {sorted(twice)[0]} is in two files")
        tensors |= part.tensors
    inside = next((dict(part.config) for part in parts if part.config), None)
    config = inside or beside(folder)
    check_numbers(path, config, [tensor.shape for tensor in tensors.values()])
    pickled = tuple(sorted({name for part in parts for name in part.pickled}))
    ema = any(part.averaged for part in parts)
    tokenizer = next((part.tokenizer for part in parts if part.tokenizer is not None), None)
    return Scan(path, config, tensors, files, pickled, ema, tuple(weights), tuple(parts), tokenizer)


def holds_weights(files: Iterable[str]) -> bool:
    """Whether any of a folder's files contains weights, of this library or of one that ``look`` rejects by name."""
    return any(file.endswith((*SUFFIXES, INDEX)) or file in OTHER_LIBRARIES for file in files)


def _weights(folder: Path, files: tuple[str, ...]) -> dict[str, frozenset[str] | None]:
    """The files of a folder that contain its weights, with the tensors that an index assigns to each."""
    for whole in WHOLE:
        if whole in files:
            return {whole: None}
        if whole + INDEX in files:
            return _indexed(folder / (whole + INDEX))
    others = [name for name in files if name.endswith(SUFFIXES)]
    if len(others) == 1:
        return {others[0]: None}
    if others:
        raise ValueError(f"{folder} holds {len(others)} weight files and no index: give one of {', '.join(others[:8])}")
    for mark, library in OTHER_LIBRARIES.items():
        if mark in files:
            raise ValueError(f"{folder} is a checkpoint of {library}: it is not read; export it to safetensors")
    listed = ", ".join(files[:12]) + (", ..." if len(files) > 12 else "")
    wanted = f"{', '.join(WHOLE)}, an index of shards ({WHOLE[0]}{INDEX}), or one {' or '.join(SUFFIXES)} file"
    raise ValueError(f"{folder} holds no weights. Found: {listed or 'nothing'}. Needed: {wanted}")


def _indexed(index: Path) -> dict[str, frozenset[str] | None]:
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(name, str) for name in where.values()):
        raise ValueError(f"{index} has no weight_map from tensors to files")
    for name in set(where.values()):
        # Not resolved, because the hub's cache consists of links. The name itself must stay in the folder.
        if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise ValueError(f"{index} leaves its folder: it names the file {name!r}")
        if not (index.parent / name).is_file():
            raise ValueError(f"{index} names {name}, which is not there: a part is missing")
    names = sorted(set(where.values()))
    return {name: frozenset(tensor for tensor, file in where.items() if file == name) for name in names}
