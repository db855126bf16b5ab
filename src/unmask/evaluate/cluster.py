"""Run pieces of work on the workers of a Ray cluster.

A worker is an actor with one GPU, or with as many cores as this process uses threads, because a network's last bits may
depend on the number of threads. It receives the function with its network once, and then one piece at a time. A worker
that is killed, with or without its node, is replaced as soon as there is room, and its piece goes to another one: this
costs time, not results.
"""

from __future__ import annotations

import io
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

import unmask
from unmask.extras import needed

P = TypeVar("P")
T = TypeVar("T")
MOST_DEATHS = 3  # of workers on one piece: more than that, and the piece itself is the cause


@contextmanager
def connected() -> Iterator[Cluster]:
    """Join the cluster of RAY_ADDRESS, or one running on this machine, or start one here for the duration."""
    ray = _ray()
    already = ray.is_initialized()
    if not already:
        # The workers' output is not forwarded: this command must print what a single process prints.
        ray.init(log_to_driver=False, logging_level="ERROR")
    try:
        yield Cluster()
    finally:
        if not already:
            ray.shutdown()


def _ray() -> Any:
    return needed("ray", "--ray needs ray", "ray")


class Cluster:
    """Workers of one kind. ``device`` is their device."""

    def __init__(self) -> None:
        self.device = "cpu"

    @property
    def threads(self) -> int:
        """The threads of each worker: as many as this process would use."""
        return torch.get_num_threads()

    def use(self, name: str) -> None:
        """Select the device; auto takes GPUs if the cluster has any."""
        gpus = _ray().cluster_resources().get("GPU", 0) >= 1
        if name == "auto":
            name = "cuda" if gpus else "cpu"
        if name not in ("cpu", "cuda"):
            raise ValueError(
                f"--device {name}: on a cluster it is auto, cpu or cuda, and every worker has a GPU of its own"
            )
        if name == "cuda" and not gpus:
            raise ValueError("--device cuda: no node of the cluster has a GPU")
        self.device = name

    @property
    def needs(self) -> dict[str, float]:
        """The resources that one worker takes of its node."""
        return {"num_gpus": 1, "num_cpus": 1} if self.device == "cuda" else {"num_cpus": self.threads}

    def room(self) -> int:
        """How many workers the cluster has room for."""
        asked = {"CPU": self.needs["num_cpus"], "GPU": self.needs.get("num_gpus", 0)}
        nodes = [node["Resources"] for node in _ray().nodes() if node["Alive"]]
        return sum(int(min(node.get(name, 0) // some for name, some in asked.items() if some)) for node in nodes)

    def results(self, pieces: Sequence[P], compute: Callable[[P], T]) -> Iterator[T]:
        """compute(piece) for each piece, in their order."""
        ray = _ray()
        from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

        if not pieces:
            return
        number = min(self.room(), len(pieces))
        if number < 1:
            raise ValueError(f"no node of the cluster has the {self.threads} cores of a worker: give fewer --threads")
        Actor = ray.remote(**self.needs)(Worker)
        sent = ray.put(_packed(compute))
        running: dict[Any, tuple[int | None, Any]] = {}  # pieces being computed, or workers getting ready

        def hire() -> None:
            worker = Actor.remote(sent, self.device, self.threads, unmask.__version__)
            running[worker.ready.remote()] = None, worker

        for _ in range(number):
            hire()
        waiting, done, deaths, reported = deque(range(len(pieces))), dict[int, T](), Counter[int](), 0
        try:
            while reported < len(pieces):
                (one,), _ = ray.wait(list(running), num_returns=1)
                piece, worker = running.pop(one)
                try:
                    value = ray.get(one)
                except (ActorDiedError, ActorUnavailableError) as error:
                    if piece is not None:
                        waiting.appendleft(piece)
                        deaths[piece] += 1
                    fails_to_begin = piece is None and "creation task" in str(error)
                    if fails_to_begin or max(deaths.values(), default=0) >= MOST_DEATHS:
                        raise ValueError(f"the workers fail repeatedly: {error}") from error
                    hire()
                    continue
                except RayTaskError as error:
                    raise error.cause if isinstance(error.cause, Exception) else error from None
                if piece is not None:
                    done[piece] = value
                if waiting:
                    piece = waiting.popleft()
                    running[worker.run.remote(pieces[piece])] = piece, worker
                while reported in done:
                    yield done.pop(reported)
                    reported += 1
        finally:
            for _, worker in running.values():
                ray.kill(worker)


class Worker:
    """The actor that runs on a node."""

    def __init__(self, packed: bytes, device: str, threads: int, version: str) -> None:
        if version != unmask.__version__:
            raise ValueError(f"this node has unmask {unmask.__version__}, and the work comes from {version}")
        torch.set_num_threads(threads)
        self.compute = _unpacked(packed, device)

    def ready(self) -> None:
        """Returns once the worker has started."""

    def run(self, piece: Any) -> Any:
        return self.compute(piece)


def _packed(compute: Callable[..., Any]) -> bytes:
    """A function, pickled with everything it refers to."""
    from ray import cloudpickle

    buffer = io.BytesIO()
    torch.save(compute, buffer, pickle_module=cloudpickle)
    return buffer.getvalue()


def _unpacked(packed: bytes, device: str) -> Callable[..., Any]:
    """The function, with its tensors on a device. The bytes come from the command that started this worker."""
    function: Callable[..., Any] = torch.load(io.BytesIO(packed), map_location=device, weights_only=False)
    return function
