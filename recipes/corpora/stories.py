"""The corpus ``stories``: text of the 15 M TinyStories model, with the exact -log p of every token.

The distribution: the teacher is stories15m with its vocabulary restricted to the 4,096 ids that it uses most, at every
step. A row begins with the token that begins and ends stories; the teacher then writes at temperature 1, and where it
ends a story, a new one begins, independent of it. The row is cut at its length. So rows are independent and identically
distributed, and log p(row) is the sum of the teacher's log-probabilities.

Rows are drawn in shards, each a file that is written atomically: an interrupted run continues with the next shard, and
machines may share the shards. A token is a function of its noise, which belongs to (seed, part, row, position), and of
the teacher's distribution; another batch or machine changes the latter only by rounding.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.checkpoints import llama2c
from unmask.data.parts import Progress
from unmask.draw import Pick
from unmask.evaluate.judge.oracle import OracleJudge
from unmask.fetch import cache_folder
from unmask.files import write_whole
from unmask.networks.cache.llama import CachedLlama
from unmask.networks.llama import Llama
from unmask.noise import Streams
from unmask.tokenizers.tokenizer import Tokenizer

PARTS = ("valid", "train")  # in the order in which they are drawn

LENGTH = 256  # of the rows, with their first token; what the teacher was trained on
ROWS = 256  # of a shard
DRAWN = ROWS * (LENGTH - 1)  # tokens of a shard: the first of each row is given


@dataclass(frozen=True)
class Teacher:
    """A causal network that writes stories using only ``ids``; the last of these begins and ends a story."""

    network: Llama = field(repr=False)
    ids: Tensor = field(repr=False)  # int64 [V]: the teacher's id of each of ours

    def __post_init__(self) -> None:
        if len(set(self.ids.tolist())) != len(self.ids) or int(self.ids[-1]) != llama2c.BOS:
            raise ValueError(f"ids must be different, and the last of them {llama2c.BOS}, which begins a story")

    @property
    def eos(self) -> int:
        """Our id of the token that begins and ends a story."""
        return len(self.ids) - 1

    def rows(
        self, seed: int, part: str, first: int, count: int, length: int = LENGTH,
        seen: Callable[[Tensor, int], None] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Rows first .. first + count - 1 of a part: tokens int64 [count, length], and their nats in float64.

        The first token of a row is given, so it has 0 nats. seen: called with each step's log-probabilities.
        """
        noise = Streams(tuple((seed, first + i) for i in range(count))).at(f"stories {part}", length)
        tokens = torch.full((count, length), self.eos)
        nats = torch.zeros(count, length, dtype=torch.float64)
        network, pick = CachedLlama(self.network, count, length - 1, start=llama2c.BOS, ids=self.ids), Pick()
        for i in range(1, length):
            log_p = network(self.ids[tokens[:, i - 1]]).double().log_softmax(-1)
            tokens[:, i], chosen = pick(log_p, noise[:, i], normalised=True)
            nats[:, i] = -chosen.log()
            if seen is not None:
                seen(log_p, i)
        return tokens, nats

    @property
    def vocab_size(self) -> int:
        return len(self.ids)

    def nats(self, tokens: Tensor) -> Tensor:
        """-log p of each token of rows [B, L], float64; infinite for a first token that does not begin a story."""
        nats = torch.zeros(tokens.shape, dtype=torch.float64)
        nats[:, :1] = torch.where(tokens[:, :1] == self.eos, 0.0, torch.inf)
        network = CachedLlama(self.network, len(tokens), max(1, tokens.shape[1] - 1), start=llama2c.BOS, ids=self.ids)
        for i in range(1, tokens.shape[1]):
            log_p = network(self.ids[tokens[:, i - 1]]).double().log_softmax(-1)
            nats[:, i] = -log_p.gather(1, tokens[:, i : i + 1]).squeeze(1)
        return nats

    def judged_nats(self, tokens: Tensor) -> Tensor:
        """As ``OracleJudge`` asks for them: the first token of a row is given."""
        return self.nats(tokens)[:, 1:]


