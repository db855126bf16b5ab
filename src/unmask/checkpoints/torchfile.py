"""torch's files, in the zip format and the older one, read without running anything; see ``unpickle``."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.checkpoints.unpickle import Global, Machine, Storage, Stored, Stub

MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of files from before the zip format
PICKLE_LIMIT = 2**28  # bytes


@dataclass(frozen=True)
class Pickled:
    """The contents of a torch file."""

    content: Any
    globals: tuple[str, ...]  # every class and function that it names
    bytes_of: Callable[[Storage], bytearray]


def read(path: Path) -> Pickled:
    """The file's contents with tensors as ``Stored``; a one-line ValueError if it is not a complete torch file."""
    try:
        if zipfile.is_zipfile(path):
            return _from_zip(path)
        return _from_stream(path)
    except OSError:
        raise
    except Exception as error:  # a damaged file can break anywhere
        message = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is not a whole torch file: {message[:200]}") from None


def names(pickled: tuple[str, ...]) -> str:
    """The globals of a pickle, for messages."""
    shown = ", ".join(pickled[:5]) + (", ..." if len(pickled) > 5 else "")
    return f"it names {shown}: nothing of it was run" if pickled else "it names no class or function"


def _from_zip(path: Path) -> Pickled:
    """The format since torch 1.6: NAME/data.pkl and one member per storage, NAME/data/KEY."""
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        pickles = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickles) != 1:
            raise ValueError(f"a zip of {len(names)} members without one NAME/data.pkl")
        root = pickles[0].removesuffix("data.pkl")
        if archive.getinfo(pickles[0]).compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{pickles[0]} is compressed, which torch's files never are")
        if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("it was written on a big-endian machine")
        if archive.getinfo(pickles[0]).file_size > PICKLE_LIMIT:
            raise ValueError(f"{pickles[0]} is larger than {PICKLE_LIMIT} bytes")
        machine = Machine(io.BytesIO(archive.read(pickles[0])))
        content = machine.run()
        for key, storage in machine.storages.items():
            member, needed = f"{root}data/{key}", storage.count * storage.dtype.itemsize
            # torch never compresses, and a compressed member may be a thousand times as large as the file.
            if member in names and archive.getinfo(member).compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{member} is compressed, which torch's files never are")
            if member not in names or not needed <= archive.getinfo(member).compress_size:
                raise ValueError(f"{member} does not have the {needed} bytes that a tensor needs")

    def bytes_of(storage: Storage) -> bytearray:
        with zipfile.ZipFile(path) as archive:
            try:
                return bytearray(archive.read(f"{root}data/{storage.key}"))
            except zipfile.BadZipFile as error:
                raise ValueError(f"{path} is damaged: {error}") from None

    return Pickled(content, tuple(machine.named), bytes_of)


def _from_stream(path: Path) -> Pickled:
    """The older format: magic number, version, machine, contents, the storages' keys, and then their bytes."""
    with path.open("rb") as file:
        if file.read(1) != b"\x80":
            raise ValueError("it is neither a zip nor a pickle")
        file.seek(0)
        machine = Machine(file)
        if machine.run() != MAGIC:
            raise ValueError(f"a bare pickle without torch's magic number; {names(tuple(machine.named))}")
        for _ in ("version", "machine"):
            Machine(file).run()
        machine = Machine(file)
        content = machine.run()
        size, places = path.stat().st_size, {}
        for key in Machine(file).run():
            (count,) = struct.unpack("<q", file.read(8))
            storage, start = machine.storages[key], file.tell()
            length = count * storage.dtype.itemsize
            if count < storage.count or start + length > size:
                raise ValueError(f"storage {key} does not have the bytes that a tensor needs: the file is truncated")
            places[key] = (start, length)
            file.seek(length, io.SEEK_CUR)
        missing = sorted(machine.storages.keys() - places.keys())
        if missing:
            raise ValueError(f"storage {missing[0]} is missing: the file is truncated")

    def bytes_of(storage: Storage) -> bytearray:
        start, length = places[storage.key]
        with path.open("rb") as file:
            file.seek(start)
            return bytearray(file.read(length))

    return Pickled(content, tuple(machine.named), bytes_of)


def tokenizer(value: Any) -> tuple[str, dict[str, str]] | None:
    """A pickled fast tokenizer of transformers: its tokenizer.json, and its special tokens."""
    inside = value.state.get("_tokenizer") if isinstance(value, Stub) and isinstance(value.state, dict) else None
    if not isinstance(inside, Stub) or inside.name != "tokenizers.Tokenizer":
        return None
    written = inside.state
    match written:
        case Stub("_codecs.encode", (str(text), "latin1")):  # bytes in older pickles
            written = text.encode("latin1")
    if not isinstance(written, bytes):
        return None
    state = value.state
    named = state.get("_special_tokens_map") or {n[1:]: t for n, t in state.items() if n.endswith("_token")}
    names = {str(name): token for name, token in named.items() if isinstance(token, str)}
    return written.decode(errors="replace"), names


def plain(value: Any, depth: int = 32) -> Any:
    """The contents as JSON values: stubs become the dict of their state, OmegaConf's containers what they contain."""
    if depth == 0:
        return "..."
    if isinstance(value, Stub):
        state = value.state if isinstance(value.state, dict) else {}
        for inside in ("_content", "_val"):  # OmegaConf's containers and leaves also refer to their parents
            if value.name.startswith("omegaconf.") and inside in state:
                return plain(state[inside], depth - 1)
        return {"class": value.name, **plain(state, depth - 1)}
    if isinstance(value, Mapping):
        return {str(name): plain(item, depth - 1) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth - 1) for item in value]
    if isinstance(value, Global):
        return value.name
    if isinstance(value, Stored):
        return f"tensor {list(value.shape)}"
    return value if isinstance(value, str | int | float | bool | None) else repr(value)[:80]
