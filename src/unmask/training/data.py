"""A training's data: opened where they are prepared, and prepared into the run's folder where they are text."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.data import corpora
from unmask.data.formats import preferred
from unmask.data.instructions import is_instructions
from unmask.data.parts import Progress
from unmask.data.prepare import prepare
from unmask.data.resolve import TEST, TRAIN, VALID, content, resolve
from unmask.data.runs import OVERFIT, SOURCE
from unmask.data.tokens import TokenFile
from unmask.data.tokenwriter import TokenWriter
from unmask.models.files import write_whole
from unmask.training.config import OVERFIT_SEQUENCES, TrainConfig

ROWS_SETTINGS = ("layout", "column", "long", "held_out")


@dataclass(frozen=True)
class Data:
    """Training and held-out sequences of one tokenizer."""

    train: TokenFile
    valid: TokenFile

    def files(self) -> dict[str, Path]:
        """The token files by their part; where the data have a test part, with it."""
        parts = {"train": self.train.path, "valid": self.valid.path}
        test = self.valid.path.with_name(TEST)
        return parts | ({"test": test} if test.is_file() else {})

    def fingerprint(self) -> dict[str, Any]:
        """What must be the same for a run to be continued: the training tokens and the tokenizer."""
        header = self.train.header
        return {
            "tokens_sha256": header.sha256,
            "sequences": header.num,
            "length": header.length,
            "vocab_size": header.vocab_size,
            "tokenizer_sha256": header.tokenizer_hash,
        }


def find(config: TrainConfig, progress: Progress | None = None) -> Data:
    """Open the data of a configuration. Text is prepared into the run's folder, once."""
    if _prepared_earlier(config) and not Path(config.data).exists():
        kind, path = "prepared", Path(config.out) / "data"  # the text is gone; its tokens are here
    else:
        kind, path = resolve(config.data)
    if kind == "tokens":
        return _opened(path, config.valid or path.with_name(VALID), config)
    if kind == "text":
        path = _prepared_text(config, progress)
    elif kind == "corpus":
        path = corpora.prepared(
            config.data, tokenizer=config.tokenizer, vocab=config.vocab, length=config.length, progress=progress
        )
    return _opened(path / TRAIN, config.valid or path / VALID, config)


def few(data: Data, out: Path) -> Data:
    """The first sequences of the training data, to be learned by heart and to be validated on."""
    path = out / OVERFIT
    if not path.is_file():
        out.mkdir(parents=True, exist_ok=True)
        header = data.train.header
        some = data.train.sequences(range(min(OVERFIT_SEQUENCES, len(data.train)))).numpy()
        size = header.characters * len(some) // header.num, header.bytes * len(some) // header.num
        with TokenWriter(path, data.train.tokenizer, header.length, header.layout, source=header.source) as writer:
            writer.write(some)
            writer.finish(characters=size[0], bytes=size[1])
    tokens = TokenFile.open(path, tokenizer=data.train.tokenizer).verified()
    return Data(tokens, tokens)


def _opened(train: Path, valid: str | Path, config: TrainConfig) -> Data:
    tokens = TokenFile.open(train).verified()
    if not Path(valid).is_file():
        raise ValueError(f"{valid}: there are no held-out tokens; give some with --valid")
    if config.length is not None and config.length != tokens.length:
        raise ValueError(f"length={config.length}: {train} has sequences of {tokens.length} tokens; prepare it again")
    held_out = TokenFile.open(valid, tokenizer=tokens.tokenizer).verified()
    if held_out.length != tokens.length:
        raise ValueError(f"{valid} has sequences of {held_out.length} tokens and {train} of {tokens.length}")
    return Data(tokens, held_out)


def _prepared_text(config: TrainConfig, progress: Progress | None) -> Path:
    """The token files of a text, in the run's folder; an earlier start's serve if text and settings are the same."""
    out = Path(config.out)
    folder, note = out / "data", out / SOURCE
    usual = preferred(config.data, config.column).get("tokenizer", "bpe")
    if config.column is None and is_instructions(Path(config.data)):
        usual = "bytes"
    source: dict[str, Any] = {
        "data": config.data,
        "sha256": content(config.data),
        "tokenizer": config.tokenizer or usual,
        "vocab": config.vocab,
        "length": config.length,
        **{name: getattr(config, name) for name in ROWS_SETTINGS if getattr(config, name) is not None},
    }
    if folder.is_dir():
        stored = json.loads(note.read_bytes()) if note.is_file() else {}
        changed = [name for name in source if name != "data" and stored.get(name) != source[name]]
        if changed:
            different = "; ".join(f"{name}: {stored.get(name)!r} -> {source[name]!r}" for name in changed)
            raise ValueError(f"{folder} was not made from {config.data} as it is now ({different}): choose another out")
        return folder
    if out.is_dir() and any(out.iterdir()) and not note.is_file():
        raise ValueError(f"out={config.out!r}: the folder is not empty and is not a run; nothing was written")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(note, json.dumps(source).encode())
    small = Path(config.data).is_file() and Path(config.data).stat().st_size < 1 << 20
    try:
        prepare(
            config.data,
            folder,
            tokenizer=source["tokenizer"],
            vocab=config.vocab or (1024 if small else 4096),
            length=config.length,
            **{name: getattr(config, name) for name in ROWS_SETTINGS},
            progress=progress,
        )
    except ValueError:  # a text that cannot be used leaves nothing behind
        note.unlink()
        with suppress(OSError):
            out.rmdir()
        raise
    return folder


def _prepared_earlier(config: TrainConfig) -> bool:
    """Whether the run's folder holds the tokens of this text, which may be gone by now."""
    note = Path(config.out) / SOURCE
    if not ((note.parent / "data" / TRAIN).is_file() and note.is_file()):
        return False
    return bool(json.loads(note.read_bytes())["data"] == config.data)
