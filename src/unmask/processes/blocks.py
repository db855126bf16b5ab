"""Blocks: a masked process in each block, given the blocks before it, which are complete.

Sampling goes from block to block, each in its own order, and the bound is the sum of the blocks' bounds. All terms come
from one pass, in which every block sees the clean ones before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from unmask import plan as plans
from unmask.errors import OptionError
from unmask.masking import Masking, Uniforms, in_order, of_blocks, times_of_blocks
from unmask.network import suppress_mask
from unmask.options import Options
from unmask.plan import Planner
from unmask.processes.process import Process
from unmask.protocol import Denoiser
from unmask.sampler import InBlocks, Sampler
from unmask.samplers.ahead import Ahead
from unmask.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class BlockByBlock(Process):
    """A position sees its own block of ``size`` positions and the blocks before it."""

    name = "block"
    phrase = "a block model"
    continues = True
    orders = "block by block, each in a random order"
    refused: ClassVar[Mapping[str, str]] = {
        "predict": "a block model computes one block at a time: it takes no {it}; leave it out, or take a masked "
        "model: kjv",
        "adaptive": "times='adaptive' has a count for each sequence, and attention='block' for each block",
        "n": "a block model has a count for each block: see unmask.nelbo, or nelbo_by_time",
        "profile": "a block model has an order within each block only, and no profile",
    }

    size: int

    def check(self, model: Denoiser, canvas: Tensor, options: Options) -> None:
        super().check(model, canvas, options)
        self.check_continues(canvas == model.mask_id)

    def check_bound(self, by: str, where: Tensor | None) -> None:
        super().check_bound(by, where)
        if where is not None:
            self.check_continues(where)

    def check_continues(self, where: Tensor) -> None:
        """Refuse visible tokens in a block after a masked position, which the network does not see."""
        blocks = torch.nn.functional.pad(where, (0, -where.shape[1] % self.size), value=True)
        blocks = blocks.view(len(where), -1, self.size)
        some, every = blocks.any(2), blocks.all(2)
        if bool((some[:, :-1].cummax(1).values & ~every[:, 1:]).any()):
            raise OptionError(
                "canvas",
                f"a model with blocks of {self.size} continues a text: after the first block with a masked position "
                "every position must be masked; unmask infill and Model.infill fill blanks by particles",
            )

    def sampler(self, options: Options) -> Sampler:
        if options.sampler is None:
            sampler = super().sampler(options)
            return replace(sampler, block=self.size) if isinstance(sampler, Ahead) else sampler
        if not isinstance(options.sampler, InBlocks):
            raise OptionError(
                "sampler",
                f"{type(options.sampler).__name__} fills positions all over the canvas; a block model takes plans and "
                "decoding orders that can go from block to block",
            )
        return options.sampler.in_blocks(self.size)

    def plan(self, options: Options) -> Planner:
        plan = super().plan(options)
        if not isinstance(plan, plans.Blocks):
            return plans.Blocks(self.size, plan)
        if plan.size != self.size:
            says = f"plan.Blocks({plan.size}) does not fit the network: its blocks have {self.size} positions"
            raise OptionError("plan", says)
        return plan

    def parts(self, batch: int, length: int) -> tuple[int, int]:
        return batch * -(-length // self.size), self.size

    def masking(
        self, objective: str, u: Uniforms, *, batch: int, length: int, where: Tensor | None = None, **how: Any
    ) -> Masking:
        """Each block has a masking of its own."""
        if where is None:
            where = torch.ones(batch, length, dtype=torch.bool, device=u.keys.device)
        self.check_continues(where)
        blocks = super().masking(objective, u, batch=batch, length=length, where=of_blocks(where, self.size), **how)
        return blocks.in_blocks(batch, length)

    def logits(self, model: Any, x0: Tensor, masking: Masking) -> Tensor:
        if masking.weight.ndim == 1:
            raise ValueError("a block model has a masking for each block, not for the sequence: use unmask.nelbo")
        x = masking.hide(x0, model.mask_id)
        return suppress_mask(model, model.packed(x, masking.time, masking.masked, clean=x0))

    def summed(self, masking: Masking, values: Tensor) -> Tensor:
        return masking.summed(values, self.size)

    def spread(self, masking: Masking, values: Tensor) -> Tensor:
        return values.flatten()[masking.parts(self.size)]

    def states(self, network: Any, x0: Tensor, masking: Masking, objective: str) -> Tensor | None:
        if objective == "score-entropy":
            return None
        return self._states(network, masking.hide(x0, network.mask_id), masking, clean=x0)

    def pass_uniforms(self, t: Tensor, u: Tensor) -> Uniforms:
        """One time for each block, spread evenly."""
        keys, hits = (of_blocks(part, self.size) for part in u[:, :2].unbind(1))
        return Uniforms(times_of_blocks(t, len(keys) // len(t)), keys, hits)

    def way(self, keys: Tensor, hits: Tensor, schedule: Schedule, where: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Block by block, each in its own order."""
        length = keys.shape[1]
        keys = (keys + torch.arange(length) // self.size) / length
        return in_order(keys, hits, schedule=schedule, where=where)[0], None
