"""The token file: one header and one memory-mapped [num, length] array of token ids.

    8 bytes   magic, written last: a file without it is not a token file
    4 + 4     version, and the CRC-32 of the header, little-endian
    8 bytes   length of the header
    header    JSON padded with spaces to a multiple of 64 bytes, the tokenizer inside
    tokens    num x length ids, uint8, uint16 or uint32, little-endian, row after row

A file is written under a temporary name and renamed when complete, and its size must match its header.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unmask.bound import Bound
from unmask.files import write_whole
from unmask.tokenizers.external import ExternalTokenizer, from_json
from unmask.tokenizers.tokenizer import EXTERNAL, LAYOUTS, Tokenizer

MAGIC = b"unmaskTK"
VERSION = 1
PREFIX = struct.Struct("<8sIIQ")
DTYPES = {"uint8": 1 << 8, "uint16": 1 << 16, "uint32": 1 << 32}
LARGEST_HEADER = 1 << 28
COUNTED = 1 << 24  # tokens that are counted at a time
GIVEN = ".given.npy"  # instead of .tokens: how many tokens at the beginning of each sequence are a prompt


@dataclass(frozen=True)
class Header:
    """The file's metadata; ``characters`` and ``bytes`` count the source text of its tokens."""

    dtype: str
    vocab_size: int
    length: int
    num: int
    layout: str
    characters: int
    bytes: int
    tokenizer_hash: str
    sha256: str
    source: str

    def __post_init__(self) -> None:
        for name, kind in (("dtype", str), ("layout", str), ("tokenizer_hash", str), ("sha256", str), ("source", str)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name}={getattr(self, name)!r} is not a string")
        for name in ("vocab_size", "length", "num", "characters", "bytes"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)!r} is not a count")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout={self.layout!r}: it must be one of {', '.join(LAYOUTS)}")
        if self.length < 1:
            raise ValueError(f"length={self.length}: it must be at least 1")
        check_dtype(self.dtype, self.vocab_size)

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize


