"""Small training runs for the tests: their data, their configurations, and processes of their own to run them in."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.forked import PROCESSES
from unmask.data.tokenwriter import TokenWriter
from unmask.tokenizers.vocabularies import characters
from unmask.training import pace
from unmask.training.config import TrainConfig
from unmask.training.loop import train
from unmask.training.signals import Interrupted

pace.FIRST_VALIDATION = math.inf  # no test's checkpoints hang on a clock

Before = Callable[[], dict[str, Any] | None] | None  # may return arguments of train

LETTERS = "abcdefg"
LENGTH = 12


def write_tokens(folder: Path, *, train: int = 20, valid: int = 16, letters: str = LETTERS, seed: int = 0) -> Path:
    """A folder of token files: sequences in which a letter is mostly followed by the next one of the alphabet."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = characters(letters, eos=False)
    random = np.random.default_rng(seed)
    for name, count in (("train", train), ("valid", valid)):
        steps = random.choice([1, 1, 1, 1, 2, 3], size=(count, LENGTH))
        block = (random.integers(len(letters), size=(count, 1)) + steps.cumsum(1)) % len(letters)
        with TokenWriter(folder / f"{name}.tokens", tokenizer, LENGTH, "rows", source="letters") as writer:
            writer.write(block)
            writer.finish(characters=block.size, bytes=block.size)
    return folder


def settings(data: Path, out: Path, **changes: Any) -> TrainConfig:
    """A run of a fraction of a second: two blocks of width 16, dropout, accumulated gradients, several epochs."""
    base: dict[str, Any] = {
        "data": str(data),
        "out": str(out),
        "preset": "tiny",
        "layers": 2,
        "width": 16,
        "heads": 2,
        "steps": 6,
        "batch": 6,
        "micro_batch": 2,
        "optimizer": "adamw",
        "decay": "constant",
        "convolution": 0,
        "learning_rate": 1e-2,
        "warmup": 2,
        "ema": 0.9,
        "save_every": 2,
        "validate_every": 3,
        "validate_sequences": 8,
        "preview": False,
        "tensorboard": False,
        "device": "cpu",
        "threads": 1,
        "keep": 100,
    }
    return TrainConfig(**(base | changes))


def start(config: TrainConfig, before: Before = None, rank: int = 0, world: int = 1, port: int = 0) -> Any:
    """Begin a run in a process of its own; ``before`` is a module's function, called there first."""
    process = PROCESSES.Process(target=_run, args=(config, before, rank, world, port))
    process.start()
    return process


def run(config: TrainConfig, before: Before = None, world: int = 1) -> list[int]:
    """A run in processes of its own, and their exit codes as ``unmask train`` would give them."""
    with rendezvous() as port:
        return ended([start(config, before, rank, world, port) for rank in range(world)])


def ended(processes: list[Any]) -> list[int]:
    """Their exit codes, when they have come to their ends."""
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


@contextmanager
def rendezvous() -> Iterator[int]:
    """Where processes find each other, as under torchrun: the port of a store that is open, not one found free."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store


def join_as(rank: int, world: int, port: int) -> None:
    """Make this process one of several, as ``accelerate launch --cpu`` starts them."""
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }


def _run(config: TrainConfig, before: Before, rank: int, world: int, port: int) -> None:
    torch.set_num_threads(1)
    if world > 1:
        join_as(rank, world, port)
    try:
        made = before() if before is not None else None
        train(config, **(made or {}))
    except Interrupted as interrupted:
        os._exit(interrupted.exit_code)
    finally:
        if world > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def metrics(out: Path, *kinds: str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what a clock decides."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds", None)
    return [line for line in lines if not kinds or line["kind"] in kinds]
