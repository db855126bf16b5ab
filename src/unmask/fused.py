"""The default draw in one Triton kernel: hash, clocks and running maximum, tile by tile of the vocabulary.

The torch path (``draw.exponential_race``) makes several [rows, V] float64 tensors. This reads the logits once and
stores one id per row. The same integers are hashed and the same float64 formula is computed, so the ids are the same;
two logarithms may differ in their last bit, which can only decide between two ids with equal values to 15 digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from unmask.noise import Noise, Streams

BLOCK = 1024  # columns at a time


@triton.jit  # type: ignore[untyped-decorator]
def _mixed(word: Any) -> Any:
    """``noise._mixed`` of unsigned words."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB
    return word ^ (word >> 31)


@triton.jit  # type: ignore[untyped-decorator]
def _race(logits: Any, keys: Any, ids: Any, values: Any, columns: Any, stride: Any, block: tl.constexpr) -> None:
    """One row per program: argmax over the columns of logits - log E, E = -log(1 - u) of the row's noise."""
    row = tl.program_id(0).to(tl.int64)
    key = tl.load(keys + row).to(tl.uint64, bitcast=True)
    best = tl.full((), float("-inf"), tl.float64)
    winner = tl.full((), 0, tl.int64)
    for start in range(0, columns, block):
        column = start + tl.arange(0, block).to(tl.int64)
        inside = column < columns
        word = _mixed(key ^ _mixed((column + 1).to(tl.uint64) * 0x9E3779B97F4A7C15))
        u = (word >> 11).to(tl.float64) * 1.1102230246251565e-16  # 2^-53
        clock = tl.maximum(-tl.log(1.0 - u), 5.551115123125783e-17)  # 2^-54
        logit = tl.load(logits + row * stride + column, mask=inside, other=float("-inf")).to(tl.float64)
        value = logit - tl.log(clock)
        value = tl.where(value != value, float("inf"), value)  # NaN wins here and is refused by the caller
        value = tl.where(inside, value, float("-inf"))
        top = tl.max(value, 0)
        first = tl.min(tl.where(value == top, column, columns), 0)
        winner = tl.where(top > best, first, winner)
        best = tl.maximum(best, top)
    tl.store(ids + row, winner)
    tl.store(values + row, best)


def race(logits: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """The winner of each row [R, V] and its value, float64 [R]; keys int64 [R] on the device of the logits."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    values = torch.empty(len(logits), dtype=torch.float64, device=logits.device)
    if len(logits):
        _race[(len(logits),)](logits, keys, ids, values, logits.shape[1], logits.stride(0), BLOCK)
    return ids, values


@cache
def sound(device: torch.device, plain: Callable[[Tensor, Noise], tuple[Tensor, Tensor]]) -> bool:
    """Whether the kernel compiles on this device and draws there what ``plain`` does, on a few rows; checked once."""
    noise = Streams.of(0, 8).at("check", 1)[:, 0]
    logits = torch.linspace(-3, 3, 8 * (BLOCK + 7), dtype=torch.float64).view(8, -1).sin().to(device)
    try:
        ids = race(logits, noise.keys.to(device))[0]
    except Exception:  # Triton raises its compiler's own errors, and the torch path needs none of it
        return False
    return bool(torch.equal(ids, plain(logits, noise)[0]))
