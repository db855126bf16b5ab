"""Instructions: prompts with their responses, as rows of which the response alone is predicted.

A row is the prompt's tokens, the response's, eos, and eos up to the length, as LLaDA is fine-tuned: the network learns
where a response ends. How many tokens are the prompt's stands in ``train.given.npy`` beside ``train.tokens``.
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
from unmask.models.files import new_folder
from unmask.text.chat import written

PAIRS = (("prompt", "response"), ("prompt", "completion"), ("instruction", "output"), ("question", "answer"))
LONGEST = 1024  # tokens of a row, unless a length is given
SEED, HELD_OUT = 0, 0.05


def is_instructions(path: Path) -> bool:
    """Whether a file of records has prompts and responses, or messages, by its first record."""
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
) -> tuple[TokenFile, TokenFile]:
    """Tokenize a .jsonl file of {prompt, response} or {messages} into the new folder ``out``.

    template: the checkpoint's chat template (Jinja), by which prompts are written; without one a prompt is a text.
    length: tokens of a row, by default those of the longest, and 1,024 at most. long: "drop" drops what is longer; it
    is refused otherwise. One record in twenty is held out.
    """
    if tokenizer.eos_id is None and padding(tokenizer) is None:
        raise ValueError(f"the tokenizer ({tokenizer.kind}) has no eos, with which responses end")
    pairs = [_encoded(record, tokenizer, template, where) for where, record in json_records(Path(source))]
    longest = max((len(prompt) + len(response) for prompt, response in pairs), default=0)
    length = length or min(longest, LONGEST)
    kept = [pair for pair in pairs if len(pair[0]) + len(pair[1]) <= length]
    if len(kept) < len(pairs):
        count = len(pairs) - len(kept)
        if long != "drop":
            raise ValueError(f"{count} of {len(pairs)} records are longer than length={length} tokens: --long drop")
        warnings.warn(f"{count:,} of {len(pairs):,} records are longer than length={length}: dropped", stacklevel=2)
    if len(kept) < 2:
        raise ValueError(f"{source}: {len(kept)} records are too few to hold one out")
    held = np.zeros(len(kept), dtype=bool)
    held[global_batch(len(kept), max(1, round(len(kept) * HELD_OUT)), SEED, 0).numpy()] = True
    with new_folder(Path(out)) as folder:
        for name, part in (("train", ~held), ("valid", held)):
            _write(folder / f"{name}.tokens", [kept[i] for i in np.flatnonzero(part)], tokenizer, length, str(source))
        tokenizer.save(folder / "tokenizer.json")
    return TokenFile.open(Path(out) / "train.tokens"), TokenFile.open(Path(out) / "valid.tokens")


def _write(
    path: Path, pairs: list[tuple[list[int], list[int]]], tokenizer: AnyTokenizer, length: int, source: str
) -> None:
    pad = padding(tokenizer)
    assert pad is not None
    rows = np.full((len(pairs), length), pad, dtype=np.int64)
    for row, (prompt, response) in zip(rows, pairs, strict=True):
        row[: len(prompt) + len(response)] = [*prompt, *response]
    with TokenWriter(path, tokenizer, length, "rows", source=source) as writer:
        writer.write(rows)
        text = sum(len(tokenizer.decode(response[:-1])) for _, response in pairs)
        writer.finish(characters=text, bytes=text)
    np.save(path.with_suffix(GIVEN), np.array([len(prompt) for prompt, _ in pairs], dtype=np.uint32))


def _encoded(
    record: Mapping[str, Any], tokenizer: AnyTokenizer, template: str | None, where: str
) -> tuple[list[int], list[int]]:
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
    end = tokenizer.eos_id if tokenizer.eos_id is not None else padding(tokenizer)
    assert end is not None
    return tokenizer.encode(text), [*tokenizer.encode(last["content"]), end]
