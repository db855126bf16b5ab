"""Tokenizers of other libraries, with the interface of ours that ``unmask.Model`` uses.

A transformers or tokenizers tokenizer, or a plain alphabet such as that of a protein model. Files are read as data: no
code that comes with a checkpoint is run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unmask.files import write_whole
from unmask.tokenizers.tokenizer import EXTERNAL, Ids, byte_spelling, import_tokenizers

Kind = Literal["characters", "bpe", "wordpiece", "metaspace"]
Frame = tuple[tuple[int, ...], tuple[int, ...]]

STORED = ("vocab", "mask_id", "frame", "around", "eos_id", "pad_id", "written")
METASPACE = "▁"  # U+2581: a space in SentencePiece's vocabularies
UNUSED = re.compile(r"\[unused\d+\]")  # BERT's unused ids
MASKS = ("[MASK]", "<mask>", "<|mdm_mask|>", "<|mask|>", "<|MASK|>", "|<MASK>|")
# Punctuation that BERT's vocabularies contain as words, although no space precedes it in text.
CLOSING = re.compile(r"[^\w\s]+")
GLUED = re.compile(r"(?<=\w[-'\u2019/]) (?=\w)")


@dataclass(frozen=True)
class ExternalTokenizer:
    """A tokenizer of another library. ``vocab[i]`` is the text of id i as in its files.

    special_ids: ids that are not data, including the mask: they are never drawn, and decoding omits them. frame: ids
    that ``unmask.Model`` puts before and after a text, as part of the canvas. around: the special tokens that the
    network expects around a text, such as [CLS] and [SEP]: masked LMs add them around every canvas, and
    they are not part of it.
    """

    kind: Kind
    vocab: tuple[str, ...]
    mask_id: int | None = None
    special_ids: frozenset[int] = frozenset()
    frame: Frame = ((), ())
    around: Frame = ((), ())
    eos_id: int | None = None
    pad_id: int | None = None
    other_ends: tuple[int, ...] = ()  # ids that end a text as eos_id does, which is the one that is written
    encoder: Callable[[str], Sequence[int]] | None = field(default=None, repr=False, compare=False)
    written: str | None = field(default=None, repr=False, compare=False)  # the tokenizer.json of its encoder

    @property
    def vocab_size(self) -> int:
        """The number of ids, including those that are not data."""
        return len(self.vocab)

    @property
    def mask_token(self) -> str | None:
        """How the mask is written in a text."""
        return None if self.mask_id is None or self.mask_id >= len(self.vocab) else self.vocab[self.mask_id]

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without anything around it."""
        if self.encoder is not None:
            return [int(i) for i in self.encoder(text)]
        unknown = next(((at, c) for at, c in enumerate(text) if c not in self._ids), None)
        if unknown is not None:
            at, character = unknown
            raise ValueError(
                f"the character {character!r} at {at} is not among the tokenizer's {len(self._ids)}: "
                f"{''.join(self._ids)}"
            )
        return [self._ids[character] for character in text]

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return [np.asarray(self.encode(text), dtype=np.int64) for text in texts]

    def decode(
        self, ids: Iterable[int], *, errors: str = "replace", special: bool = False, mask: str | None = None
    ) -> str:
        """The text of the ids; arguments as for our tokenizers."""
        text = b"".join(self.pieces(ids, special=special, mask=mask)).decode(errors=errors)
        return GLUED.sub("", text) if self.kind == "wordpiece" else text

    def pieces(self, ids: Iterable[int], *, special: bool = False, mask: str | None = None) -> list[bytes]:
        """One piece of UTF-8 per id; a word includes the space before it. Ids that are not data have none."""
        pieces = []
        for i in map(int, ids):
            if i == self.mask_id:
                if mask is None:
                    raise ValueError(f"id {i} is the mask: it has no text")
                pieces.append(mask.encode())
            elif not 0 <= i < self.vocab_size:
                raise ValueError(f"id {i} is not a token of this vocabulary, 0..{self.vocab_size - 1}")
            elif i in self.special_ids or i in (self.eos_id, self.pad_id, *self.other_ends):
                pieces.append(self.vocab[i].encode() * special)
            else:
                pieces.append(self._pieces[i])
        return pieces

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as a tokenizer.json of this project, which ``restored`` reads."""
        write_whole(Path(path), self.to_json().encode())

    def to_json(self) -> str:
        """Its contents, for ``from_json``."""
        if self.encoder is not None and self.written is None:
            raise ValueError("a slow tokenizer of transformers cannot be written: make it a fast one")
        content: dict[str, Any] = {name: getattr(self, name) for name in STORED}
        content |= {"format": 1, "kind": EXTERNAL, "spelling": self.kind, "special_ids": sorted(self.special_ids)}
        if self.other_ends:  # without them it is what earlier versions wrote
            content["other_ends"] = self.other_ends
        return json.dumps(content, ensure_ascii=False)

    @cached_property
    def hash(self) -> str:
        """sha256 of its contents: tokenizers with the same hash give the same ids."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @cached_property
    def _pieces(self) -> tuple[bytes, ...]:
        return tuple(_piece(self.kind, token) for token in self.vocab)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.vocab) if i not in self.special_ids and len(token) == 1}


def restored(path: Path) -> ExternalTokenizer:
    """Read what ``save`` wrote."""
    try:
        return from_json(path.read_bytes().decode())
    except ValueError as error:
        raise ValueError(f"{path} is not a whole tokenizer: {error}") from None


