"""Qwen2's tokenizer from its vocabulary, where a folder has code in place of a tokenizer.json. The code is not run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unmask.tokenizers import external, external_files
from unmask.tokenizers.external import ExternalTokenizer
from unmask.tokenizers.tokenizer import import_tokenizers

# How Qwen2 splits a text before its BPE: contractions, words, single digits, marks, newlines, spaces.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def load(folder: Path) -> ExternalTokenizer | None:
    """The folder's tokenizer: tokenizer.json, or vocab.json and merges.txt with tokenizer_config.json."""
    if (folder / "tokenizer.json").is_file() or not (folder / "vocab.json").is_file():
        return external_files.load(folder)
    return external.wrapped(_qwen2(folder), {})


def _qwen2(folder: Path) -> Any:
    tokenizers = import_tokenizers()
    try:
        model = tokenizers.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        settings = folder / "tokenizer_config.json"
        added = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
        special = [
            entry["content"]
            for _, entry in sorted(added.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0]))
        ]
    except Exception as error:  # the tokenizers package raises bare Exceptions
        raise ValueError(f"{folder}: its tokenizer cannot be read: {error}") from error
    made = tokenizers.Tokenizer(model)
    made.normalizer = tokenizers.normalizers.NFC()
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(PIECES), "isolated")
    bytes_alone = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, bytes_alone])
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(special)
    return made
