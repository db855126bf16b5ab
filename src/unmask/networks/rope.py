"""Rotary frequencies as released models stretch them to longer texts.

Pair k of D rotated features turns by f_k = theta^(-2k/D) per position. To read texts ``factor`` times longer, slow
pairs turn by f_k / factor and fast ones stay: (keep_k + (1 - keep_k) / factor) f_k, where the kind decides keep_k.

    linear   0: every pair is slowed
    llama3   how many turns pair k makes within the old length, from ``slow`` (0) to ``fast`` (1), linear in between
    yarn     linear in k, from the pair that makes ``fast`` turns within the old length (1) to the one of ``slow`` (0)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

Kind = Literal["linear", "llama3", "yarn"]
FIELDS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
OPTIONAL = {"yarn": ("attention_factor", "beta_fast", "beta_slow", "truncate")}
ELSEWHERE = ("type", "rope_type", "rope_theta", "partial_rotary_factor")  # read by the checkpoint's format


@dataclass(frozen=True)
class Scaling:
    """How the frequencies of a model are stretched."""

    kind: Kind
    factor: float
    length: float = 0.0  # the old length
    slow: float = 1.0  # turns within the old length
    fast: float = 32.0
    whole: bool = True  # yarn: between whole pairs
    attention: float = 1.0  # what cosines and sines are multiplied by

    def keep(self, frequencies: Tensor, theta: float) -> Tensor:
        """keep_k, [D / 2]."""
        if self.kind == "linear":
            return torch.zeros_like(frequencies)
        if self.kind == "llama3":
            turns = self.length * frequencies / (2 * math.pi)
            return ((turns - self.slow) / (self.fast - self.slow)).clamp(0, 1)
        size, pairs = 2 * len(frequencies), torch.arange(len(frequencies), dtype=torch.float32)
        first, last = (
            size * math.log(self.length / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (self.fast, self.slow)
        )
        first, last = (math.floor(first), math.ceil(last)) if self.whole else (first, last)
        first, last = max(first, 0), min(last, size - 1)
        last += 0.001 * (first == last)
        return 1 - ((pairs - first) / (last - first)).clamp(0, 1).to(frequencies.device)


def frequencies(theta: float, size: int, scaling: Scaling | None, device: torch.device) -> Tensor:
    """The turn per position of each pair of ``size`` features, in radians: float32 [size / 2]."""
    k = torch.arange(0, size, 2, dtype=torch.float32, device=device)
    plain: Tensor = theta ** -(k / size)
    if scaling is None:
        return plain
    keep = scaling.keep(plain, theta)
    return plain * (keep + (1 - keep) / scaling.factor)


def read(said: Mapping[str, Any] | None, where: object) -> Scaling | None:
    """The ``rope_scaling`` or ``rope_parameters`` of a config; ValueError if they are not understood."""
    if not said:
        return None
    kind = said.get("rope_type", said.get("type", "default"))
    if kind == "default":
        return None
    if kind not in get_args(Kind):
        known = ", ".join(("default", *get_args(Kind)))
        raise ValueError(f"{where}: its rotary positions are scaled by {kind!r}; known are {known}")
    allowed = (*FIELDS[kind], *OPTIONAL.get(kind, ()), *ELSEWHERE)
    for name, value in said.items():
        if name not in allowed and value is not None:
            raise ValueError(f"{where}: rope scaling by {kind!r} with {name}={value!r} is not known")
    values = [_positive(said, name, where) for name in FIELDS[kind]]
    if kind == "linear":
        return Scaling("linear", values[0])
    if kind == "llama3":
        factor, slow, fast, length = values
        return Scaling("llama3", factor, length, slow, fast)
    factor, length = values
    attention = said.get("attention_factor")
    if attention is None:
        attention = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    slow, fast = said.get("beta_slow") or 1, said.get("beta_fast") or 32
    return Scaling("yarn", factor, length, slow, fast, said.get("truncate", True), float(attention))


def _positive(said: Mapping[str, Any], name: str, where: object) -> float:
    value = said.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{where}: its rope scaling needs a positive {name}, got {value!r}")
    return float(value)
