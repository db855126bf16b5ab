"""Checkpoints: folders ``step-00001000`` that are written atomically, and contain no pickle.

    model.safetensors, ema.safetensors, optimizer.safetensors, ...   one file per group of tensors
    state.json                                                       the step and everything that is not a tensor
    config.json, tokenizer.json, README.md                           make it a model that can be loaded
    SHA256SUMS                                                       of all the others, for ``sha256sum -c``

A folder is written under another name, flushed to disk and renamed, so a killed process leaves the older checkpoints
and at most a hidden partial folder, which the next save removes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.checkpoints import steps as checkpoints
from unmask.checkpoints.steps import STATE, SUFFIX, SUMS, CheckpointError, listed, step_of, verify
from unmask.files import content_of, new_folder, sha256_of
from unmask.networks.pretrained import apart

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read: tensors by file and name, and the rest of the state."""

    path: Path
    tensors: dict[str, Tensors]
    state: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.state["step"])


def write(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    texts: Mapping[str, str] | None = None,
) -> Path:
    """Save a checkpoint of this step, with these files beside its tensors; if anything fails, nothing has changed.

    A sound checkpoint of the same step is kept: a run is a function of its configuration and the step.
    """
    from safetensors.torch import save_file

    target = folder / f"step-{step:08d}"
    if target.exists():
        try:
            verify(target)
            return target
        except CheckpointError:
            shutil.rmtree(target)
    _clear_litter(folder)
    with new_folder(target) as partial:
        for name, group in tensors.items():
            save_file(apart({key: _plain(value) for key, value in group.items()}), partial / f"{name}{SUFFIX}")
        (partial / STATE).write_text(json.dumps({**state, "step": step}, indent=1) + "\n")
        for name, text in (texts or {}).items():
            (partial / name).write_text(text, encoding="utf-8")
        lines = [f"{sha256_of(file)}  {file.name}\n" for file in sorted(partial.iterdir())]
        (partial / SUMS).write_text("".join(lines))
    return target


def read(path: Path) -> Checkpoint:
    """Verify a checkpoint and read it; CheckpointError says what is wrong with it."""
    verify(path)
    tensors = {file.stem: read_tensors(file) for file in sorted(path.glob(f"*{SUFFIX}"))}
    try:
        state = json.loads(content_of(path / STATE))
        if not isinstance(state["step"], int):
            raise ValueError(f"step={state['step']!r} is not a number")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / STATE} is not the state of a run: {error}") from error
    return Checkpoint(path, tensors, state)


def read_tensors(path: Path) -> Tensors:
    """The tensors of one safetensors file. Anything else, such as a pickle, is refused without being parsed."""
    from safetensors.torch import load_file

    try:
        # Clones, because safetensors maps the file, and this one may be removed.
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except Exception as error:  # the Rust library raises several kinds
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from error


def newest(folder: Path) -> Checkpoint | None:
    """The newest sound checkpoint, or None; a damaged one is skipped with a warning."""
    return checkpoints.newest(folder, read)


def prune(folder: Path, keep: int, best: int | None = None) -> None:
    """Remove all but the newest ``keep`` checkpoints and that of step ``best``.

    Each is renamed first: a partial one must not look like a checkpoint.
    """
    for path in listed(folder)[:-keep]:
        if step_of(path) != best:
            shutil.rmtree(path.rename(path.with_name(f".{path.name}.removed")))


def copy_into(target: Mapping[str, Tensor], source: Mapping[str, Tensor], what: str) -> None:
    """Copy tensors by name into those of a network or an optimiser; the names and shapes must match."""
    problems = [f"{name} is missing" for name in target if name not in source]
    problems += [f"{name} does not belong" for name in source if name not in target]
    for name in target:
        if name in source and target[name].shape != source[name].shape:
            problems.append(f"{name} is {list(source[name].shape)} and not {list(target[name].shape)}")
        elif name in source and target[name].dtype != source[name].dtype:
            problems.append(f"{name} is {source[name].dtype} and not {target[name].dtype}")
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise CheckpointError(f"{what} does not fit this run: {'; '.join(problems[:5])}{more}")
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(_placed_like(tensor, source[name]))


def whole(tensor: Tensor) -> Tensor:
    """A tensor as a single process would hold it: FSDP's shards are gathered, in which every process takes part."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _placed_like(tensor: Tensor, value: Tensor) -> Tensor:
    if not hasattr(tensor, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
    return distribute_tensor(value.to(tensor.device), mesh, tensor.placements)  # type: ignore[attr-defined]


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu").contiguous()


def _clear_litter(folder: Path) -> None:
    for pattern in (".step-*.partial", ".step-*.removed"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".step-*.lock"):
        path.unlink(missing_ok=True)
