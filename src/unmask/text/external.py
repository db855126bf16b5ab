"""Other people's tokenizers, with the interface that ``unmask.Model`` uses of ours.

A transformers or tokenizers tokenizer, or a plain alphabet such as that of a protein model. Files are read as data: no
code that came with a checkpoint is run.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unmask.models.files import write_whole
from unmask.text.tokenizer import EXTERNAL, Ids, byte_spelling, import_tokenizers

Kind = Literal["characters", "bpe", "wordpiece", "metaspace"]
Frame = tuple[tuple[int, ...], tuple[int, ...]]

STORED = ("vocab", "mask_id", "frame", "around", "eos_id", "pad_id", "written")
METASPACE = "▁"  # U+2581: how SentencePiece's vocabularies spell a space
UNUSED = re.compile(r"\[unused\d+\]")  # BERT's ids that no text has
MASKS = ("[MASK]", "<mask>", "<|mdm_mask|>", "<|mask|>")
# Marks that BERT's vocabularies hold as words of their own, though no space stands before them in text.
CLOSING = re.compile(r"[^\w\s]+")
GLUED = re.compile(r"(?<=\w[-'\u2019/]) (?=\w)")


@dataclass(frozen=True)
class ExternalTokenizer:
    """Somebody else's tokenizer. ``vocab[i]`` is the text of id i as its own files spell it.

    special_ids: ids that are no data, the mask among them: they are never drawn, and decoding leaves them out. frame:
    ids that ``unmask.Model`` puts before and after a text, as part of the canvas. around: the special tokens that the
    network was trained to see around a text, such as [CLS] and [SEP]: the masked LMs' adapters put them around every
    canvas, and they are no part of it.
    """

    kind: Kind
    vocab: tuple[str, ...]
    mask_id: int | None = None
    special_ids: frozenset[int] = frozenset()
    frame: Frame = ((), ())
    around: Frame = ((), ())
    eos_id: int | None = None
    pad_id: int | None = None
    encoder: Callable[[str], Sequence[int]] | None = field(default=None, repr=False, compare=False)
    written: str | None = field(default=None, repr=False, compare=False)  # the tokenizer.json of its encoder

    @property
    def vocab_size(self) -> int:
        """The number of ids, those that are no data included."""
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
        """The text of the ids; arguments as for our own tokenizers."""
        text = b"".join(self.pieces(ids, special=special, mask=mask)).decode(errors=errors)
        return GLUED.sub("", text) if self.kind == "wordpiece" else text

    def pieces(self, ids: Iterable[int], *, special: bool = False, mask: str | None = None) -> list[bytes]:
        """One piece of UTF-8 per id; a word brings the space in front of it. Ids that are no data have none."""
        pieces = []
        for i in map(int, ids):
            if i == self.mask_id:
                if mask is None:
                    raise ValueError(f"id {i} is the mask: it has no text")
                pieces.append(mask.encode())
            elif not 0 <= i < self.vocab_size:
                raise ValueError(f"id {i} is not a token of this vocabulary, 0..{self.vocab_size - 1}")
            elif i in self.special_ids or i in (self.eos_id, self.pad_id):
                pieces.append(self.vocab[i].encode() * special)
            else:
                pieces.append(self._pieces[i])
        return pieces

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as a tokenizer.json of this project, which ``restored`` reads."""
        write_whole(Path(path), self.to_json().encode())

    def to_json(self) -> str:
        """Its content, of which ``from_json`` makes it again."""
        if self.encoder is not None and self.written is None:
            raise ValueError("a slow tokenizer of transformers cannot be written: make it a fast one")
        content: dict[str, Any] = {name: getattr(self, name) for name in STORED}
        content |= {"format": 1, "kind": EXTERNAL, "spelling": self.kind, "special_ids": sorted(self.special_ids)}
        return json.dumps(content, ensure_ascii=False)

    @cached_property
    def hash(self) -> str:
        """sha256 of its content: two tokenizers with one hash give the same ids."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @cached_property
    def _pieces(self) -> tuple[bytes, ...]:
        return tuple(_piece(self.kind, token) for token in self.vocab)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.vocab) if i not in self.special_ids and len(token) == 1}


def restored(path: Path) -> ExternalTokenizer:
    """What ``save`` wrote."""
    try:
        return from_json(path.read_bytes().decode())
    except ValueError as error:
        raise ValueError(f"{path} is not a whole tokenizer: {error}") from None


def from_json(text: str) -> ExternalTokenizer:
    """What ``to_json`` gave."""
    try:
        content = json.loads(text)
        written = content["written"]
        made = alphabet(content["vocab"]) if written is None else parsed(written, {})
        around: dict[str, Any] = {name: tuple(map(tuple, content[name])) for name in ("frame", "around")}
        ids: dict[str, Any] = {name: content[name] for name in ("mask_id", "eos_id", "pad_id")}
        return replace(made, kind=content["spelling"], special_ids=frozenset(content["special_ids"]), **around, **ids)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(repr(error)) from None


def load(folder: str | os.PathLike[str]) -> ExternalTokenizer | None:
    """The tokenizer of a checkpoint's folder, or None if there is none.

    tokenizer.json, or vocab.txt (WordPiece, or an alphabet), or vocab.json with merges.txt, or fairseq's dict.txt; what
    they do not say about special tokens is looked up in tokenizer_config.json and special_tokens_map.json.
    """
    folder = Path(folder)
    names = _names(folder)
    try:
        if (folder / "tokenizer.json").is_file():
            return wrapped(import_tokenizers().Tokenizer.from_file(str(folder / "tokenizer.json")), names)
        if (folder / "vocab.txt").is_file():
            # split, not splitlines: some of BERT's tokens are line separators of Unicode.
            vocab = (folder / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
            return alphabet(vocab, names) if _is_alphabet(vocab) else _word_piece(vocab, folder, names)
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            return _byte_level(folder, names)
        if (folder / "dict.txt").is_file():
            return fairseq(folder / "dict.txt")
    except ImportError:
        raise
    except Exception as error:  # the tokenizers package raises bare Exceptions
        raise ValueError(f"{folder}: its tokenizer cannot be read: {error}") from error
    return None


def parsed(written: str, names: dict[str, str]) -> ExternalTokenizer:
    """A tokenizer from the content of its tokenizer.json."""
    try:
        return wrapped(import_tokenizers().Tokenizer.from_str(written), names)
    except ImportError:
        raise
    except Exception as error:  # the tokenizers package raises bare Exceptions
        raise ValueError(f"the tokenizer in the checkpoint cannot be read: {error}") from error


def fairseq(path: Path) -> ExternalTokenizer:
    """The alphabet of fairseq's dict.txt: <s> <pad> </s> <unk>, one symbol per line with its count, and <mask>."""
    symbols = [line.rsplit(" ", 1)[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    # A dictionary is filled up to a multiple of eight with names that stand for nothing.
    real = [symbol for symbol in symbols if not symbol.startswith("madeupword")]
    if not real or any(len(symbol) != 1 for symbol in real):
        raise ValueError(f"{path}: its symbols are not single characters, so they are not an alphabet")
    return alphabet(["<s>", "<pad>", "</s>", "<unk>", *symbols, "<mask>"], {"cls_token": "<s>", "sep_token": "</s>"})


def alphabet(vocab: Sequence[str], names: dict[str, str] | None = None) -> ExternalTokenizer:
    """One id per character; tokens of more than one character are special."""
    vocab = [token.rstrip("\r") for token in vocab]
    special = frozenset(i for i, token in enumerate(vocab) if len(token) != 1)
    return _made("characters", vocab, special, names or {}, None)


def wrapped(tokenizer: Any, names: dict[str, str] | None = None) -> ExternalTokenizer:
    """A ``tokenizers.Tokenizer``. names: which token is which, as tokenizer_config.json has them (mask_token, ...)."""
    ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    vocab = [""] * (max(ids.values()) + 1)
    for token, i in ids.items():
        vocab[i] = token
    added = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    if _is_alphabet(vocab):
        return alphabet(vocab, names)

    def encoder(text: str) -> Sequence[int]:
        found: Sequence[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return found

    made = _made(_kind(tokenizer), vocab, frozenset(added), names or {}, encoder)
    return replace(made, written=tokenizer.to_str())


def of_transformers(tokenizer: Any) -> ExternalTokenizer:
    """A tokenizer of transformers, fast or slow."""
    names = {name: str(value) for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    if getattr(tokenizer, "is_fast", False):
        return wrapped(tokenizer.backend_tokenizer, names)
    ids: dict[str, int] = tokenizer.get_vocab()
    vocab = [""] * (max(ids.values()) + 1)
    for token, i in ids.items():
        vocab[i] = token
    if _is_alphabet(vocab):
        return alphabet(vocab, names)
    kind: Kind = "metaspace" if any(token.startswith(METASPACE) for token in vocab) else "wordpiece"
    if not any(token.startswith(("##", METASPACE)) for token in vocab):
        kind = "bpe"
    special = frozenset(tokenizer.all_special_ids)
    return _made(kind, vocab, special, names, lambda text: tokenizer.encode(text, add_special_tokens=False))


def _made(
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
        # Tokens that were added later are spelt plainly.
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
    """What a tokenizers' JSON says about how its tokens spell text."""
    parts = json.loads(tokenizer.to_str())
    written = json.dumps([parts.get("pre_tokenizer"), parts.get("decoder"), parts.get("normalizer")])
    if parts["model"]["type"] == "WordPiece":
        return "wordpiece"
    if '"ByteLevel"' in written:
        return "bpe"
    if '"Metaspace"' in written or METASPACE in written or parts["model"]["type"] == "Unigram":
        return "metaspace"
    raise ValueError(f"a {parts['model']['type']} tokenizer whose tokens neither begin words nor spell bytes")


def _is_alphabet(vocab: Sequence[str]) -> bool:
    """Single characters and special names in brackets, and nothing else."""
    rest = [token for token in vocab if len(token.rstrip("\r")) != 1]
    return len(rest) < len(vocab) and all(re.fullmatch(r"\[\w+\]|<[^<>]+>|", token.rstrip("\r")) for token in rest)


def _names(folder: Path) -> dict[str, str]:
    """The special tokens by their names: mask_token, cls_token, ..."""
    names: dict[str, str] = {}
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / file).is_file():
            try:
                content = json.loads((folder / file).read_text(encoding="utf-8"))
            except ValueError as error:
                raise ValueError(f"{folder / file}: {error}") from error
            for name, value in content.items() if isinstance(content, dict) else ():
                token = value.get("content") if isinstance(value, dict) else value
                if name.endswith("_token") and isinstance(token, str):
                    names[name] = token
    return names


def _word_piece(vocab: Sequence[str], folder: Path, names: dict[str, str]) -> ExternalTokenizer:
    """BERT's tokenizer from its vocab.txt."""
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    lower = settings.get("do_lower_case")
    if lower is None:  # a vocabulary without capitals is one of lower-cased text
        lower = not any(token != token.lower() for token in vocab if not re.fullmatch(r"\[\w+\]", token))
    import_tokenizers()
    made: Any = importlib.import_module("tokenizers.implementations").BertWordPieceTokenizer(
        {token: i for i, token in enumerate(vocab)}, lowercase=bool(lower), strip_accents=settings.get("strip_accents")
    )
    special = frozenset(i for i, token in enumerate(vocab) if token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))

    def encoder(text: str) -> Sequence[int]:
        found: Sequence[int] = made.encode(text, add_special_tokens=False).ids
        return found

    return replace(_made("wordpiece", vocab, special, names, encoder), written=made.to_str())


def _byte_level(folder: Path, names: dict[str, str]) -> ExternalTokenizer:
    """RoBERTa's tokenizer from GPT-2's kind of files."""
    tokenizers = import_tokenizers()
    model = tokenizers.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    usual = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    made.add_special_tokens([token for token in usual if made.token_to_id(token) is not None])
    return wrapped(made, names)
