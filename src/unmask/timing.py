"""How training chooses times t and counts n, over the *global* batch.

Each function returns one value for every sequence of the global batch; a process takes its own rows of the result, so
the stratification holds across processes as it does on one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Times = Callable[[int, torch.Generator], Tensor]


def _uniform(size: int, generator: torch.Generator) -> Tensor:
    if size < 1:
        raise ValueError(f"the batch size must be at least 1, got {size}")
    return torch.rand(size, dtype=torch.float64, generator=generator, device=generator.device)


def independent(batch: int, generator: torch.Generator) -> Tensor:
    """t^(i) ~ U(0, 1), independently."""
    return _uniform(batch, generator)


def vdm(batch: int, generator: torch.Generator) -> Tensor:
    """The low-discrepancy sampler of VDM: t^(i) = mod(u_0 + i/B, 1)."""
    u0 = _uniform(1, generator)
    return torch.remainder(u0 + torch.arange(batch, dtype=torch.float64, device=u0.device) / batch, 1)


def stratified(batch: int, generator: torch.Generator) -> Tensor:
    """The low-discrepancy sampler of MDLM: t^(i) = (u_i + i)/B."""
    u = _uniform(batch, generator)
    return (u + torch.arange(batch, device=u.device)) / batch


def count(t: Tensor, length: int | Tensor) -> Tensor:
    """n = ceil(L t), in 1..L: the number of masked tokens at time t. L may differ per sequence, [B]."""
    length = torch.as_tensor(length, device=t.device)
    if bool((length < 1).any()):
        raise ValueError(f"length must be at least 1, got {length.tolist()}")
    return (t * length).ceil().long().clamp(min=1).minimum(length)


@dataclass
class AdaptiveCount:
    """Adaptive importance sampling over n (App. "Variance Reduction"): p_n proportional to sqrt(E[L_n^2]).

    L_n is a sequence's loss term at n masked tokens. The last ``memory`` values of each n are kept; until every n has
    that many, n is uniform. ``weight`` makes every draw an unbiased estimate of the uniform average over n.
    """

    length: int
    memory: int = 10
    history: Tensor = field(init=False)  # [L, memory], the newest value last
    seen: Tensor = field(init=False)  # [L], the number of values seen for each n

    def __post_init__(self) -> None:
        if self.length < 1 or self.memory < 1:
            raise ValueError(f"length and memory must be at least 1, got {self.length} and {self.memory}")
        self.history = torch.zeros(self.length, self.memory, dtype=torch.float64)
        self.seen = torch.zeros(self.length, dtype=torch.int64)

    def probabilities(self) -> Tensor:
        """p_n for n = 1..L."""
        root = self.history.square().mean(1).sqrt()
        if bool((self.seen < self.memory).any()) or not bool((root > 0).all()):
            return torch.full((self.length,), 1 / self.length, dtype=torch.float64)
        return root / root.sum()

    def draw(self, batch: int, generator: torch.Generator, times: Times = independent) -> tuple[Tensor, Tensor]:
        """n int64 [B] ~ p_n, by the inverse of its CDF at ``times``, and the weights (1/L) / p_n."""
        p = self.probabilities()
        u = times(batch, generator).cpu()
        n = torch.searchsorted(p.cumsum(0), u, right=True).clamp(max=self.length - 1)
        return n + 1, 1 / (self.length * p[n])

    def update(self, n: Tensor, losses: Tensor) -> None:
        """Record the loss terms of this step's global batch; one pass per sequence, in order."""
        for index, value in zip((n - 1).tolist(), losses.double().tolist(), strict=True):
            self.history[index] = torch.cat([self.history[index, 1:], torch.tensor([value], dtype=torch.float64)])
            self.seen[index] += 1

    def state_dict(self) -> dict[str, Tensor]:
        return {"history": self.history.clone(), "seen": self.seen.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state["history"].shape != self.history.shape:
            raise ValueError(f"history must be {tuple(self.history.shape)}, got {tuple(state['history'].shape)}")
        self.history, self.seen = state["history"].clone(), state["seen"].clone()