def law(cache: str | os.PathLike[str] | None = None) -> Teacher:
    """The distribution that the corpus is drawn from."""
    return Teacher(llama2c.stories15m(cache)[0], kept_ids())


def judge() -> OracleJudge:
    """The distribution as a judge: ``unmask judge SAMPLES --judge recipes.corpora.stories:judge``."""
    how = "the distribution of the corpus stories judges the samples' own tokens; the first one is given"
    return OracleJudge(law(), "truth", how)


def kept_ids() -> Tensor:
    """The teacher's ids that the corpus uses; ``recipes/stories_vocabulary.py`` chose them."""
    raw = Path(__file__).with_name("stories.ids").read_bytes()
    return torch.from_numpy(np.frombuffer(raw, "<u2").astype(np.int64))


@dataclass(frozen=True)
class Shard:
    """Some rows of a part, drawn or not yet."""

    path: Path
    part: str
    first: int
    rows: int
    length: int

    def exists(self) -> bool:
        return self.path.is_file()

    def make(self, teacher: Teacher, seed: int) -> None:
        """Draw the rows and write them."""
        tokens, nats = teacher.rows(seed, self.part, self.first, self.rows, self.length)
        content = io.BytesIO()
        np.savez(content, tokens=tokens.numpy().astype(np.uint16), nats=nats.numpy().astype(np.float32))
        write_whole(self.path, content.getvalue())

    def read(self) -> tuple[NDArray[np.uint16], NDArray[np.float32]]:
        """Tokens and nats, [rows, length] each."""
        with np.load(self.path) as content:
            return content["tokens"], content["nats"]


@dataclass(frozen=True)
class Store:
    """The shards of one seed, in a folder."""

    folder: Path
    seed: int = 0
    rows: int = ROWS  # of a shard
    length: int = LENGTH

    @classmethod
    def of(cls, seed: int = 0, cache: str | os.PathLike[str] | None = None) -> Store:
        return cls(cache_folder(cache) / "corpora" / f"stories-{seed}", seed)

    def shards(self, part: str, count: int) -> list[Shard]:
        paths = [self.folder / f"{part}-{i:05d}.npz" for i in range(count)]
        return [Shard(path, part, i * self.rows, self.rows, self.length) for i, path in enumerate(paths)]

    def missing(self, counts: Mapping[str, int]) -> Iterator[Shard]:
        """The shards still to be drawn, the held-out part first."""
        for part in PARTS:
            yield from (shard for shard in self.shards(part, counts[part]) if not shard.exists())

    def fill(self, teacher: Teacher, counts: Mapping[str, int], report: Progress) -> None:
        """Draw the missing shards, and report the number of tokens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for shard in self.missing(counts):
            tokens = self.length - 1
            report(f"draw {shard.part}", shard.first * tokens, counts[shard.part] * self.rows * tokens)
            shard.make(teacher, self.seed)


def parts(
    tokens: Mapping[str, int], seed: int, cache: str | os.PathLike[str] | None, report: Progress
) -> tuple[Tokenizer, dict[str, tuple[int, Iterator[tuple[NDArray[np.uint16], NDArray[np.float32]]]]]]:
    """Draw what is missing of this many tokens; the tokenizer, and each part's number of rows and rows."""
    store, counts = Store.of(seed, cache), {part: math.ceil(count / DRAWN) for part, count in tokens.items()}
    network, pieces = llama2c.stories15m(cache)
    store.fill(Teacher(network, kept_ids()), counts, report)
    tokenizer = llama2c.tokenizer(pieces, kept_ids().tolist())
    return tokenizer, {
        part: (count * ROWS, (shard.read() for shard in store.shards(part, count))) for part, count in counts.items()
    }
