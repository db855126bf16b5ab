"""Dataclasses that hold a batch: one entry per sequence in every field that is a tensor or a list."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Self

from torch import Tensor


class Batched:
    """Whatever a batch of sequences is described by. Fields that are no tensors, lists or Batched are everybody's."""

    def take(self, index: Tensor) -> Self:
        """The same for some of the sequences, int64 [b]."""
        changed = {field.name: _taken(getattr(self, field.name), index) for field in fields(self)}  # type: ignore[arg-type]
        return replace(self, **changed)  # type: ignore[type-var]


def _taken(value: Any, index: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value[index.to(value.device)]
    if isinstance(value, list):
        return [value[i] for i in index.tolist()]
    return value.take(index) if isinstance(value, Batched) else value
