"""Evaluation on several processes, started by ``accelerate launch``, with the numbers of one.

Work is numbered, and each process takes every world-th piece of it. What is random is a function of a sequence's index
(``unmask.noise.generator(index, seed, ...)``), never of a batch or a process. A network's result may differ in its
last bits with the shape of its batch: share whole batches rather than sequences, and the bits are the same, too.

    with processes.joined():
        own = [score(batches[i]) for i in processes.share(len(batches)).tolist()]
        scores = processes.gather(own)          # in the order of the batches, on every process
        if processes.main():
            print(scores)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar, overload

import torch
from torch import Tensor, distributed

T = TypeVar("T")


@contextmanager
def joined() -> Iterator[None]:
    """Join the other processes of ``accelerate launch``, and leave them in the end. Alone, this does nothing."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or _several():
        yield
        return
    try:
        from accelerate import PartialState  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("several processes need accelerate: pip install 'unmask[train]'") from error
    PartialState(cpu=_cpu_only())
    try:
        yield
    finally:
        distributed.destroy_process_group()


def world() -> int:
    """How many processes there are."""
    return distributed.get_world_size() if _several() else 1


def rank() -> int:
    """Which of them this is: 0 .. world - 1."""
    return distributed.get_rank() if _several() else 0


def main() -> bool:
    """Whether this is the one that prints and writes."""
    return rank() == 0


def device(name: str = "auto") -> str:
    """Where this process computes: auto is its own accelerator, if there is one that has float64, or else the CPU."""
    if name == "auto":
        found = None if _cpu_only() else torch.accelerator.current_accelerator()
        name = "cpu" if found is None or found.type == "mps" else found.type
    return f"{name}:{os.environ.get('LOCAL_RANK', 0)}" if world() > 1 and name in ("cuda", "xpu") else name


def share(num: int) -> Tensor:
    """Which of the pieces 0 .. num - 1 are this process's: int64, ascending."""
    return torch.arange(num)[rank() :: world()]


@overload
def gather(own: Tensor) -> Tensor: ...
@overload
def gather(own: list[T]) -> list[T]: ...
def gather(own: Tensor | list[T]) -> Tensor | list[T]:
    """What all processes have for their shares, in the order of the indices: a tensor's rows, or a list's entries.

    Every process must call it, and gets the same. Entries of a list may be anything that can be pickled.
    """
    if world() == 1:
        return own
    if isinstance(own, Tensor):
        rows = gather(list(own.detach().cpu()))
        return torch.stack(rows).to(own.device) if rows else own
    parts: list[list[T]] = [[]] * world()
    distributed.all_gather_object(parts, own)
    return [parts[i % world()][i // world()] for i in range(sum(map(len, parts)))]


def broadcast(value: T) -> T:
    """The main process's value, on every process."""
    if world() == 1:
        return value
    box = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def _several() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def _cpu_only() -> bool:
    asked = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    return asked or not torch.accelerator.is_available()
