"""Writing a token file in the format of ``data.tokens``."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from unmask.data.tokens import MAGIC, PREFIX, VERSION, Header, TokenFile, smallest_dtype
from unmask.files import sync
from unmask.tokenizers.external import ExternalTokenizer
from unmask.tokenizers.tokenizer import Tokenizer


class TokenWriter:
    """Writes one token file in blocks; it appears with ``finish``, and without that nothing is left behind."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        tokenizer: Tokenizer | ExternalTokenizer,
        length: int,
        layout: str,
        *,
        dtype: str | None = None,
        source: str = "",
    ) -> None:
        self.path = Path(path)
        if self.path.exists():
            raise ValueError(f"{self.path} already exists and is not overwritten")
        self._partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        dtype = dtype or smallest_dtype(tokenizer.vocab_size)
        # A header of the final size is reserved now: counts of 19 digits, checksums of 64.
        most = (1 << 63) - 1
        self._header = Header(
            dtype, tokenizer.vocab_size, length, most, layout, most, most, tokenizer.hash, "0" * 64, source
        )
        self._tokenizer = tokenizer
        # Up to a multiple of 64 bytes, so that the tokens are aligned.
        self._space = -(PREFIX.size + len(self._json())) // 64 * -64 - PREFIX.size
        self._num = 0
        self._digest = hashlib.sha256()

    @property
    def length(self) -> int:
        return self._header.length

    @property
    def num(self) -> int:
        """The number of sequences written so far."""
        return self._num

    def __enter__(self) -> TokenWriter:
        self._file: BinaryIO = self._partial.open("wb")
        self._file.write(b"\0" * (PREFIX.size + self._space))
        return self

    def write(self, block: NDArray[Any]) -> None:
        """Append sequences [n, length]."""
        if block.ndim != 2 or block.shape[1] != self._header.length:
            raise ValueError(f"block of shape {block.shape}: [n, {self._header.length}] is needed")
        if block.size and not (block.min() >= 0 and block.max() < self._header.vocab_size):
            raise ValueError(
                f"ids from {block.min()} to {block.max()}: the vocabulary is 0..{self._header.vocab_size - 1}"
            )
        raw = block.astype(np.dtype(self._header.dtype).newbyteorder("<")).tobytes()
        self._file.write(raw)
        self._digest.update(raw)
        self._num += len(block)

    def finish(self, *, characters: int, bytes: int) -> TokenFile:
        """Complete the header, flush everything to disk, and rename the file."""
        if not self._num:
            raise ValueError(f"{self.path}: no sequence was written")
        self._header = Header(
            **(
                asdict(self._header)
                | {"num": self._num, "characters": characters, "bytes": bytes}
                | {"sha256": self._digest.hexdigest()}
            )
        )
        header = self._json().ljust(self._space)
        self._file.seek(0)
        self._file.write(PREFIX.pack(b"\0" * 8, VERSION, zlib.crc32(header), len(header)) + header)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.seek(0)
        self._file.write(MAGIC)
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._partial, self.path)
        sync(self.path.parent)
        return TokenFile.open(self.path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        finally:
            self._partial.unlink(missing_ok=True)

    def _json(self) -> bytes:
        return json.dumps({**asdict(self._header), "tokenizer": self._tokenizer.to_json()}).encode()
