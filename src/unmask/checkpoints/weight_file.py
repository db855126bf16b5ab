"""One file of weights, safetensors or torch's: names and shapes of its tensors, and their values on request."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unmask.checkpoints.settings import reachable

if TYPE_CHECKING:
    from unmask.checkpoints.unpickle import Stored

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


def weights_of(file: Path, wanted: frozenset[str] | None) -> WeightFile:
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
    elif start[:4] == b"GGUF":
        part = _from_gguf(file)
    else:
        raise ValueError(f"{file} is neither safetensors, a torch file nor GGUF: {_guess(start)}")
    missing = sorted({clean(name) for name in wanted or ()} - part.tensors.keys())
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
    kinds = {b"\x1f\x8b": "gzip: unpack it first", b"\x89HDF": "an HDF5 file"}
    known = [f"it is {what}" for magic, what in kinds.items() if start.startswith(magic)]
    return known[0] if known else f"it begins with {start[:8]!r}"


def shapes_of(file: Path) -> list[tuple[int, ...]]:
    """The shapes of the tensors of a safetensors file, from its header."""
    return [tensor.shape for tensor in weights_of(file, None).tensors.values()]


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
        names = {name: clean(name) for name in entries}
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
    from unmask.checkpoints import torchfile
    from unmask.checkpoints.unpickle import Stored

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
    names = {name: clean(name) for name in stored}
    _distinct(file, names)
    by_name = {names[name]: value for name, value in stored.items()}
    average = _average(file, content.get("ema"), by_name)
    plain = (torchfile.plain(content[key]) for key in SETTINGS if key in content)
    config: dict[str, Any] = next((one for one in plain if isinstance(one, dict)), {})

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


def _from_gguf(file: Path) -> WeightFile:
    from unmask.checkpoints import gguf_file

    content = gguf_file.read(file)
    tensors = {name: Tensorlike(content.shape(name), content.dtype(name)) for name in content.tensors}
    return WeightFile(tensors, lambda ema: content.read(), content.config)


def _average(file: Path, ema: Any, parameters: Mapping[str, Stored]) -> dict[str, Stored]:
    """The averaged weights by name. MDLM and SEDD store a list in the order in which parameters were registered.

    That is the order of the state_dict without its buffers: the rotary frequencies, and BD3-LM's range of times.
    """
    from unmask.checkpoints.unpickle import Stored

    shadow = ema.get("shadow_params") if isinstance(ema, dict) else None
    if shadow is None:
        return {}
    if isinstance(shadow, dict):
        named = {clean(str(name)): value for name, value in shadow.items() if isinstance(value, Stored)}
        return {name: value for name, value in named.items() if name in parameters}
    names = [name for name in parameters if not name.endswith(BUFFERS)]
    shapes = [list(value.shape) for value in shadow if isinstance(value, Stored)]
    if shapes != [list(parameters[name].shape) for name in names]:
        raise ValueError(
            f"{file}: its average has {len(shapes)} tensors, which do not fit its {len(names)} parameters in turn"
        )
    return dict(zip(names, shadow, strict=True))


def clean(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "") if wrapper == WRAPPERS[0] else name.removeprefix(wrapper)
    return name


def _distinct(file: Path, names: Mapping[str, str]) -> None:
    if len(set(names.values())) != len(names):
        raise ValueError(f"{file} has tensors whose names differ by {' or '.join(WRAPPERS)} alone")
