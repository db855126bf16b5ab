"""The data of a training run: opened if they are prepared, and prepared into the run's folder if they are text."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
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
from unmask.files import write_whole
from unmask.tokenizers.tokenizer import Layout
from unmask.training.config import TrainConfig
from unmask.training.defaults import OVERFIT_SEQUENCES

ROWS_SETTINGS = ("layout", "column", "long", "held_out")


@dataclass(frozen=True)
class Data:
    """Training and held-out sequences of one tokenizer."""

    train: TokenFile
    valid: TokenFile

    def files(self) -> dict[str, Path]:
        """The token files by split, including a test split if there is one."""
        parts = {"train": self.train.path, "valid": self.valid.path}
        test = self.valid.path.with_name(TEST)
        return parts | ({"test": test} if test.is_file() else {})

    def fingerprint(self) -> dict[str, Any]:
        """What must agree for a run to be resumed: the training tokens and the tokenizer."""
        header = self.train.header
        return {
            "tokens_sha256": header.sha256,
            "sequences": header.num,
            "length": header.length,
            "vocab_size": header.vocab_size,
            "tokenizer_sha256": header.tokenizer_hash,
        }


@dataclass(frozen=True)
class Reads:
    """What data a checkpoint to be fine-tuned needs."""

    called: str
    tokenizer: Any
    length: int | None  # the maximum number of tokens of a sequence
    layout: Layout
    template: str | None  # of chats

    def check(self, data: Data) -> Data:
        """The data, if they fit the checkpoint."""
        if data.train.tokenizer.hash != self.tokenizer.hash:
            raise ValueError(
                f"{data.train.path} was made with another tokenizer than that of init={self.called!r}: give the text "
                "itself, which is then prepared with the checkpoint's"
            )
        if self.length is not None and data.train.length > self.length:
            raise ValueError(
                f"{data.train.path} has sequences of {data.train.length} tokens, and init={self.called!r} takes "
                f"{self.length} at most: --length {self.length}, with --long drop or cut for rows"
            )
        return data


def find(config: TrainConfig, progress: Progress | None = None, reads: Reads | None = None) -> Data:
    """Open the data of a configuration. Text is prepared into the run's folder, once.

    reads: the requirements of a checkpoint to be fine-tuned, for which the data are prepared.
    """
    learns_ends = config.kind.draws_length
    data = _found(replace(config, layout=config.layout or "rows") if learns_ends else config, progress, reads)
    if learns_ends:
        _check_ends(data.train)
    return data if reads is None else reads.check(data)


def _check_ends(tokens: TokenFile) -> None:
    """Insertion learns where a row ends: eos is there, and after it."""
    tokenizer = tokens.tokenizer
    padded = tokenizer.frame is None and tokenizer.eos_id == tokenizer.pad_id == tokenizer.vocab_size - 1
    if tokens.header.layout != "rows" or not padded:
        raise ValueError(
            f"objective='insertion' learns where texts end, and {tokens.path} does not say it: it needs one text per "
            "row, ended and padded with eos; give the text itself with --layout rows"
        )


def _found(config: TrainConfig, progress: Progress | None, reads: Reads | None) -> Data:
    if _prepared_earlier(config) and not Path(config.data).exists():
        kind, path = "prepared", Path(config.out) / "data"  # the text is gone; its tokens are here
    else:
        kind, path = resolve(config.data)
    if kind == "tokens":
        return _opened(path, config.valid or path.with_name(VALID), config)
    if kind == "text":
        path = _prepared_text(config, progress, reads)
    elif kind == "corpus":
        path = corpora.prepared(
            config.data,
            tokenizer=config.tokenizer if reads is None else reads.tokenizer,
            vocab=config.vocab,
            length=config.length or _corpus_length(config.data, reads),
            progress=progress,
        )
    return _opened(path / TRAIN, config.valid or path / VALID, config)


def few(data: Data, out: Path) -> Data:
    """The first sequences of the training data, to be memorised and validated on."""
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


def _corpus_length(name: str, reads: Reads | None) -> int | None:
    """The corpus's length, or the checkpoint's if that is less."""
    if reads is None or reads.length is None:
        return None
    return min(corpora.load(name).length, reads.length)


def _prepared_text(config: TrainConfig, progress: Progress | None, reads: Reads | None) -> Path:
    """The token files of a text, in the run's folder; those of an earlier start are used if nothing has changed."""
    out = Path(config.out)
    folder, note = out / "data", out / SOURCE
    instructions = config.column is None and is_instructions(Path(config.data))
    known = {} if instructions else preferred(config.data, config.column, config.length)
    usual = known.get("tokenizer", "bpe")
    if instructions:
        usual = "bytes"
    layout: Any = config.layout
    length = config.length
    if reads is not None:
        usual = reads.tokenizer.hash
        layout = layout or (None if instructions else known.get("layout", reads.layout))
        length = length or (reads.length if layout == "wrapped" else None)
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
            tokenizer=source["tokenizer"] if reads is None else reads.tokenizer,
            vocab=config.vocab or (1024 if small else 4096),
            length=length,
            **{name: getattr(config, name) for name in ROWS_SETTINGS} | {"layout": layout},
            template=None if reads is None else reads.template,
            progress=progress,
        )
    except ValueError:  # a text that cannot be used leaves nothing behind
        note.unlink()
        with suppress(OSError):
            out.rmdir()
        raise
    return folder


def _prepared_earlier(config: TrainConfig) -> bool:
    """Whether the run's folder has the tokens of this text, which may no longer exist."""
    note = Path(config.out) / SOURCE
    if not ((note.parent / "data" / TRAIN).is_file() and note.is_file()):
        return False
    return bool(json.loads(note.read_bytes())["data"] == config.data)
