"""A step's maskings over the global batch, a pure function of (seed, step), and their losses.

Every process draws them for the whole batch and takes its share, so eight processes see the masks that one would see,
and stratified times are stratified across all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unmask import insertion, objective, timing
from unmask.data.batches import generator
from unmask.forward import holes
from unmask.masking import Masking, all_tokens, by_count, by_time, maskgit_count
from unmask.protocol import block_of, follows_order, for_bound
from unmask.schedule import Linear, Schedule
from unmask.training import head

# A sequence's loss in nats, float [B], from (network, complete tokens [B, L], a Masking).
Loss = Callable[[Any, Tensor, Masking], Tensor]

TIMES: dict[str, timing.Times] = {"independent": timing.independent, "vdm": timing.vdm, "stratified": timing.stratified}
ALL_TOKENS = ("left-to-right", "two-stream")  # objectives that are the chain rule: every token is a term, of weight 1


def of_step(
    kind: str,
    times: str,
    *,
    batch: int,
    length: int,
    schedule: Schedule,
    seed: int,
    step: int,
    adaptive: timing.AdaptiveCount | None = None,
    block: int | None = None,
    where: Tensor | None = None,
) -> Masking:
    """The masking of one step's global batch, for an objective and a way of drawing times, with a uniform order.

    block: each block of this many positions has its own process and time. where bool [batch, length]: the positions
    that are predicted, given the others, such as the responses to prompts.
    """
    free = kind not in ("maskgit", "mask-predict", "insertion")
    if where is not None and (block is not None or adaptive is not None or not free):
        raise ValueError("prompts that are given need objective time or count, times that are drawn, and no blocks")
    if block is not None:
        how: dict[str, Any] = {"schedule": schedule, "seed": seed, "step": step}
        blocks = of_step(kind, times, batch=batch * length // block, length=block, **how)
        # Stratified times are sorted, and the blocks of a sequence differ: each must be able to get any of them.
        shuffled = torch.randperm(len(blocks.masked), generator=generator(seed, step, "blocks"))
        return replace(blocks, when=None).rows(shuffled).in_blocks(batch, length)

    def uniforms(purpose: str, *shape: int) -> Tensor:
        return torch.rand(*shape, batch, length, dtype=torch.float64, generator=generator(seed, step, purpose))

    when, clock = uniforms("order"), generator(seed, step, "time")
    if kind == "insertion":
        slots = torch.stack((when, uniforms("mask")), 2)
        return replace(all_tokens(when), time=TIMES[times](batch, clock), when=slots)
    if kind in ALL_TOKENS:
        every = all_tokens(when)
        return every if where is None else replace(every, masked=where, when=when.masked_fill(~where, -1.0))
    if kind in ("time", "score-entropy"):
        return by_time(TIMES[times](batch, clock), uniforms("mask"), schedule=schedule, where=where, when=when)
    weight: Tensor | float | None = None if kind == "count" else 1.0
    keys, hits = uniforms("mask", 2)
    if adaptive is not None:
        n, importance = adaptive.draw(batch, clock)
        weight = importance * length / n
    else:
        t = TIMES[times](batch, clock)
        n = maskgit_count(t, length) if kind == "maskgit" else timing.count(t, holes(keys, where))
    return by_count(n, keys, hits, weight=weight, schedule=schedule, where=where, when=when)


def for_validation(
    kind: str,
    *,
    batch: int,
    length: int,
    schedule: Schedule | None = None,
    seed: int = 0,
    block: int | None = None,
    where: Tensor | None = None,
) -> Masking:
    """The masking of a validation, the same each time: the bound of Eq. 7, for any training objective.

    The low-discrepancy sampler of VDM, because each sequence's time is then uniform, so the average over these
    sequences is unbiased.
    """
    how = kind if kind in (*ALL_TOKENS, "insertion") else "count"
    schedule = schedule or Linear()
    drawn: dict[str, Any] = {"schedule": schedule, "seed": seed, "step": 0, "block": block, "where": where}
    return of_step(how, "vdm", batch=batch, length=length, **drawn)


class Losses(nn.Module):
    """The network and its loss as one module, to be wrapped by DDP or FSDP: each pass is then one forward call."""

    def __init__(self, network: nn.Module, kind: str, own: Loss | None = None) -> None:
        super().__init__()
        self.network, self.kind, self.own = network, kind, own

    def forward(self, x0: Tensor, *tensors: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """``scale`` times the sum over sequences, to be differentiated, and each sequence's own loss, float64 [B] nats.

        tensors: those of a Masking. A loss is the masking's weight times the sum of its terms: cross-entropies at
        masked positions, and in training with "score-entropy" SEDD's. "two-stream" has the chain rule along the order,
        -log p(x^l | tokens before l), as its terms: all L in one pass. "insertion" has an estimate of its own bound, in
        training and in validation. A user's loss is for training: validation always uses the bound of Eq. 7.
        """
        network: Any = self.network
        masking = Masking(*tensors)
        if self.training and self.own is not None:
            losses = _checked(self.own(network, x0, masking), x0)
            return scale * losses.sum(), losses.detach().double()
        evaluated = network if self.training else for_bound(network)
        if self.kind == "insertion":
            assert masking.when is not None
            terms = insertion.estimate(network, x0, masking.time, masking.when)
        elif self.training and self.kind == "score-entropy":
            terms = objective.score_terms(network, x0, masking)
        elif evaluated is network and isinstance(network, head.Apart):
            total, terms = head.cross_entropy(network, self._states(x0, masking), x0, masking, scale)
            return total, objective.weighted(masking, terms.double())
        elif self.kind == "left-to-right":
            terms = objective.left_to_right(network, x0)
        elif self.kind == "two-stream":
            terms = objective.along_order(network, x0, masking.when.argsort(1))  # type: ignore[union-attr]
        else:
            terms = objective.cross_entropy(evaluated, x0, masking)
        losses = objective.weighted(masking, terms.double())
        return scale * losses.sum(), losses.detach()

    def _states(self, x0: Tensor, masking: Masking) -> Tensor:
        """The final states [M, width] of the positions with a term."""
        network: Any = self.network
        if self.kind == "two-stream":
            return network.two_streams(x0, masking.when)[masking.masked]  # type: ignore[no-any-return]
        x = x0 if self.kind == "left-to-right" else masking.hide(x0, network.mask_id)
        along = {"when": masking.when} if follows_order(network) else {}
        if block_of(network) is not None:
            along = {"clean": x0}
        at = masking.masked.nonzero(as_tuple=True)
        return network.states(x, masking.time, at, **along)  # type: ignore[no-any-return]


def _checked(losses: Any, x0: Tensor) -> Tensor:
    """The result of a user's loss, checked."""
    if not isinstance(losses, Tensor) or losses.shape != (len(x0),) or not losses.is_floating_point():
        got = f"{losses.dtype} {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(f"loss must return each sequence's loss, a float tensor [{len(x0)}], got {got}")
    if not losses.requires_grad:
        raise ValueError("loss returned numbers that do not depend on the network's weights: was it detached?")
    return losses
