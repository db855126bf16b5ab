"""Instruction data: prompts with responses, as rows of which only the response is predicted.

A row has the tokens of the prompt, those of the response, eos, and eos up to the length, as in LLaDA's fine-tuning: the
network learns where a response ends. ``train.given.npy`` beside ``train.tokens`` has the lengths of the prompts.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unmask.data.batches import global_batch
from unmask.data.formats import json_records
from unmask.data.layout import AnyTokenizer, padding
from unmask.data.tokens import GIVEN, TokenFile
from unmask.data.tokenwriter import TokenWriter
from unmask.files import new_folder
from unmask.tokenizers.chat import written

PAIRS = (("prompt", "response"), ("prompt", "completion"), ("instruction", "output"), ("question", "answer"))
LONGEST = 1024  # tokens of a row, if no length is given
SEED, HELD_OUT = 0, 0.05
Pair = tuple[list[int], list[int]]  # the ids of a prompt, and of its response with its end


def is_instructions(path: Path) -> bool:
    """Whether the first record of a file has a prompt and a response, or messages."""
    if path.suffix not in (".jsonl", ".ndjson") or not path.is_file():
        return False
    first = next(json_records(path), ("", {}))[1]
    return "messages" in first or any(set(pair) <= first.keys() for pair in PAIRS)


def prepare_instructions(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    tokenizer: AnyTokenizer,
    *,
    template: str | None = None,
    length: int | None = None,
    long: str | None = None,
    valid: str | os.PathLike[str] | None = None,
) -> tuple[TokenFile, TokenFile]:
    """Tokenize a .jsonl file of {prompt, response} or {messages} into the new folder ``out``.

    template: the checkpoint's chat template (Jinja) for prompts; without one a prompt is plain text. length: tokens of
    a row, by default those of the longest, at most 1,024. long: "drop" drops longer ones; otherwise they are an error.
    valid: another such file to hold out; by default one record in twenty.
    """
    if _end(tokenizer) is None:
        raise ValueError(f"the tokenizer ({tokenizer.kind}) has no eos, with which responses end")
    train = _pairs(source, tokenizer, template)
    length = length or min(max((len(prompt) + len(response) for prompt, response in train), default=0), LONGEST)
    train = _fitting(train, length, long)
    if valid is not None:
        other = _fitting(_pairs(valid, tokenizer, template), length, long)
    else:
        if len(train) < 2:
            raise ValueError(f"{source}: {len(train)} records are too few to hold one out")
        held = set(global_batch(len(train), max(1, round(len(train) * HELD_OUT)), SEED, 0).tolist())
        other = [train[i] for i in sorted(held)]
        train = [pair for i, pair in enumerate(train) if i not in held]
    with new_folder(Path(out)) as folder:
        for name, pairs, file in (("train", train, source), ("valid", other, valid or source)):
            _write(folder / f"{name}.tokens", pairs, tokenizer, length, str(file))
        tokenizer.save(folder / "tokenizer.json")
    return TokenFile.open(Path(out) / "train.tokens"), TokenFile.open(Path(out) / "valid.tokens")


def _pairs(source: str | os.PathLike[str], tokenizer: AnyTokenizer, template: str | None) -> list[Pair]:
    return [_encoded(record, tokenizer, template, where) for where, record in json_records(Path(source))]


def _fitting(pairs: list[Pair], length: int, long: str | None) -> list[Pair]:
    """The pairs that fit into a row; longer ones are dropped if ``long`` says so, and refused otherwise."""
    kept = [pair for pair in pairs if len(pair[0]) + len(pair[1]) <= length]
    if len(kept) < len(pairs):
        count = len(pairs) - len(kept)
        if long != "drop":
            raise ValueError(f"{count} of {len(pairs)} records are longer than length={length} tokens: --long drop")
        warnings.warn(f"{count:,} of {len(pairs):,} records are longer than length={length}: dropped", stacklevel=2)
    return kept


def _end(tokenizer: AnyTokenizer) -> int | None:
    """The id that ends a response."""
    return tokenizer.eos_id if tokenizer.eos_id is not None else padding(tokenizer)


def _write(path: Path, pairs: list[Pair], tokenizer: AnyTokenizer, length: int, source: str) -> None:
    pad = padding(tokenizer)
    pad = tokenizer.eos_id if pad is None else pad
    assert pad is not None
    rows = np.full((len(pairs), length), pad, dtype=np.int64)
    for row, (prompt, response) in zip(rows, pairs, strict=True):
        row[: len(prompt) + len(response)] = [*prompt, *response]
    with TokenWriter(path, tokenizer, length, "rows", source=source) as writer:
        writer.write(rows)
        text = sum(len(tokenizer.decode(response[:-1])) for _, response in pairs)
        writer.finish(characters=text, bytes=text)
    np.save(path.with_suffix(GIVEN), np.array([len(prompt) for prompt, _ in pairs], dtype=np.uint32))


def _encoded(record: Mapping[str, Any], tokenizer: AnyTokenizer, template: str | None, where: str) -> Pair:
    """The ids of a record's prompt, and of its response with eos."""
    messages = record.get("messages")
    if messages is None:
        names = next((pair for pair in PAIRS if set(pair) <= record.keys()), None)
        if names is None:
            raise ValueError(f"{where}: it has {', '.join(record)}, and neither messages nor a prompt and a response")
        prompt, response = (record[name] for name in names)
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
    if not messages or messages[-1].get("role") != "assistant" or len(messages) < 2:
        raise ValueError(f"{where}: the last of its messages must be the assistant's, after another one")
    *before, last = messages
    if any(not isinstance(one.get("content"), str) for one in messages):
        raise ValueError(f"{where}: the content of a message must be a text")
    if template is None and len(before) > 1:
        raise ValueError(f"{where}: several messages need a chat template, and the checkpoint has none")
    text = before[0]["content"] if template is None else written(template, before)
    end = _end(tokenizer)
    assert end is not None
    return tokenizer.encode(text), [*tokenizer.encode(last["content"]), end]
