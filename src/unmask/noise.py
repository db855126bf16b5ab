"""Random numbers by place: each is a function of (seed, sequence, purpose, position, visit, column).

No number depends on a batch, a step, a device or on earlier draws, and no generator has a state: a number is a hash of
its place. The hash is SplitMix64's finaliser over 64-bit keys.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from unmask.devices import upload
from unmask.protocol import Batched

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: its multiples are spread over all words
# Columns are multiples of GOLDEN, and so are visits plus this: the column with the same word as visit 1 would be the
# 8,482,583,892,990,087,864st.
VISIT = 0xD1B54A32D192ED03
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


@dataclass(frozen=True)
class Noise(Batched):
    """The noise of some places, one key for each; indexed like its keys."""

    keys: Tensor  # int64 [...], on the CPU

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: Any) -> Noise:
        return Noise(self.keys[index])

    def again(self, visits: Tensor | int) -> Noise:
        """Fresh noise for places that have been drawn ``visits`` times before; 0 changes nothing."""
        return self._changed(visits, VISIT)

    def numbered(self, number: Tensor | int) -> Noise:
        """The noise of a step or an attempt; 0 changes nothing.

        The key of number k is the word of column k - 1. Steps and attempts draw no columns. Decoding orders that draw a
        position several times, Algorithm 4 and the published law keep this key, so that results keep their tokens.
        """
        return self._changed(number, 0)

    def _changed(self, k: Tensor | int, constant: int) -> Noise:
        k = torch.as_tensor(k)
        if not bool(k.any()):
            return self
        words = _mixed(k * _signed(GOLDEN) + _signed(constant))
        return Noise(torch.where(k > 0, _mixed(self.keys ^ words), self.keys))

    def uniform(
        self, columns: int | None = None, *, dtype: torch.dtype = torch.float64, device: torch.device | None = None
    ) -> Tensor:
        """U(0, 1) for each place, or ``columns`` of them: [...] or [..., columns].

        The values are multiples of 2^-53 in float64, of 2^-24 in float32 and likewise in others, 1 excluded, as
        torch.rand draws them.
        """
        keys = self.keys if device is None else upload(self.keys, device)
        if columns is None:
            return _unit(_mixed(keys), dtype)
        rows = rows_at_once(columns, device)
        if keys.ndim != 1 or len(keys) <= rows:
            return _unit(_mixed(keys.unsqueeze(-1) ^ _columns(columns, keys.device)), dtype)
        uniforms = torch.empty(len(keys), columns, dtype=dtype)
        for start in range(0, len(keys), rows):
            uniforms[start : start + rows] = Noise(keys[start : start + rows]).uniform(columns, dtype=dtype)
        return uniforms

    def exponential(self, columns: int, *, device: torch.device | None = None) -> Tensor:
        """Exp(1) clocks [..., columns]: -log(1 - u), and 2^-54 where that is 0, which would win any race."""
        return self.uniform(columns, device=device).neg_().log1p_().neg_().clamp_(min=2.0**-54)

    def log_clocks(self, columns: int, *, device: torch.device | None = None) -> Iterator[Tensor]:
        """Their logarithms [n, columns], for consecutive places: pieces that fit into a core's cache."""
        for keys in torch.split(self.keys, rows_at_once(columns, device)):
            yield Noise(keys).exponential(columns, device=device).log_()


@dataclass(frozen=True)
class KeptNoise(Noise):
    """Noise that caches the clocks of its places until they are dropped."""

    clocks: dict[int, Tensor] = field(default_factory=dict)  # their logarithms [columns], by key

    def __getitem__(self, index: Any) -> KeptNoise:
        return KeptNoise(self.keys[index], self.clocks)

    def take(self, index: Tensor) -> KeptNoise:
        return self[index]

    def log_clocks(self, columns: int, *, device: torch.device | None = None) -> Iterator[Tensor]:
        keys = self.keys.tolist()
        new = [key for key in dict.fromkeys(keys) if key not in self.clocks]
        if new:
            drawn = (row for piece in Noise(torch.tensor(new)).log_clocks(columns, device=device) for row in piece)
            self.clocks.update(zip(new, drawn, strict=True))
        rows = rows_at_once(columns, device)
        for start in range(0, len(keys), rows):
            yield torch.stack([self.clocks[key] for key in keys[start : start + rows]])

    def forget(self, positions: Tensor) -> None:
        """Drop the clocks of positions [B, R], without padding (-1), of a noise with keys [B, L]."""
        row, column = (positions >= 0).nonzero(as_tuple=True)
        for key in self.keys[row, positions[row, column]].tolist():
            self.clocks.pop(key, None)


