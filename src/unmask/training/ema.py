"""The exponential moving average of the parameters, which is validated, sampled and published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


def default_decay(steps: int) -> float:
    """The paper's 0.9999 from its 100,000 steps on; for a shorter run the average spans about a tenth of it."""
    return round(min(0.9999, max(0.0, 1 - 10 / max(1, steps))), 6)


def decay_at(step: int, decay: float) -> float:
    """The decay of update number ``step`` = 1, 2, ...: short at first, so that initial values are soon forgotten."""
    return min(decay, (1 + step) / (10 + step))


class EMA:
    """Shadow parameters by name, in float32 and wherever the parameters are (sharded as they are under FSDP)."""

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"ema must be in [0, 1), got {decay}")
        self.decay = decay
        self.parameters = dict(parameters)
        self.shadow = {name: parameter.detach().clone() for name, parameter in parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """shadow <- d shadow + (1 - d) parameters, after update number ``step``."""
        shadow = [_local(tensor) for tensor in self.shadow.values()]
        parameters = [_local(parameter.detach()) for parameter in self.parameters.values()]
        torch._foreach_lerp_(shadow, parameters, 1 - decay_at(step, self.decay))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The network has the averaged parameters inside, and its own again afterwards."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        # By value: the addresses belong to the optimiser, to DDP's buckets and to FSDP's shards.
        for name, parameter in self.parameters.items():
            kept = parameter.detach().clone()
            parameter.copy_(self.shadow[name])
            self.shadow[name].copy_(kept)


def _local(tensor: Tensor) -> Tensor:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
