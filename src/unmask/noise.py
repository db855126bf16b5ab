"""Numbered streams of random numbers: whatever is random here comes from a seed, a purpose and a number."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import torch


def generator(number: int, *key: int | str) -> torch.Generator:
    """Stream ``number`` of a key, such as a seed and a purpose. Streams of one key are never the same.

    torch's CPU generator keeps the lowest 32 bits of its seed. A hash of everything would let two of 100,000 streams
    collide; here the key is hashed, and its streams are counted from there and scrambled by a bijection.
    """
    start = word(*key)
    return torch.Generator().manual_seed((start >> 32 << 32) | _scramble((start + int(number)) & 0xFFFFFFFF))


@lru_cache(maxsize=1024)
def word(*key: int | str) -> int:
    """64 bits that depend on every part of the key."""
    # int() because numpy's integers are equal to Python's but are not written the same way.
    written = repr([part if isinstance(part, str) else int(part) for part in key])
    return int.from_bytes(hashlib.shake_256(written.encode()).digest(8), "little")


def _scramble(word: int) -> int:
    """A bijection of 32-bit words in which every input bit moves about half of the output bits."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        word = (word ^ word >> shift) * factor & 0xFFFFFFFF
    return word ^ word >> 16
