"""Read a checkpoint without executing anything: names and shapes of tensors, config, and names in pickles."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.checkpoints import torchfile
from unmask.checkpoints.settings import beside, check_numbers, reachable, read_json
from unmask.checkpoints.unpickle import Stored
from unmask.files import sha256_of
from unmask.networks.pretrained import check_finite
from unmask.protocol import Denoiser
from unmask.schedule import Linear, Schedule
from unmask.tokenizers.tokenizer import Layout

WHOLE = ("model.safetensors", "pytorch_model.bin")  # the file names of weights in transformers and on the hub
SUFFIXES = (".safetensors", ".bin", ".ckpt", ".pt", ".pth")
INDEX = ".index.json"
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
}
HEADER_LIMIT = 100_000_000  # bytes, the limit of safetensors
STATE = ("state_dict", "model", "model_state_dict")  # keys of the weights in Lightning, SEDD and fairseq, and others
SETTINGS = ("hyper_parameters", "args", "cfg", "config")
WRAPPERS = ("_orig_mod.", "module.")  # of torch.compile and of data-parallel training
BUFFERS = (".inv_freq", "sampling_eps_min", "sampling_eps_max")  # in a state_dict, but not in the EMA's list
RUN = "checkpoints-meta/checkpoint.pth"  # the newest weights of a SEDD run
# Checkpoint folders of other frameworks, by a characteristic file.
OTHER_LIBRARIES = {
    "_METADATA": "orbax (JAX; MD4's are)",
    "_CHECKPOINT_METADATA": "orbax (JAX; MD4's are)",
    "saved_model.pb": "TensorFlow",
}


@dataclass(frozen=True)
class Tensorlike:
    """A tensor's shape and dtype."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        dtype = getattr(torch, self.dtype, None)
        return self.count * (dtype.itemsize if isinstance(dtype, torch.dtype) else 1)


@dataclass(frozen=True)
class WeightFile:
    """The weights of one file: shapes now, values on request (True for the averaged ones)."""

    tensors: Mapping[str, Tensorlike]
    read: Callable[[bool], dict[str, Tensor]]
    config: Mapping[str, Any] = field(default_factory=dict)
    pickled: tuple[str, ...] = ()
    averaged: frozenset[str] = frozenset()  # the tensors with an average over training
    tokenizer: tuple[str, dict[str, str]] | None = None


@dataclass(frozen=True)
class Found:
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


def look(path: str | Path) -> Found:
    """The checkpoint in a folder or file. A one-line ValueError if it is damaged or refers outside of its folder."""
    path = reachable(Path(path).expanduser())
    if (path / RUN).is_file():
        path = path / RUN
    files = tuple(sorted(file.name for file in path.iterdir())) if path.is_dir() else (path.name,)
    weights = _weights(path, files) if path.is_dir() else {path.name: None}
    folder = path if path.is_dir() else path.parent
    parts = [_part(folder / name, wanted) for name, wanted in weights.items()]
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
    return Found(path, config, tensors, files, pickled, ema, tuple(weights), tuple(parts), tokenizer)


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


def _part(file: Path, wanted: frozenset[str] | None) -> WeightFile:
    """One file, identified by its first bytes, not its name."""
    try:
        with reachable(file).open("rb") as opened:
            start = opened.read(64)
    except OSError as error:  # a link to /proc/self/mem opens, and cannot be read
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    if start[4:9] == b"\0\0\0\0{":  # safetensors: the length of its header, then the header
        part = _from_safetensors(file)
    elif start[:1] == b"\x80" or start[:4] == b"PK\x03\x04":
        part = _from_torch(file)
    else:
        raise ValueError(f"{file} is neither safetensors nor a torch file: {_guess(start)}")
    missing = sorted({_clean(name) for name in wanted or ()} - part.tensors.keys())
    if missing:
        raise ValueError(f"{file} has no {missing[0]}, which the index says it has")
    return part


def _guess(start: bytes) -> str:
    if not start:
        return "it is empty"
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer; fetch the file itself (git lfs pull)"
    if start.lstrip()[:1] == b"<":
        return "it is a web page, perhaps of a download that failed"
    kinds = {b"GGUF": "a GGUF file", b"\x1f\x8b": "gzip: unpack it first", b"\x89HDF": "an HDF5 file"}
    known = [f"it is {what}" for magic, what in kinds.items() if start.startswith(magic)]
    return known[0] if known else f"it begins with {start[:8]!r}"


