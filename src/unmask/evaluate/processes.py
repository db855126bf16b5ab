"""Pieces of work on this process, on those of ``accelerate launch``, or on a Ray cluster, with identical numbers.

Randomness depends on a sequence's index (``unmask.noise.generator(index, seed, ...)``), never on a batch or a process.
A network's result may differ in its last bits with the shape of its batch, so divide the work into whole batches rather
than sequences to get the same bits.

    with processes.joined(ray=False):
        scores = list(processes.results(batches, score))    # in the order of the batches, on every process
        if processes.main():
            print(scores)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar, overload

import torch
from torch import Tensor, distributed

from unmask import devices
from unmask.evaluate.cluster import Cluster
from unmask.extras import needed

P = TypeVar("P")
T = TypeVar("T")
_cluster: ContextVar[Cluster | None] = ContextVar("cluster", default=None)


@contextmanager
def joined(*, ray: bool = False) -> Iterator[None]:
    """Join the other processes of ``accelerate launch``, or a Ray cluster, and leave at the end. Alone, do nothing."""
    if ray:
        from unmask.evaluate.cluster import connected

        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise ValueError("--ray divides the work by itself: start it without accelerate launch")
        with connected() as cluster:
            token = _cluster.set(cluster)
            try:
                yield
            finally:
                _cluster.reset(token)
        return
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or _several():
        yield
        return
    needed("accelerate", "several processes need accelerate", "train").PartialState(cpu=devices.chosen() == "cpu")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def world() -> int:
    """The number of processes."""
    return distributed.get_world_size() if _several() else 1


def rank() -> int:
    """The index of this process: 0 .. world - 1."""
    return distributed.get_rank() if _several() else 0


def main() -> bool:
    """Whether this process prints and writes."""
    return rank() == 0


def device(name: str = "auto") -> str:
    """The device of this process, by the rule of ``devices.chosen``.

    On a Ray cluster the workers compute, and this process keeps the network on the CPU to send it to them.
    """
    if (cluster := _cluster.get()) is not None:
        cluster.use(name)
        return "cpu"
    name = devices.chosen(name)
    return f"{name}:{os.environ.get('LOCAL_RANK', 0)}" if world() > 1 and name in ("cuda", "xpu") else name


def worker_device(name: str = "auto") -> str:
    """The device on which pieces are computed, if not in this process."""
    cluster = _cluster.get()
    return device(name) if cluster is None else cluster.device


def results(pieces: Sequence[P], compute: Callable[[P], T]) -> Iterator[T]:
    """compute(piece) for each piece, in order; every process must iterate, and gets all results.

    On a Ray cluster pieces, results and compute with everything it refers to, including networks, must be picklable.
    The tensors of compute are then on the worker's device.
    """
    cluster = _cluster.get()
    if cluster is not None:
        yield from cluster.results(pieces, compute)
        return
    for start in range(0, len(pieces), world()):
        now = range(start, min(start + world(), len(pieces)))
        yield from gather([compute(pieces[now[i]]) for i in share(len(now)).tolist()])


def share(num: int) -> Tensor:
    """The pieces of 0 .. num - 1 that belong to this process: int64, ascending."""
    return torch.arange(num)[rank() :: world()]


@overload
def gather(own: Tensor) -> Tensor: ...
@overload
def gather(own: list[T]) -> list[T]: ...
def gather(own: Tensor | list[T]) -> Tensor | list[T]:
    """The results of all processes for their shares, in the order of the indices: rows of a tensor, or list entries.

    Every process must call it, and gets the same. List entries must be picklable.
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
