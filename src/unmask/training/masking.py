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

from unmask import timing
from unmask.data.batches import generator
from unmask.devices import widest
from unmask.errors import OptionError
from unmask.masking import Masking, Uniforms
from unmask.processes import Process, process_of
from unmask.protocol import for_bound
from unmask.schedule import Linear, Schedule
from unmask.training import head

# A sequence's loss in nats, float [B], from (network, complete tokens [B, L], a Masking).
Loss = Callable[[Any, Tensor, Masking], Tensor]

TIMES: dict[str, timing.Times] = {"independent": timing.independent, "vdm": timing.vdm, "stratified": timing.stratified}


def of_step(
    process: Process,
    objective: str,
    times: str,
    *,
    batch: int,
    length: int,
    schedule: Schedule,
    seed: int,
    step: int,
    adaptive: timing.AdaptiveCount | None = None,
    where: Tensor | None = None,
) -> Masking:
    """The masking of one step's global batch, for an objective and a way of drawing times.

    where bool [batch, length]: the positions that are predicted, given the others, such as the responses to prompts.
    """
    if where is not None and (adaptive is not None or objective in ("maskgit", "mask-predict")):
        raise OptionError("objective", "prompts that are given need objective time or count, and times that are drawn")
    rows, size = process.parts(batch, length)
    clock = generator(seed, step, "time")
    count = None
    if adaptive is not None:
        n, importance = adaptive.draw(batch, clock)
        t, count = n.double(), (n, importance * length / n)
    else:
        t = TIMES[times](rows, clock)

    def uniforms(purpose: str, *shape: int) -> Tensor:
        return torch.rand(*shape, rows, size, dtype=torch.float64, generator=generator(seed, step, purpose))

    keys, hits = uniforms("mask", 2).unbind()
    u = Uniforms(t, keys, hits, uniforms("order"))
    if rows != batch:  # stratified times are sorted, and the parts of a sequence differ: each may get any of them
        u = u.rows(torch.randperm(rows, generator=generator(seed, step, "blocks")))
    return process.masking(objective, u, batch=batch, length=length, schedule=schedule, where=where, count=count)


def for_validation(
    process: Process,
    objective: str,
    *,
    batch: int,
    length: int,
    schedule: Schedule | None = None,
    seed: int = 0,
    where: Tensor | None = None,
) -> Masking:
    """The masking of a validation, the same each time: the bound of Eq. 7, for any objective of a masked model.

    The low-discrepancy sampler of VDM, because each sequence's time is then uniform, so the average over these
    sequences is unbiased.
    """
    drawn: dict[str, Any] = {"schedule": schedule or Linear(), "seed": seed, "step": 0, "where": where}
    return of_step(process, process.validated(objective), "vdm", batch=batch, length=length, **drawn)


class Losses(nn.Module):
    """The network and its loss as one module, to be wrapped by DDP or FSDP: each pass is then one forward call."""

    def __init__(self, network: nn.Module, objective: str, own: Loss | None = None) -> None:
        super().__init__()
        self.network, self.objective, self.own = network, objective, own

    def forward(
        self, x0: Tensor, *tensors: Tensor, scale: float = 1.0, index: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """``scale`` times the sum over sequences, to be differentiated, and each sequence's own loss, float64 [B] nats.

        tensors: those of a Masking; index: its index on an accelerator. A loss is the masking's weight times the sum of
        its terms, which the network's process computes. A user's loss is for training; validation uses the bound.
        """
        network: Any = self.network
        masking, process = replace(Masking(*tensors), index=index), process_of(network)
        if self.training and self.own is not None:
            losses = _checked(self.own(network, x0, masking), x0)
            return scale * losses.sum(), losses.detach().to(widest(x0.device))
        evaluated = network if self.training else for_bound(network)
        objective = self.objective if self.training else process.validated(self.objective)
        if evaluated is network and isinstance(network, head.LinearHead):
            states = process.states(network, x0, masking, objective)
            if states is not None:
                total, terms = head.cross_entropy(network, states, x0, masking, scale)
                return total, masking.weighted(terms.to(widest(x0.device)))
        losses = masking.weighted(process.terms(evaluated, x0, masking, objective).to(widest(x0.device)))
        return scale * losses.sum(), losses.detach()


def _checked(losses: Any, x0: Tensor) -> Tensor:
    """The result of a user's loss, checked."""
    if not isinstance(losses, Tensor) or losses.shape != (len(x0),) or not losses.is_floating_point():
        got = f"{losses.dtype} {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(f"loss must return each sequence's loss, a float tensor [{len(x0)}], got {got}")
    if not losses.requires_grad:
        raise ValueError("loss returned numbers that do not depend on the network's weights: was it detached?")
    return losses
