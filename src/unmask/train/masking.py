"""A step's masks, times and weights over the global batch: a pure function of (seed, step).

Every process draws them for the whole batch and takes its share, so eight processes see the masks that one would see,
and stratified times are stratified across all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unmask import objective, timing
from unmask.data.batches import generator, share
from unmask.forward import mask_by_count, mask_by_time
from unmask.models.causal import Causal
from unmask.models.ddit import DDiT
from unmask.models.self_conditioned import SelfConditioned
from unmask.protocol import follows_order
from unmask.schedule import Linear, Schedule
from unmask.train.head import cross_entropy

TIMES: dict[str, timing.Times] = {
    "independent": timing.independent, "vdm": timing.vdm, "stratified": timing.stratified,
}  # fmt: skip
ALL_TOKENS = ("left-to-right", "two-stream")  # objectives that are the chain rule: every token is a term, of weight 1


@dataclass(frozen=True)
class Masking:
    """What is hidden of each sequence, and what its loss is multiplied by."""

    masked: Tensor  # bool [B, L]
    time: Tensor  # float64 [B]: what a network that reads the time is told
    weight: Tensor  # float64 [B]: of the summed terms at masked positions, in the sequence's loss
    n: Tensor  # int64 [B]: the number of masked positions
    order: Tensor | None = None  # float64 [B, L]: when a visible token became visible, for a network that follows it

    def share(self, rank: int, world: int) -> Masking:
        """The part of one process."""
        parts = (self.masked, self.time, self.weight, self.n, self.order)
        return Masking(*(None if part is None else share(part, rank, world) for part in parts))  # type: ignore[arg-type]

    def inputs(self, rows: Tensor | slice) -> tuple[Tensor, ...]:
        """What ``Losses`` takes besides the tokens, for some of the sequences."""
        parts = (self.masked, self.time, self.weight, self.order)
        return tuple(part[rows] for part in parts if part is not None)


def by_time(t: Tensor, length: int, *, schedule: Schedule, generator: torch.Generator) -> Masking:
    """Equation 6: each position hidden with probability 1 - alpha_t, weight -alpha'_t / (1 - alpha_t)."""
    t = t.clamp(min=2.0**-53)
    masked = mask_by_time(_blank(t, length), t, schedule=schedule, mask_id=1, generator=generator) == 1
    return Masking(masked, t, -schedule.weight(t), masked.sum(1))


def by_count(n: Tensor, length: int, *, weight: Tensor, schedule: Schedule, generator: torch.Generator) -> Masking:
    """The general loss L_w of Sec. 3.2: n positions hidden, and Eq. 8's mixture for the time. Eq. 7 has weight L/n."""
    masked = mask_by_count(_blank(n, length), n, mask_id=1, generator=generator) == 1
    time = schedule.inverse(objective.beta_alpha(n, length, generator))
    return Masking(masked, time, weight, n)


def of_step(
    kind: str, times: str, *, batch: int, length: int, schedule: Schedule, seed: int, step: int,
    adaptive: timing.AdaptiveCount | None = None,
) -> Masking:  # fmt: skip
    """The masks of one step's global batch, for an objective and a way of drawing times, and a uniform order."""
    clock, random = generator(seed, step, "time"), generator(seed, step, "mask")
    masking = _masks(kind, times, batch, length, schedule, clock, random, adaptive)
    order = torch.rand(batch, length, dtype=torch.float64, generator=generator(seed, step, "order"))
    return replace(masking, order=order)


def _masks(
    kind: str, times: str, batch: int, length: int, schedule: Schedule, clock: torch.Generator, random: torch.Generator,
    adaptive: timing.AdaptiveCount | None,
) -> Masking:  # fmt: skip
    if adaptive is not None:
        n, importance = adaptive.draw(batch, clock)
        return by_count(n, length, weight=importance * length / n, schedule=schedule, generator=random)
    t = TIMES[times](batch, clock)
    one = torch.ones(batch, dtype=torch.float64)
    if kind in ("time", "score-entropy"):
        return by_time(t, length, schedule=schedule, generator=random)
    if kind in ALL_TOKENS:
        return Masking(torch.ones(batch, length, dtype=torch.bool), one, one, torch.full((batch,), length))
    n = objective.maskgit_count(t, length) if kind == "maskgit" else timing.count(t, length)
    weight = length / n if kind == "count" else one
    return by_count(n, length, weight=weight, schedule=schedule, generator=random)


def for_validation(kind: str, *, batch: int, length: int, schedule: Schedule | None = None, seed: int = 0) -> Masking:
    """The masks of a validation, the same each time: Eq. 7's bound, whatever the training's objective is.

    The low-discrepancy sampler of VDM, because there each sequence's own time is uniform, so that the average over
    these very sequences is unbiased.
    """
    how = kind if kind in ALL_TOKENS else "count"
    return of_step(how, "vdm", batch=batch, length=length, schedule=schedule or Linear(), seed=seed, step=0)


class Losses(nn.Module):
    """The network and its loss as one module, to be wrapped by DDP or FSDP: each pass is then one forward of theirs."""

    def __init__(self, network: DDiT | Causal, kind: str) -> None:
        super().__init__()
        self.network, self.kind = network, kind

    def forward(
        self, x0: Tensor, masked: Tensor, time: Tensor, weight: Tensor, order: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The weighted sum over sequences, to be differentiated, and each sequence's own sum of terms, [B] nats.

        The terms are cross-entropies at masked positions, and in the training of "score-entropy" SEDD's. "two-stream"
        has the chain rule along the order, -log p(x^l | what came before l), as its terms: all L in one pass.
        """
        network: Any = self.network
        follows = follows_order(network)
        x = torch.where(masked, network.mask_id, x0) if self.kind != "left-to-right" else x0
        row = masked.nonzero()[:, 0]
        if self.kind == "score-entropy" and self.training:
            terms = objective.score_terms(network, x, x0, time, order if follows else None)
        elif network.config.self_conditioning and not self.training:
            terms = objective.cross_entropy(SelfConditioned(network, remember=False), x, x0, time)
        else:
            two = self.kind == "two-stream"
            along = {"when": order} if follows else {}
            states = network.two_streams(x0, order)[masked] if two else network.states_where(x, time, masked, **along)
            total, losses = cross_entropy(network, states, x0[masked], weight[row])
            return total, losses.new_zeros(len(x0)).index_add(0, row, losses)
        return (weight.to(terms.dtype) * terms).sum(), terms.detach()


def _blank(per_sequence: Tensor, length: int) -> Tensor:
    return torch.zeros(len(per_sequence), length, dtype=torch.int64)