def check_dtype(dtype: str, vocab_size: int) -> None:
    """Refuse a dtype that cannot hold every id of the vocabulary."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: it must be one of {', '.join(DTYPES)}")
    if vocab_size > DTYPES[dtype]:
        raise ValueError(
            f"dtype={dtype!r} holds {DTYPES[dtype]:,} ids and the vocabulary has {vocab_size:,}: take a wider one"
        )


def smallest_dtype(vocab_size: int) -> str:
    return next(dtype for dtype, count in DTYPES.items() if vocab_size <= count)


@dataclass(frozen=True)
class TokenFile:
    """A complete token file; open it with ``TokenFile.open(path)``."""

    path: Path
    header: Header
    offset: int = field(repr=False)
    tokenizer: Tokenizer | ExternalTokenizer = field(repr=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, tokenizer: Tokenizer | ExternalTokenizer | None = None) -> TokenFile:
        """Check magic, header and size, and map the tokens; with ``tokenizer``, refuse a file made by another one."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"{path}: no such token file")
        try:
            header, offset, own = _read_header(path)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a whole token file: {error}") from error
        if tokenizer is not None and tokenizer.hash != own.hash:
            ours, theirs = (f"{t.kind} of {t.vocab_size} ids, {t.hash[:12]}" for t in (tokenizer, own))
            raise ValueError(
                f"{path} was made with another tokenizer ({theirs}) than this one ({ours}): prepare it again"
            )
        return cls(path, header, offset, own)

    def verify(self) -> None:
        """Read everything: the checksum must match and every id must be in the vocabulary."""
        digest = hashlib.sha256()
        largest = 0
        rows = max(1, (1 << 22) // self.length)
        for start in range(0, len(self), rows):
            block = self._array[start : start + rows]
            digest.update(block.tobytes())
            largest = max(largest, int(block.max()))
        if digest.hexdigest() != self.header.sha256:
            raise ValueError(
                f"{self.path} is damaged: its tokens do not have the checksum of its header; prepare the data again"
            )
        if largest >= self.vocab_size:
            raise ValueError(f"{self.path} holds the id {largest}, its vocabulary is 0..{self.vocab_size - 1}")

    def verified(self) -> TokenFile:
        """This file, verified.

        A hidden stamp beside it records size and time, so that verifying an unchanged file again costs nothing.
        """
        stamp, stat = self.path.with_name(f".{self.path.name}.verified"), self.path.stat()
        seen = f"{stat.st_size} {stat.st_mtime_ns} {self.header.sha256}\n"
        with suppress(OSError, UnicodeDecodeError):
            if stamp.read_text() == seen:
                return self
        self.verify()
        with suppress(OSError):  # in a read-only folder it is verified every time
            write_whole(stamp, seen.encode())
        return self

    def sequences(self, indices: ArrayLike | Tensor) -> Tensor:
        """int64 tokens [B, L] of these sequences, in this order."""
        index = np.asarray(indices, dtype=np.int64).reshape(-1)
        if index.size and not (index.min() >= 0 and index.max() < len(self)):
            raise ValueError(
                f"indices from {index.min()} to {index.max()}: {self.path} has sequences 0..{len(self) - 1}"
            )
        tokens = self._array[index].astype(np.int64)
        if tokens.size and (largest := tokens.max()) >= self.vocab_size:
            raise ValueError(f"{self.path} is damaged: it holds the id {largest}, its ids are 0..{self.vocab_size - 1}")
        return torch.from_numpy(tokens)

    def lengths(self, tokens: Tensor) -> Tensor | None:
        """How many of the tokens [B, L] come before the padding, [B]; None if padding is data, or there is none.

        The padding of our tokenizers is a token that networks predict. That of other libraries is not data.
        """
        pad = self.tokenizer.pad_id if isinstance(self.tokenizer, ExternalTokenizer) else None
        return None if pad is None or self.header.layout != "rows" else (tokens != pad).sum(1)

    def asked(self, indices: ArrayLike | Tensor) -> Tensor | None:
        """The positions of these sequences that a model predicts, bool [B, L]; None if it predicts all.

        Prompts of instructions (``given.npy`` beside the file) are excluded, and ids that are not data: padding, and
        the unknown token of a masked LM, which it never predicts.
        """
        tokens, places = self.sequences(indices), torch.arange(self.length)
        path, asked = self.path.with_suffix(GIVEN), None
        if self.no_data:
            asked = ~torch.isin(tokens, torch.tensor(self.no_data))
            asked = None if bool(asked.all()) and self.header.layout != "rows" else asked
        if path.is_file():
            given = np.load(path, mmap_mode="r")
            if len(given) != len(self):
                raise ValueError(
                    f"{path} is of {len(given)} sequences and {self.path} has {len(self)}: prepare it again"
                )
            known = torch.from_numpy(given[np.asarray(indices, dtype=np.int64).reshape(-1)].astype(np.int64))
            behind = places >= known.unsqueeze(1)
            asked = behind if asked is None else asked & behind
        return asked

    @cached_property
    def no_data(self) -> list[int]:
        """Ids that a masked LM with its own padding never predicts; none for other tokenizers."""
        tokenizer = self.tokenizer
        if not isinstance(tokenizer, ExternalTokenizer) or tokenizer.pad_id is None:
            return []
        framing = {*tokenizer.frame[0], *tokenizer.frame[1], tokenizer.eos_id}
        return sorted(tokenizer.special_ids - framing)

    def truth(self, indices: ArrayLike | Tensor) -> Tensor | None:
        """-log p of these sequences under the distribution they were drawn from, float64 [B]; None if unknown."""
        path = self.path.with_suffix(".nats.npy")
        if not path.is_file():
            return None
        nats = np.load(path, mmap_mode="r")
        if len(nats) != len(self):
            raise ValueError(
                f"{path} is of {len(nats)} sequences and {self.path} has {len(self)}: prepare the data again"
            )
        chosen = nats[np.asarray(indices, dtype=np.int64).reshape(-1)].astype(np.float64)
        return torch.from_numpy(chosen.reshape(len(chosen), -1).sum(1))

    def __len__(self) -> int:
        return self.header.num

    @property
    def vocab_size(self) -> int:
        return self.header.vocab_size

    @property
    def length(self) -> int:
        return self.header.length

    @property
    def characters_per_token(self) -> float:
        """Source characters per stored token, counting eos and padding as tokens.

        Bits per character are therefore bits per token, averaged over whole sequences, divided by this.
        """
        return self.header.characters / (len(self) * self.length)

    @cached_property
    def characters_per_text_token(self) -> float:
        """Source characters per token of text, by which blanks are sized: eos, padding and frames are no text."""
        tokenizer = self.tokenizer
        special = {one for one in (tokenizer.eos_id, tokenizer.pad_id) if one is not None}
        if isinstance(tokenizer, ExternalTokenizer):
            special |= {*tokenizer.frame[0], *tokenizer.frame[1], *tokenizer.special_ids}
        rows, ids = max(1, COUNTED // self.length), np.array(sorted(special), dtype=np.int64)
        parts = (self._array[start : start + rows] for start in range(0, len(self), rows))
        return self.header.characters / max(1, sum(int((~np.isin(part, ids)).sum()) for part in parts))

    @property
    def units_note(self) -> str:
        """Why bits per character exceed bits per token, if they do; otherwise ""."""
        per_token = self.characters_per_token
        if per_token >= 1 or self.tokenizer.kind == "levels":
            return ""
        return (
            f"of {self.length} tokens {per_token * self.length:.4g} are characters, the others ends and padding; a "
            f"character bears their bits too, so bits per character are bits per token times {1 / per_token:.4g}"
        )

    def bound(self, nats: Tensor, errors: Tensor | None = None, asked: Tensor | None = None) -> Bound:
        """The bound of some of its sequences from their nats [B], in all units; exact without ``errors``.

        asked bool [B, L]: the predicted positions, if not all.
        """
        length = torch.full((len(nats),), self.length) if asked is None else asked.sum(1)
        counted = self.tokenizer.kind != "levels" and asked is None
        characters = length.double() * self.characters_per_token if counted else None
        return Bound(nats, torch.zeros_like(nats) if errors is None else errors, length, characters)

    @cached_property
    def _array(self) -> NDArray[Any]:
        dtype = np.dtype(self.header.dtype).newbyteorder("<")
        return np.memmap(self.path, dtype=dtype, mode="r", offset=self.offset, shape=(len(self), self.length))

    def __reduce__(self) -> tuple[Callable[[Path], TokenFile], tuple[Path]]:
        # A worker process maps the file instead of receiving a copy of it.
        return TokenFile.open, (self.path,)


def _read_header(path: Path) -> tuple[Header, int, Tokenizer | ExternalTokenizer]:
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(PREFIX.size)
        if len(prefix) < PREFIX.size or prefix[:8] != MAGIC:
            raise ValueError("it does not begin as one does")
        _, version, crc, length = PREFIX.unpack(prefix)
        if version != VERSION:
            raise ValueError(f"its version is {version}, this program reads {VERSION}")
        if length > min(size, LARGEST_HEADER):
            raise ValueError("its header is cut off")
        raw = file.read(length)
    if zlib.crc32(raw) != crc:
        raise ValueError("its header is damaged")
    content = json.loads(raw)
    written = content.pop("tokenizer")
    external = json.loads(written).get("kind") == EXTERNAL
    tokenizer: Tokenizer | ExternalTokenizer = from_json(written) if external else Tokenizer.from_json(written)
    header = Header(**content)
    expected = PREFIX.size + length + header.num * header.length * header.itemsize
    if size != expected:
        raise ValueError(f"it has {size:,} bytes and its header promises {expected:,}")
    if tokenizer.hash != header.tokenizer_hash or tokenizer.vocab_size != header.vocab_size:
        raise ValueError("its tokenizer is not the one its header names")
    return header, PREFIX.size + length, tokenizer