AT_ONCE = 1 << 16  # numbers: as many words as fit into a core's cache


def rows_at_once(columns: int, device: torch.device | None = None) -> int:
    """How many rows of this many numbers to process together: those that fit into a core's cache; all on a GPU."""
    return max(1, AT_ONCE // max(columns, 1)) if device is None or device.type == "cpu" else sys.maxsize


BITS = {torch.float64: 53, torch.float32: 24, torch.bfloat16: 8, torch.float16: 11}
"""Significant bits of each type: as many as a uniform on an even grid below 1 can have."""


@dataclass(frozen=True)
class Streams:
    """The noise of a run's sequences: sequence i of seed s has the same noise alone or in any batch."""

    places: tuple[tuple[int, int], ...]  # (seed, which sequence of that seed)
    suffix: str = ""  # of every purpose

    @classmethod
    def of(cls, seed: int | Sequence[int], num: int, index: Sequence[int] | None = None) -> Streams:
        """The first ``num`` sequences of a seed, or its sequences ``index``; with one seed each, the first of each."""
        if index is not None and (len(index) != num or isinstance(seed, Sequence)):
            raise ValueError(
                f"index must have one number per sequence, with one seed: {num} sequences, {len(index)} numbers"
            )
        if not isinstance(seed, Sequence):
            return cls(tuple((_checked(seed), i) for i in (range(num) if index is None else index)))
        if len(seed) != num:
            raise ValueError(f"seed must be one number or one per sequence: {num} sequences, {len(seed)} seeds")
        return cls(tuple((_checked(one), 0) for one in seed))

    def __len__(self) -> int:
        return len(self.places)

    def take(self, index: Sequence[int]) -> Streams:
        """The streams of some of the sequences."""
        return Streams(tuple(self.places[i] for i in index), self.suffix)

    def particle(self, k: int) -> Streams:
        """The streams of particle k of each sequence; the first has those of the sequence itself."""
        return Streams(self.places, f" of particle {k}" if k else "")

    def at(self, purpose: str, length: int) -> Noise:
        """The noise of every position for one purpose: keys [B, L]."""
        sequences = [_signed(word(seed, purpose + self.suffix) + i * GOLDEN) for seed, i in self.places]
        keys = _mixed(torch.tensor(sequences, dtype=torch.int64)).unsqueeze(1)
        return Noise(_mixed(keys + torch.arange(length) * _signed(GOLDEN)))


def generator(number: int, *key: int | str) -> torch.Generator:
    """A torch.Generator for stream ``number`` of a key, such as a seed and a purpose. Streams of one key are distinct.

    torch's CPU generator keeps the lowest 32 bits of its seed. A hash of everything would let two of 100,000 streams
    collide; here the key is hashed, and its streams are counted from there and scrambled by a bijection.
    """
    start = word(*key)
    return torch.Generator().manual_seed((start >> 32 << 32) | _scramble((start + int(number)) & 0xFFFFFFFF))


@lru_cache(maxsize=1024)
def word(*key: int | str) -> int:
    """64 bits that depend on every part of the key."""
    # int() because numpy's integers equal Python's but have another representation as text.
    written = repr([part if isinstance(part, str) else int(part) for part in key])
    return int.from_bytes(hashlib.shake_256(written.encode()).digest(8), "little")


def _unit(words: Tensor, dtype: torch.dtype) -> Tensor:
    """The highest bits of each word as a number in [0, 1)."""
    bits = BITS[dtype]
    return (words >> (64 - bits)).bitwise_and_((1 << bits) - 1).to(dtype).mul_(2.0**-bits)


def _mixed(words: Tensor) -> Tensor:
    """A bijection of 64-bit words in which every input bit moves about half of the output bits; a new tensor."""
    shifted = torch.empty_like(words)

    def fold(words: Tensor, shift: int) -> Tensor:
        torch.bitwise_right_shift(words, shift, out=shifted)  # the shift copies the sign: cut that off
        return words.bitwise_xor_(shifted.bitwise_and_((1 << (64 - shift)) - 1))

    words = fold(words.clone(), 30).mul_(_signed(FACTORS[0]))
    words = fold(words, 27).mul_(_signed(FACTORS[1]))
    return fold(words, 31)


@lru_cache(maxsize=16)
def _columns(count: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return _mixed((torch.arange(count, device=device) + 1) * _signed(GOLDEN))


def _scramble(word: int) -> int:
    """The same for 32-bit words."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        word = (word ^ word >> shift) * factor & 0xFFFFFFFF
    return word ^ word >> 16


def _signed(word: int) -> int:
    """The 64-bit word as torch's signed integers write it."""
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


def _checked(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
    return seed
