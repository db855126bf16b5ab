"""New tokenizers: the vocabulary of some texts, molecules or images, or of published files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from unmask.tokenizers.tokenizer import EOS, Kind, Tokenizer, byte_spelling, import_tokenizers, split


def characters(texts: Iterable[str], *, eos: bool = True) -> Tokenizer:
    """One id per character that occurs in these texts, in code point order."""
    alphabet: set[str] = set()
    for text in texts:
        alphabet.update(text)
    return _closed("characters", sorted(alphabet), eos)


def bytes_of_utf8(*, eos: bool = True) -> Tokenizer:
    """One id per byte. With eos there are 257 ids, one too many for a uint8 token file."""
    return _closed("bytes", [chr(i) for i in range(256)], eos)


def smiles(molecules: Iterable[str], *, eos: bool = True) -> Tokenizer:
    """The SMILES tokens that occur in these molecules."""
    return _closed("smiles", _tokens("smiles", molecules), eos)


def selfies(molecules: Iterable[str], *, eos: bool = True) -> Tokenizer:
    """The SELFIES symbols that occur in these molecules."""
    return _closed("selfies", _tokens("selfies", molecules), eos)


def _tokens(kind: str, molecules: Iterable[str]) -> list[str]:
    return sorted({token for molecule in molecules for token in split(kind, molecule)})


def levels(count: int) -> Tokenizer:
    """Grey levels 0 .. count - 1 of images of one size: there is no eos and no padding."""
    return _closed("levels", [str(i) for i in range(count)], eos=False)


def bpe(texts: Iterable[str], size: int, *, eos: bool = True) -> Tokenizer:
    """Byte-level BPE trained on the texts; ``size`` ids with eos, or fewer if the texts have too few pairs."""
    smallest = 256 + eos
    if size < smallest:
        raise ValueError(f"vocab={size}: a byte-level BPE needs at least {smallest} ids")
    tokenizers = import_tokenizers()
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size - eos, show_progress=False, initial_alphabet=sorted(byte_spelling())
    )
    model.train_from_iterator(texts, trainer)
    trained = json.loads(model.to_str())["model"]
    vocab = sorted(trained["vocab"], key=trained["vocab"].__getitem__)
    return _closed("bpe", vocab, eos, tuple((a, b) for a, b in trained["merges"]))


def gpt2(encoder: Path, merges: Path) -> Tokenizer:
    """GPT-2's BPE with 50,257 ids from its two published files; ``weights.gpt2_tokenizer`` fetches them."""
    ids: dict[str, int] = json.loads(encoder.read_text(encoding="utf-8"))
    lines = merges.read_text(encoding="utf-8").split("\n")[1:]
    pairs = [tuple(line.split(" ")) for line in lines if line]
    eos = ids["<|endoftext|>"]
    return Tokenizer("gpt2", tuple(sorted(ids, key=ids.__getitem__)), tuple((a, b) for a, b in pairs), eos, eos)


def _closed(kind: Kind, vocab: list[str], eos: bool, merges: tuple[tuple[str, str], ...] = ()) -> Tokenizer:
    if not vocab:
        raise ValueError(f"no {kind}: the data hold no token to make a vocabulary of")
    last = len(vocab) if eos else None
    return Tokenizer(kind, (*vocab, EOS) if eos else tuple(vocab), merges, last, last)
