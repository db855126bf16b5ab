"""Token files and models that the tests of evaluation share, and two processes to run them in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.helpers import generator
from tests.training.runs import PROCESSES, ended, join_as, rendezvous
from unmask.data.tokens import TokenFile
from unmask.data.tokenwriter import TokenWriter
from unmask.model import Model
from unmask.networks.oracles.enumerated import MarkovOracle
from unmask.tokenizers.vocabularies import characters

LETTERS = "abcd"
TOKENIZER = characters(LETTERS, eos=False)
LENGTH = 10


def chain() -> MarkovOracle:
    """A letter is mostly followed by the next one."""
    step = torch.eye(4, dtype=torch.float64).roll(1, 1)
    return MarkovOracle(torch.full((4,), 0.25, dtype=torch.float64), 0.7 * step + 0.075)


def entropy(model: MarkovOracle, length: int) -> float:
    """Of a sequence in nats: of its first letter, and of every step."""
    row = model.transition[0]
    return float(np.log(4) - (length - 1) * torch.xlogy(row, row).sum())


def write(path: Path, num: int = 9, *, seed: int = 0, length: int = LENGTH) -> TokenFile:
    """Exact draws of the chain."""
    block = chain().sample(num, length, generator=generator(seed)).numpy()
    with TokenWriter(path, TOKENIZER, length, "rows", source="a chain of letters") as writer:
        writer.write(block)
        return writer.finish(characters=block.size, bytes=block.size)


def in_two_processes(target: Any, *arguments: Any) -> list[int]:
    """Call a module's function in two processes as ``accelerate launch --cpu`` starts them, and their exit codes."""
    with rendezvous() as port:
        started = [PROCESSES.Process(target=_run, args=(target, rank, port, arguments)) for rank in range(2)]
        for process in started:
            process.start()
        return ended(started)


def _run(target: Any, rank: int, port: int, arguments: tuple[Any, ...]) -> None:
    join_as(rank, 2, port)
    target(*arguments)


def oracle_model() -> Model:
    return Model(chain(), TOKENIZER, layout="rows")


def read(path: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(path.read_text())
    return made
