"""The likelihood bound of a masked model, with its error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unmask import objective, timing
from unmask.models.protocol import Denoiser, device_of, inference
from unmask.schedule import Linear, Schedule


@dataclass(frozen=True)
class Bound:
    """An upper bound on -log p of each sequence, in nats, and the standard error of its estimate.

    The times or counts of a sequence's passes are stratified, so the errors, which are those of independent passes,
    are somewhat larger than the truth.
    """

    nats: Tensor  # float64 [B]
    errors: Tensor  # float64 [B]; infinite after a single pass
    length: int

    @property
    def nats_per_token(self) -> float:
        return float(self.nats.mean()) / self.length

    @property
    def error_per_token(self) -> float:
        """The estimate's error for these very sequences: what more passes would make smaller."""
        return float(self.errors.square().sum().sqrt()) / len(self.errors) / self.length

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats_per_token)


def nelbo(
    model: Denoiser,
    tokens: Tensor,
    *,
    by: Literal["count", "time"] = "count",
    passes: int = 16,
    generator: torch.Generator | None = None,
    schedule: Schedule | None = None,
    batch: int = 64,
) -> Bound:
    """The NELBO of each sequence by the number of masked tokens (Eq. 7) or by time (Eq. 6), over several passes.

    Each sequence's passes are spread evenly over the counts or times, one in each of ``passes`` equal parts. tokens is
    int64 [B, L] without a mask; the generator is seeded with 0 if none is given.
    """
    if by not in ("count", "time"):
        raise ValueError(f"by must be 'count' (Eq. 7) or 'time' (Eq. 6), got {by!r}")
    if passes < 1 or batch < 1:
        raise ValueError(f"passes and batch must be at least 1, got passes={passes} and batch={batch}")
    if tokens.ndim != 2 or tokens.dtype != torch.int64 or tokens.shape[1] < 1:
        raise ValueError(f"tokens must be int64 [batch, length], got {tokens.dtype} {tuple(tokens.shape)}")
    if bool((tokens == model.mask_id).any()):
        raise ValueError(f"tokens must be complete: they hold the mask {model.mask_id}")
    generator = generator or torch.Generator().manual_seed(0)
    schedule = schedule or Linear()
    tokens = tokens.to(device_of(model))
    spread = torch.stack([timing.stratified(passes, generator) for _ in tokens], 1) if len(tokens) else torch.empty(0)
    estimates = torch.zeros(passes, len(tokens), dtype=torch.float64)
    with inference(model):
        for i in range(passes):
            for start in range(0, len(tokens), batch):
                part = slice(start, start + batch)
                x0, t = tokens[part], spread[i, part]
                if by == "time":
                    nats = objective.nelbo_by_time(model, x0, t, generator=generator, schedule=schedule)
                else:
                    n = timing.count(t, x0.shape[1])
                    nats = objective.nelbo_by_count(model, x0, n, generator=generator, schedule=schedule)
                estimates[i, part] = nats.double().cpu()
    errors = estimates.std(0) / math.sqrt(passes) if passes > 1 else torch.full_like(estimates[0], math.inf)
    return Bound(estimates.mean(0), errors, tokens.shape[1])
