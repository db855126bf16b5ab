"""The corpus ``stories``: what the 15 M TinyStories model writes, with the exact -log p of every token.

The law. The teacher is stories15m with its vocabulary cut to the 4,096 ids that it uses most: at each step it is
conditioned on one of them. A row begins with the token that begins and ends stories; the teacher then writes at
temperature 1, and where it ends a story, a new one begins that sees nothing of it. The row is cut at its length. So
rows are independent, all of one law, and log p(row) is the sum of the teacher's log-probabilities.

Rows are drawn in shards, each a file that appears whole: what was stopped goes on with the next shard, and machines
may share the shards between them. A token is a function of its noise, which belongs to (seed, part, row, position),
and of the teacher's distribution; another batch or machine changes the latter by rounding alone.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.draw import Pick
from unmask.models.fast.llama import CachedLlama
from unmask.models.files import write_whole
from unmask.models.llama import Llama
from unmask.noise import Streams
from unmask.text import llama2c
from unmask.text.fetch import cache_folder

Part = Literal["train", "valid"]
PARTS: tuple[Part, ...] = ("valid", "train")

LENGTH = 256  # of the rows, their first token included; what the teacher was trained to read
ROWS = 256  # of a shard: 65,280 tokens that are drawn
SHARDS = {"valid": 16, "train": 308}  # 1.04 and 20.1 million tokens


@dataclass(frozen=True)
class Teacher:
    """A causal network that writes stories with some of its ids, those of ``ids``; the last begins and ends a story."""

    network: Llama = field(repr=False)
    ids: Tensor = field(repr=False)  # int64 [V]: the teacher's id of each of ours

    def __post_init__(self) -> None:
        if len(self.ids.unique()) != len(self.ids) or int(self.ids[-1]) != llama2c.BOS:
            raise ValueError(f"ids must be different, and the last of them {llama2c.BOS}, which begins a story")

    @property
    def eos(self) -> int:
        """Our id of the token that begins and ends a story."""
        return len(self.ids) - 1

    def rows(
        self, seed: int, part: str, first: int, count: int, length: int = LENGTH,
        seen: Callable[[Tensor, int], None] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Rows first .. first + count - 1 of a part: tokens int64 [count, length], and float64 nats of each.

        The first token of a row is given, so it has 0 nats. seen: called with each step's log-probabilities.
        """
        noise = Streams(tuple((seed, first + i) for i in range(count))).at(f"stories {part}", length)
        tokens = torch.full((count, length), self.eos)
        nats = torch.zeros(count, length, dtype=torch.float64)
        # Of the first of several equal ids: which id is asked about must not depend on which ids are kept.
        network, pick = CachedLlama(self.network, count, length - 1, start=llama2c.BOS, ids=self.ids), Pick()
        for i in range(1, length):
            log_p = network(self.ids[tokens[:, i - 1]]).double().log_softmax(-1)
            tokens[:, i], chosen = pick(log_p, noise[:, i], normalised=True)
            nats[:, i] = -chosen.log()
            if seen is not None:
                seen(log_p, i)
        return tokens, nats


def stories15m(cache: str | os.PathLike[str] | None = None) -> Teacher:
    """The corpus's own teacher, with the ids that ``recipes/stories_vocabulary.py`` chose."""
    raw = resources.files("unmask.data").joinpath("stories.ids").read_bytes()
    return Teacher(llama2c.stories15m(cache)[0], torch.from_numpy(np.frombuffer(raw, "<u2").astype(np.int64)))


@dataclass(frozen=True)
class Shard:
    """Some rows of a part, on the disk or not yet."""

    path: Path
    part: Part
    number: int

    def exists(self) -> bool:
        return self.path.is_file()

    def make(self, teacher: Teacher, seed: int) -> None:
        """Draw the rows and write them."""
        tokens, nats = teacher.rows(seed, self.part, self.number * ROWS, ROWS)
        content = io.BytesIO()
        np.savez(content, tokens=tokens.numpy().astype(np.uint16), nats=nats.numpy().astype(np.float32))
        write_whole(self.path, content.getvalue())

    def read(self) -> tuple[NDArray[np.uint16], NDArray[np.float32]]:
        """Tokens and nats, [ROWS, LENGTH] each."""
        with np.load(self.path) as content:
            return content["tokens"], content["nats"]


@dataclass(frozen=True)
class Store:
    """The shards of one seed, in a folder."""

    folder: Path
    seed: int = 0

    @classmethod
    def of(cls, seed: int = 0, cache: str | os.PathLike[str] | None = None) -> Store:
        return cls(cache_folder(cache) / "corpora" / f"stories-{seed}", seed)

    def shards(self, part: Part, count: int) -> list[Shard]:
        return [Shard(self.folder / f"{part}-{i:05d}.npz", part, i) for i in range(count)]

    def missing(self, counts: dict[str, int]) -> Iterator[Shard]:
        """What is still to be drawn, the held-out part first."""
        for part in PARTS:
            yield from (shard for shard in self.shards(part, counts[part]) if not shard.exists())

    @cached_property
    def teacher(self) -> Teacher:
        return stories15m()

    def fill(self, counts: dict[str, int], report: Callable[[str, int, int], None]) -> None:
        """Draw what is missing; report(part, shards done, of so many)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for shard in self.missing(counts):
            report(shard.part, shard.number, counts[shard.part])
            shard.make(self.teacher, self.seed)
