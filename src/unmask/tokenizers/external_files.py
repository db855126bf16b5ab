"""The tokenizers in folders of other projects' checkpoints. Files are read as data: none of their code is run."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.files import parsed
from unmask.tokenizers.external import ExternalTokenizer, alphabet, is_alphabet, of_vocabulary, wrapped
from unmask.tokenizers.tokenizer import import_tokenizers


def load(folder: str | os.PathLike[str]) -> ExternalTokenizer | None:
    """The tokenizer of a checkpoint's folder, or None if there is none.

    tokenizer.json, or vocab.txt (WordPiece, or an alphabet), or vocab.json with merges.txt, or fairseq's dict.txt;
    special tokens that these do not name are looked up in tokenizer_config.json and special_tokens_map.json.
    """
    folder = Path(folder)
    names = _names(folder)
    try:
        if (folder / "tokenizer.json").is_file():
            return wrapped(import_tokenizers().Tokenizer.from_file(str(folder / "tokenizer.json")), names)
        if (folder / "vocab.txt").is_file():
            # split, not splitlines: some of BERT's tokens are line separators of Unicode.
            vocab = (folder / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
            return alphabet(vocab, names) if is_alphabet(vocab) else _word_piece(vocab, folder, names)
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            return _byte_level(folder, names)
        if (folder / "dict.txt").is_file():
            return fairseq(folder / "dict.txt")
    except ImportError:
        raise
    except Exception as error:  # the tokenizers package raises bare Exceptions
        raise ValueError(f"{folder}: its tokenizer cannot be read: {error}") from error
    return None


def fairseq(path: Path) -> ExternalTokenizer:
    """The alphabet of fairseq's dict.txt: <s> <pad> </s> <unk>, one symbol per line with its count, and <mask>."""
    symbols = [line.rsplit(" ", 1)[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    # A dictionary is padded to a multiple of eight with meaningless names.
    real = [symbol for symbol in symbols if not symbol.startswith("madeupword")]
    if not real or any(len(symbol) != 1 for symbol in real):
        raise ValueError(f"{path}: its symbols are not single characters, so they are not an alphabet")
    return alphabet(["<s>", "<pad>", "</s>", "<unk>", *symbols, "<mask>"], {"cls_token": "<s>", "sep_token": "</s>"})


def _names(folder: Path) -> dict[str, str]:
    """The special tokens by their names: mask_token, cls_token, ..."""
    names: dict[str, str] = {}
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / file).is_file():
            content = parsed(folder / file)
            for name, value in content.items() if isinstance(content, dict) else ():
                token = value.get("content") if isinstance(value, dict) else value
                if name.endswith("_token") and isinstance(token, str):
                    names[name] = token
    return names


def _word_piece(vocab: Sequence[str], folder: Path, names: dict[str, str]) -> ExternalTokenizer:
    """BERT's tokenizer from its vocab.txt."""
    config = folder / "tokenizer_config.json"
    settings = parsed(config) if config.is_file() else {}
    lower = settings.get("do_lower_case")
    if lower is None:  # a vocabulary without capitals is for lower-cased text
        lower = not any(token != token.lower() for token in vocab if not re.fullmatch(r"\[\w+\]", token))
    import_tokenizers()
    rules: Any = importlib.import_module("tokenizers.implementations").BertWordPieceTokenizer(
        {token: i for i, token in enumerate(vocab)}, lowercase=bool(lower), strip_accents=settings.get("strip_accents")
    )
    special = frozenset(i for i, token in enumerate(vocab) if token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))

    def encoder(text: str) -> Sequence[int]:
        ids: Sequence[int] = rules.encode(text, add_special_tokens=False).ids
        return ids

    return replace(of_vocabulary("wordpiece", vocab, special, names, encoder), written=rules.to_str())


def _byte_level(folder: Path, names: dict[str, str]) -> ExternalTokenizer:
    """RoBERTa's tokenizer from files like GPT-2's."""
    tokenizers = import_tokenizers()
    model = tokenizers.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    rules = tokenizers.Tokenizer(model)
    rules.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    usual = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    rules.add_special_tokens([token for token in usual if rules.token_to_id(token) is not None])
    return wrapped(rules, names)
