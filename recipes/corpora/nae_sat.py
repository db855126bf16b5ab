"""Latents and observations, after "Train for the worst, plan for the best" (Kim et al. 2025): one order is easy.

A sequence is N latent bits, fair and independent, followed by P observations: observation j is 1 unless its three
latents are all equal (Not-All-Equal). The triples are drawn once for the corpus, without repetition. Given the latents
the observations are certain, whereas finding the latents from some of the observations is a hard problem. Every
possible sequence has probability 2^-N.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unmask.noise import Streams, generator

LARGEST_LIST = 20  # latents whose 2^N assignments are listed


@dataclass(frozen=True)
class NaeSat:
    """One such distribution: the triples follow from the seed."""

    latents: int = 25
    observations: int = 275
    seed: int = 0

    def __post_init__(self) -> None:
        if self.latents < 3 or not 1 <= self.observations <= math.comb(self.latents, 3):
            most = math.comb(max(self.latents, 0), 3)
            raise ValueError(
                f"latents={self.latents} and observations={self.observations}: at least 3 latents and from 1 to "
                f"{most:,} observations, as many as there are triples"
            )

    @property
    def length(self) -> int:
        return self.latents + self.observations

    @property
    def nats(self) -> float:
        """-log p of every possible sequence."""
        return self.latents * math.log(2)

    @cached_property
    def triples(self) -> NDArray[np.int64]:
        """The latents of each observation: [P, 3]."""
        every = np.array(list(itertools.combinations(range(self.latents), 3)))
        order = np.random.default_rng(generator(0, self.seed, "nae-sat triples").initial_seed()).permutation(len(every))
        triples: NDArray[np.int64] = every[order[: self.observations]]
        return triples

    def observed(self, latents: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The observations [..., P] of latents [..., N]."""
        total = latents[..., self.triples].sum(-1)
        differ: NDArray[np.uint8] = ((total > 0) & (total < 3)).astype(np.uint8)
        return differ

    def draw(self, num: int, *, first: int = 0, part: str = "train") -> NDArray[np.uint8]:
        """Independent sequences first .. first + num - 1, [num, N + P]: sequence i depends only on (seed, part, i)."""
        noise = Streams.of(self.seed, num, range(first, first + num)).at(f"nae-sat {part}", 1)
        latents = (noise[:, 0].uniform(self.latents) < 0.5).numpy().astype(np.uint8)
        return np.concatenate((latents, self.observed(latents)), 1)

    def everything(self) -> NDArray[np.uint8]:
        """All 2^N sequences, for the exact posterior in models/oracles/listed.py."""
        if self.latents > LARGEST_LIST:
            raise ValueError(f"latents={self.latents}: at most {LARGEST_LIST} can be listed")
        numbers = np.arange(2**self.latents)[:, None] >> np.arange(self.latents - 1, -1, -1)
        latents = (numbers & 1).astype(np.uint8)
        return np.concatenate((latents, self.observed(latents)), 1)

    def right(self, sequences: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which observations [B, P] agree with the sequence's latents."""
        cells = np.asarray(sequences)
        wanted: NDArray[np.bool_] = cells[:, self.latents :] == self.observed(cells[:, : self.latents].astype(np.uint8))
        return wanted
