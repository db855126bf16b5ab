"""Training from Python: ``unmask.train``, the loop of the command for any network and any loss."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from unmask.checkpoints.user_network import Make
from unmask.data.batches import global_batch
from unmask.data.parts import Progress
from unmask.data.resolve import TRAIN, VALID
from unmask.data.tokens import TokenFile
from unmask.data.tokenwriter import TokenWriter
from unmask.files import new_folder
from unmask.loading import load
from unmask.model import Model
from unmask.tokenizers.vocabularies import levels
from unmask.training import loop
from unmask.training.config import TrainConfig, from_mapping
from unmask.training.events import Report
from unmask.training.lines import Lines
from unmask.training.masking import Loss

HELD_OUT = 20  # one sequence in this many


def train(
    data: str | os.PathLike[str] | Tensor | np.ndarray[Any, Any],
    network: Make | None = None,
    *,
    out: str | os.PathLike[str],
    valid: str | os.PathLike[str] | Tensor | np.ndarray[Any, Any] | None = None,
    loss: Loss | None = None,
    report: Report | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Model:
    """Train a masked model like the command ``unmask train``, and return it with its averaged weights.

    ``unmask.load(out)`` loads the model again; for your own network pass it once more: ``load(out, network=...)``.

    Args:
        data: Anything that the command takes (a corpus, a text, a table, prepared data), or token ids, integers [N, L].
        network: A denoiser that is a torch module, or a function ``network(vocab_size, length)`` that returns one. Ids
            are 0 .. vocab_size - 1 and mask_id is vocab_size; the logits may or may not have a column for it. A copy is
            trained, and the given module is not changed. By default it is the project's network, of the size
            ``preset``.
        out: The run's folder.
        valid: Held-out data of the same kind; by default one sequence in 20, or the data's own split.
        loss: ``loss(network, x0, masking)`` returns each sequence's loss in nats, [B], from complete tokens x0, int64
            [B, L], and an ``unmask.masking.Masking`` (masked bool [B, L], time and weight float64 [B]); training
            minimises its mean per token. By default it is that of ``objective``. Validation always uses the bound of
            Eq. 7.
        report: Called with every event of ``unmask.training.events``; by default it prints lines on stderr.
        progress: Called as (stage, done, total) while text is prepared.
        **settings: Those of the command, with underscores: steps, minutes, batch, objective, learning_rate, ema,
            resume, ... (``unmask train --help``). resume=True continues from the newest checkpoint, or starts if there
            is none.
    """
    for name, value in (("network", network), ("loss", loss)):
        if value is not None and not callable(value):
            raise ValueError(f"{name} must be callable, got {value!r}")
    if loss is not None and settings.get("times") == "adaptive":
        raise ValueError("times='adaptive' learns from the loss of the objective, and the loss is your own")
    chosen = from_mapping({name: value for name, value in settings.items() if value is not None}, "unmask.train")
    if isinstance(data, str | os.PathLike):
        if valid is not None and not isinstance(valid, str | os.PathLike):
            raise ValueError("valid must be a path, as data is")
        config = TrainConfig(data=str(data), out=str(out), valid=None if valid is None else str(valid), **chosen)
    else:
        config = TrainConfig(data=str(Path(out) / "data"), out=str(out), **chosen)
        _store(data, valid, Path(out) / "data", network, config)
    model = loop.train(config, own=network, loss=loss, report=report or Lines(sys.stderr), progress=progress)
    model_ = load(model, network=network) if network is not None else load(model)
    return replace(model_, name=str(out))


def _store(data: Any, valid: Any, folder: Path, network: Make | None, config: TrainConfig) -> None:
    """Write ids as token files to the run's folder; for a resumed run they must be the same."""
    rows = _ids(data, "data")
    if valid is None:
        if len(rows) < 2:
            raise ValueError("data has one sequence, and none can be held out: give valid")
        chosen = np.zeros(len(rows), dtype=bool)
        chosen[global_batch(len(rows), max(1, len(rows) // HELD_OUT), config.seed, 0).numpy()] = True
        rows, held_out = rows[~chosen], rows[chosen]
    else:
        held_out = _ids(valid, "valid")
        if held_out.shape[1] != rows.shape[1]:
            raise ValueError(f"valid has sequences of {held_out.shape[1]} ids and data of {rows.shape[1]}")
    largest = int(max(rows.max(), held_out.max()))
    ids = network.mask_id if isinstance(network, nn.Module) and isinstance(network.mask_id, int) else largest + 1
    if largest >= ids:
        raise ValueError(f"data has the id {largest}: the network's mask is {ids}, and its ids are below")
    if (folder / TRAIN).is_file():
        stored = TokenFile.open(folder / TRAIN)
        if len(stored) != len(rows) or not np.array_equal(stored.sequences(np.arange(len(stored))).numpy(), rows):
            raise ValueError(f"{folder} holds other ids than data: choose another out")
        return
    strange = [] if not folder.parent.is_dir() else [path.name for path in folder.parent.iterdir()]
    if strange:
        raise ValueError(
            f"out={str(folder.parent)!r}: it is not a run and not empty ({strange[0]}); nothing was written"
        )
    tokenizer = levels(ids)
    with new_folder(folder) as partial:
        for name, part in ((TRAIN, rows), (VALID, held_out)):
            with TokenWriter(partial / name, tokenizer, part.shape[1], "rows", source="ids") as writer:
                writer.write(part)
                writer.finish(characters=part.size, bytes=part.size)
        tokenizer.save(partial / "tokenizer.json")


def _ids(data: Any, name: str) -> np.ndarray[Any, Any]:
    """Token ids [N, L] as an array."""
    rows = data.numpy(force=True) if isinstance(data, Tensor) else np.asarray(data)
    if rows.ndim != 2 or not rows.size or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(f"{name} must be a path, or integers [sequences, length], got {rows.dtype} {rows.shape}")
    if int(rows.min()) < 0:
        raise ValueError(f"{name} has the id {int(rows.min())}: ids are 0, 1, 2, ...")
    return rows.astype(np.int64)