def shapes_of(file: Path) -> list[tuple[int, ...]]:
    """The shapes of the tensors of a safetensors file, from its header."""
    return [tensor.shape for tensor in _part(file, None).tensors.values()]


def _from_safetensors(file: Path) -> WeightFile:
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > min(HEADER_LIMIT, size - 8):
            raise ValueError(f"{file} is truncated, or no safetensors file: its header should have {length} bytes")
        header = opened.read(length)
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        names = {name: _clean(name) for name in entries}
        tensors = {
            names[name]: Tensorlike(tuple(map(int, entry["shape"])), DTYPES[entry["dtype"]])
            for name, entry in entries.items()
        }
        ends = [0, *(int(entry["data_offsets"][1]) for entry in entries.values())]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} has a damaged safetensors header: {type(error).__name__} {error}") from None
    if 8 + length + max(ends) != size:
        kind = "truncated" if 8 + length + max(ends) > size else "damaged"
        raise ValueError(f"{file} is {kind}: it should have {8 + length + max(ends)} bytes and has {size}")
    _distinct(file, names)

    def read(ema: bool) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return {names[name]: tensor for name, tensor in load_file(file).items()}
        except SafetensorError as error:
            raise ValueError(f"{file} is not a whole safetensors file: {error}") from None

    return WeightFile(tensors, read)


def _from_torch(file: Path) -> WeightFile:
    pickled = torchfile.read(file)
    content = pickled.content
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds no dict of weights; {torchfile.names(pickled.globals)}")
    state = next((content[key] for key in STATE if isinstance(content.get(key), dict)), content)
    stored = {str(name): value for name, value in state.items() if isinstance(value, Stored)}
    if not stored:
        there = ", ".join(map(str, list(content)[:12])) or "nothing"
        raise ValueError(
            f"{file} holds no weights. Found: {there}; {torchfile.names(pickled.globals)}. Needed: a dict of tensors, "
            f"or one under {', '.join(STATE)}"
        )
    names = {name: _clean(name) for name in stored}
    _distinct(file, names)
    by_name = {names[name]: value for name, value in stored.items()}
    average = _average(file, content.get("ema"), by_name)
    plain = (torchfile.plain(content[key]) for key in SETTINGS if key in content)
    config: dict[str, Any] = next((said for said in plain if isinstance(said, dict)), {})

    def read(ema: bool) -> dict[str, Tensor]:
        chosen = by_name | average if ema else by_name
        cache: dict[str, bytearray] = {}
        for value in chosen.values():
            if value.storage.key not in cache:
                cache[value.storage.key] = pickled.bytes_of(value.storage)
        return {name: value.of(cache[value.storage.key]) for name, value in chosen.items()}

    tensors = {name: Tensorlike(t.shape, str(t.dtype).removeprefix("torch.")) for name, t in by_name.items()}
    settings = content.get("hyper_parameters")
    tokenizer = torchfile.tokenizer(settings.get("tokenizer")) if isinstance(settings, dict) else None
    return WeightFile(tensors, read, config, pickled.globals, frozenset(average), tokenizer)


def _average(file: Path, ema: Any, parameters: Mapping[str, Stored]) -> dict[str, Stored]:
    """The averaged weights by name. MDLM and SEDD store a list in the order in which parameters were registered.

    That is the order of the state_dict without its buffers: the rotary frequencies, and BD3-LM's range of times.
    """
    shadow = ema.get("shadow_params") if isinstance(ema, dict) else None
    if shadow is None:
        return {}
    if isinstance(shadow, dict):
        named = {_clean(str(name)): value for name, value in shadow.items() if isinstance(value, Stored)}
        return {name: value for name, value in named.items() if name in parameters}
    names = [name for name in parameters if not name.endswith(BUFFERS)]
    shapes = [list(value.shape) for value in shadow if isinstance(value, Stored)]
    if shapes != [list(parameters[name].shape) for name in names]:
        raise ValueError(
            f"{file}: its average has {len(shapes)} tensors, which do not fit its {len(names)} parameters in turn"
        )
    return dict(zip(names, shadow, strict=True))


def _clean(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "") if wrapper == WRAPPERS[0] else name.removeprefix(wrapper)
    return name


def _distinct(file: Path, names: Mapping[str, str]) -> None:
    if len(set(names.values())) != len(names):
        raise ValueError(f"{file} has tensors whose names differ by {' or '.join(WRAPPERS)} alone")