def from_json(text: str) -> ExternalTokenizer:
    """Read what ``to_json`` returned."""
    try:
        content = json.loads(text)
        written = content["written"]
        tokenizer = alphabet(content["vocab"]) if written is None else parsed(written, {})
        around: dict[str, Any] = {name: tuple(map(tuple, content[name])) for name in ("frame", "around")}
        ids: dict[str, Any] = {name: content[name] for name in ("mask_id", "eos_id", "pad_id")}
        ids["other_ends"] = tuple(content.get("other_ends", ()))
        return replace(
            tokenizer, kind=content["spelling"], special_ids=frozenset(content["special_ids"]), **around, **ids
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(repr(error)) from None


def parsed(written: str, names: dict[str, str]) -> ExternalTokenizer:
    """A tokenizer from the contents of its tokenizer.json."""
    try:
        return wrapped(import_tokenizers().Tokenizer.from_str(written), names)
    except ImportError:
        raise
    except Exception as error:  # the tokenizers package raises bare Exceptions
        raise ValueError(f"the tokenizer in the checkpoint cannot be read: {error}") from error


def alphabet(vocab: Sequence[str], names: dict[str, str] | None = None) -> ExternalTokenizer:
    """One id per character; tokens of more than one character are special."""
    vocab = [token.rstrip("\r") for token in vocab]
    special = frozenset(i for i, token in enumerate(vocab) if len(token) != 1)
    return of_vocabulary("characters", vocab, special, names or {}, None)


def wrapped(tokenizer: Any, names: dict[str, str] | None = None) -> ExternalTokenizer:
    """A ``tokenizers.Tokenizer``. names: the special tokens, as in tokenizer_config.json (mask_token, ...)."""
    ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    vocab = [""] * (max(ids.values()) + 1)
    for token, i in ids.items():
        vocab[i] = token
    added = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    if is_alphabet(vocab):
        return alphabet(vocab, names)

    def encoder(text: str) -> Sequence[int]:
        ids: Sequence[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    result = of_vocabulary(_kind(tokenizer), vocab, frozenset(added), names or {}, encoder)
    return replace(result, written=tokenizer.to_str())


def of_transformers(tokenizer: Any) -> ExternalTokenizer:
    """A tokenizer of transformers, fast or slow."""
    names = {name: str(value) for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    if getattr(tokenizer, "is_fast", False):
        return wrapped(tokenizer.backend_tokenizer, names)
    ids: dict[str, int] = tokenizer.get_vocab()
    vocab = [""] * (max(ids.values()) + 1)
    for token, i in ids.items():
        vocab[i] = token
    if is_alphabet(vocab):
        return alphabet(vocab, names)
    kind: Kind = "metaspace" if any(token.startswith(METASPACE) for token in vocab) else "wordpiece"
    if not any(token.startswith(("##", METASPACE)) for token in vocab):
        kind = "bpe"
    special = frozenset(tokenizer.all_special_ids)
    return of_vocabulary(kind, vocab, special, names, lambda text: tokenizer.encode(text, add_special_tokens=False))


def of_vocabulary(
    kind: Kind,
    vocab: Sequence[str],
    special: frozenset[int],
    names: dict[str, str],
    encoder: Callable[[str], Sequence[int]] | None,
) -> ExternalTokenizer:
    place = {token: i for i, token in enumerate(vocab)}
    named = {place[token] for token in names.values() if token in place}
    mask = _first(place, [names.get("mask_token"), *MASKS])
    no_data = {i for i, token in enumerate(vocab) if not token or UNUSED.fullmatch(token)}
    special = frozenset(special | no_data | named | ({mask} if mask is not None else set()))
    pad = _first(place, [names.get("pad_token"), "[PAD]", "<pad>"])
    before = _first(place, [names.get("cls_token"), "[CLS]", "<cls>", "<s>"])
    after = _first(place, [names.get("sep_token"), "[SEP]", "<sep>", names.get("eos_token"), "</s>", "<eos>"])
    around = (() if before is None else (before,)), (() if after is None else (after,))
    return ExternalTokenizer(kind, tuple(vocab), mask, special, around=around, pad_id=pad, encoder=encoder)


def _first(place: dict[str, int], tokens: Iterable[str | None]) -> int | None:
    return next((place[token] for token in tokens if token is not None and token in place), None)


def _piece(kind: Kind, token: str) -> bytes:
    if kind == "bpe":
        byte = _bytes()
        # Tokens that were added later are plain text.
        return bytes(byte[c] for c in token) if all(c in byte for c in token) else token.encode()
    if kind == "metaspace":
        if (code := re.fullmatch(r"<0x([0-9A-F]{2})>", token)) is not None:
            return bytes([int(code[1], 16)])
        return token.replace(METASPACE, " ").encode()
    if kind == "wordpiece":
        if token.startswith("##") and len(token) > 2:
            return token[2:].encode()
        return (token if CLOSING.fullmatch(token) else f" {token}").encode()
    return token.encode()


@cache
def _bytes() -> dict[str, int]:
    return {character: i for i, character in enumerate(byte_spelling())}


def _kind(tokenizer: Any) -> Kind:
    """How a tokenizer's tokens encode text, according to its JSON."""
    parts = json.loads(tokenizer.to_str())
    written = json.dumps([parts.get("pre_tokenizer"), parts.get("decoder"), parts.get("normalizer")])
    if parts["model"]["type"] == "WordPiece":
        return "wordpiece"
    if '"ByteLevel"' in written:
        return "bpe"
    if '"Metaspace"' in written or METASPACE in written or parts["model"]["type"] == "Unigram":
        return "metaspace"
    raise ValueError(f"a {parts['model']['type']} tokenizer whose tokens neither begin words nor spell bytes")


def is_alphabet(vocab: Sequence[str]) -> bool:
    """Whether it has only single characters and special names in brackets."""
    rest = [token for token in vocab if len(token.rstrip("\r")) != 1]
    return len(rest) < len(vocab) and all(re.fullmatch(r"\[\w+\]|<[^<>]+>|", token.rstrip("\r")) for token in rest)
