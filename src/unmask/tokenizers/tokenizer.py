"""Tokenizers: text to ids and back, immutable, hashed, and stored in one JSON file.

Data ids are 0 .. vocab_size - 1; the mask is not one of them (a model's mask_id is normally vocab_size). If there is an
``eos`` it is the last id and also the padding, as in GPT-2. Decoding needs only this file; encoding with a BPE needs
the ``tokenizers`` package.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.files import content_of, write_whole
from unmask.tokenizers.joining import joined
from unmask.tokenizers.molecules import SMILES, is_selfies

Kind = Literal["characters", "bytes", "bpe", "gpt2", "smiles", "selfies", "levels", "metaspace"]
KINDS: tuple[str, ...] = get_args(Kind)
MADE = tuple(kind for kind in KINDS if kind != "metaspace")  # from texts, or by name; a metaspace is another model's
Layout = Literal["wrapped", "rows"]  # of a token file: text cut into sequences, or one document each
LAYOUTS: tuple[str, ...] = get_args(Layout)
Ids = NDArray[np.int64]

BPE = ("bpe", "gpt2", "wordpiece", "metaspace")  # kinds in which a word's space belongs to its first token
ROWS = ("smiles", "selfies", "levels")  # kinds whose documents are rows, one molecule or image each
EOS = "<eos>"
EXTERNAL = "foreign"  # the kind of other libraries' tokenizers, which unmask.tokenizers.external reads and writes
FORMAT = 1
SELFIES = re.compile(r"\[[^\]]*\]")
BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte of an unknown character in SentencePiece
CLOSING = " .,;:!?)'\n"  # no space is put before these at the start of a text


@dataclass(frozen=True)
class Tokenizer:
    """``vocab[i]`` is the text of id i: bytes as latin-1, a BPE's tokens in GPT-2's byte encoding, others plainly.

    metaspace: some of a SentencePiece model's pieces, with their spaces. ``merges`` are then the pieces that may be
    formed, by rank and each as two parts; some are only intermediate and have no id.
    """

    kind: Kind
    vocab: tuple[str, ...]
    merges: tuple[tuple[str, str], ...] = ()
    eos_id: int | None = None
    pad_id: int | None = None
    # The mask is not one of our tokens, and the frame of a text follows from the layout; external tokenizers may
    # differ.
    mask_id: ClassVar[None] = None
    mask_token: ClassVar[None] = None
    frame: ClassVar[None] = None
    other_ends: ClassVar[tuple[()]] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}: a tokenizer is one of {', '.join(KINDS)}")
        if not self.vocab or len(set(self.vocab)) != len(self.vocab):
            raise ValueError(f"vocab of {len(self.vocab)} entries: it must not be empty and no entry may come twice")
        for name in ("eos_id", "pad_id"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < len(self.vocab):
                raise ValueError(f"{name}={value}: it must be one of the ids 0..{len(self.vocab) - 1}")

    @property
    def vocab_size(self) -> int:
        """The number of data ids, without the mask."""
        return len(self.vocab)

    @cached_property
    def hash(self) -> str:
        """sha256 of the canonical JSON: tokenizers with the same hash give the same ids."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of a text; eos is never among them."""
        ids: list[int] = self.encode_many([text])[0].tolist()
        return ids

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text; a BPE works on them in parallel."""
        if self.kind in ("bpe", "gpt2"):
            encodings = self._bpe.encode_batch_fast(texts, add_special_tokens=False)
            return [np.asarray(encoding.ids, dtype=np.int64) for encoding in encodings]
        if self.kind == "bytes":
            return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64) for text in texts]
        if self.kind == "characters":
            return [self._encode_characters(text) for text in texts]
        if self.kind == "metaspace":
            return [self._encode_pieces(text) for text in texts]
        return [self._look_up(split(self.kind, text)) for text in texts]

    def decode(
        self, ids: Iterable[int], *, errors: str = "replace", special: bool = False, mask: str | None = None
    ) -> str:
        """The text of the ids.

        eos and padding are omitted, or with ``special`` written as <eos>. Ids of vocab_size and above are masks: they
        are written as ``mask``, or refused without one. Incomplete characters become U+FFFD (``errors``).
        """
        pieces = self.pieces(ids, special=special, mask=mask)
        separator = b" " if self.kind == "levels" else b""
        return separator.join(pieces).decode(errors=errors)

    def pieces(self, ids: Iterable[int], *, special: bool = False, mask: str | None = None) -> list[bytes]:
        """One piece of UTF-8 per id, for displaying growing text: decode a run of pieces, never one alone."""
        pieces = []
        for i in map(int, ids):
            if 0 <= i < self.vocab_size:
                is_special = i in (self.eos_id, self.pad_id)
                pieces.append(EOS.encode() * special if is_special else self._pieces[i])
            elif mask is not None and i >= self.vocab_size:
                pieces.append(mask.encode())
            else:
                raise ValueError(f"id {i} is not a token of this vocabulary, 0..{self.vocab_size - 1}")
        return pieces

    def to_json(self) -> str:
        """The canonical JSON: sorted keys, no spaces, ASCII."""
        content = {
            "format": FORMAT,
            "kind": self.kind,
            "vocab": self.vocab,
            "merges": self.merges,
            "eos_id": self.eos_id,
            "pad_id": self.pad_id,
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        try:
            content = json.loads(text)
            if content["format"] != FORMAT:
                raise ValueError(f"its format is {content['format']!r}, this version reads {FORMAT}")
            merges = tuple((str(a), str(b)) for a, b in content["merges"])
            return cls(content["kind"], tuple(content["vocab"]), merges, content["eos_id"], content["pad_id"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"not a tokenizer of unmask: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON file atomically."""
        write_whole(Path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        try:
            return cls.from_json(content_of(Path(path)).decode())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @cached_property
    def _pieces(self) -> tuple[bytes, ...]:
        if self.kind == "bytes":
            return tuple(bytes([i]) for i in range(256)) + (b"",) * (self.vocab_size - 256)
        if self.kind in ("bpe", "gpt2"):
            byte = {character: i for i, character in enumerate(byte_spelling())}
            # A special token's name is not in the byte encoding; its piece is never used.
            return tuple(bytes(byte.get(c, 0) for c in token) for token in self.vocab)
        if self.kind == "metaspace":
            matches = [BYTE.fullmatch(token) for token in self.vocab]
            return tuple(
                bytes([int(byte[1], 16)]) if byte else token.encode()
                for token, byte in zip(self.vocab, matches, strict=True)
            )
        return tuple(token.encode() for token in self.vocab)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.vocab) if i not in (self.eos_id, self.pad_id)}

    @cached_property
    def _bpe(self) -> Any:
        tokenizers = import_tokenizers()
        vocab = {token: i for i, token in enumerate(self.vocab)}
        bpe = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, list(self.merges)))
        bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        return bpe

    @cached_property
    def _by_code_point(self) -> Ids:
        table = np.full(max(map(ord, self._ids), default=0) + 1, -1, dtype=np.int64)
        for character, i in self._ids.items():
            table[ord(character)] = i
        return table

    def _encode_characters(self, text: str) -> Ids:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        table = self._by_code_point
        ids: Ids = np.where(codes < len(table), table[np.minimum(codes, len(table) - 1)], -1)
        if (ids < 0).any():
            where = int(np.argmax(ids < 0))
            raise ValueError(f"the character {text[where]!r} at {where} is not among the tokenizer's {len(self._ids)}")
        return ids

    @cached_property
    def _rank(self) -> dict[str, float]:
        return {a + b: float(i) for i, (a, b) in enumerate(self.merges)}

    def _encode_pieces(self, text: str) -> Ids:
        """As in SentencePiece: a space before the first word, merges, and bytes for characters without an id.

        A piece without an id is cut into the longest ones that have one.
        """
        if text and text[0] not in CLOSING:
            text = f" {text}"
        known = {character for piece in (*self._ids, *self._rank) for character in piece}
        ids: list[int] = []
        for start, stop in joined([c if c in known else None for c in text], self._rank):
            while start < stop:
                end = next((end for end in range(stop, start, -1) if text[start:end] in self._ids), start)
                ids += [self._ids[text[start:end]]] if end > start else self._bytes_of(text, start)
                start = max(end, start + 1)
        return np.array(ids, dtype=np.int64)

    def _bytes_of(self, text: str, at: int) -> list[int]:
        spelt = [f"<0x{byte:02X}>" for byte in text[at].encode()]
        if not all(byte in self._ids for byte in spelt):
            raise ValueError(f"the character {text[at]!r} at {at} is not among the tokenizer's {len(self._ids)} pieces")
        return [self._ids[byte] for byte in spelt]

    def _look_up(self, tokens: list[str]) -> Ids:
        try:
            return np.array([self._ids[token] for token in tokens], dtype=np.int64)
        except KeyError as error:
            raise ValueError(
                f"{error.args[0]!r} is not among the tokenizer's {len(self._ids)} {self.kind} tokens"
            ) from None


def kind_of(path: Path) -> str | None:
    """The kind of a tokenizer.json of this project; None for one of tokenizers or transformers, or no file."""
    try:
        content = json.loads(content_of(path)) if path.is_file() else None
    except (ValueError, RecursionError):
        return None
    return content["kind"] if isinstance(content, dict) and content.keys() >= {"format", "kind"} else None


def split(kind: str, text: str) -> list[str]:
    """The tokens of one molecule, or the grey levels of one image, as text."""
    if kind == "smiles":
        return SMILES.findall(text)
    if kind == "selfies":
        if not is_selfies(text):
            raise ValueError(f"{text!r} is not SELFIES, which is bracketed symbols alone, as in [C][=C][O]")
        return SELFIES.findall(text)
    tokens = text.split()
    for token in tokens:
        if not (token.isascii() and token.isdigit()):
            raise ValueError(f"{token!r} is not a grey level: levels are integers from 0, separated by spaces")
    return [str(int(token)) for token in tokens]


def byte_spelling() -> list[str]:
    """The printable character for each byte in GPT-2's files: itself if visible, else one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(i if i in visible else next(hidden)) for i in range(256)]


def import_tokenizers() -> Any:
    import tokenizers  # imported when first needed

    return tokenizers
