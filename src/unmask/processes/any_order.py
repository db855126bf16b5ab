"""Any order: a network whose attention is causal in the order of unmasking (``networks.any_order``).

The output depends on the order in which the visible tokens came, so a masking has one (``when``). The chain rule along
an order is one pass, in training as in a bound: every token is a term, given those before it in a random order. Its
mean over the orders is the bound of Eq. 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unmask.devices import widest
from unmask.forward import check_begins
from unmask.masking import Masking, Uniforms, all_tokens
from unmask.network import suppress_mask
from unmask.processes.process import Process, at_least_float32, token_nats
from unmask.schedule import Schedule

ORDER = "order"
LOGITS = 1 << 24  # per piece; a sequence may need as many as L V


@dataclass(frozen=True)
class AnyOrder(Process):
    """The network has ``chain``, and its calls take ``when`` [B, L], smaller first.

    The token that begins every sequence, if one does, is known: it is no term, and comes first in every order.
    """

    name = "any-order"
    phrase = "an any-order model"
    reads_order = True
    objectives = (ORDER,)

    def masking(
        self, objective: str, u: Uniforms, *, batch: int, length: int, where: Tensor | None = None, **how: Any
    ) -> Masking:
        where = self._drawn(where, batch, length)
        if objective == ORDER:
            assert u.when is not None
            return all_tokens(u.when, where)
        return super().masking(objective, u, batch=batch, length=length, where=where, **how)

    def logits(self, model: Any, x0: Tensor, masking: Masking) -> Tensor:
        if masking.when is None:
            return super().logits(model, x0, masking)
        x = masking.hide(x0, model.mask_id)
        return suppress_mask(model, model.packed(x, masking.time, masking.masked, when=masking.when))

    def terms(self, model: Any, x0: Tensor, masking: Masking, objective: str = "count") -> Tensor:
        if objective != ORDER:
            return super().terms(model, x0, masking, objective)
        logits = at_least_float32(model.logits(self.states(model, x0, masking, objective)))
        return self.summed(masking, functional.cross_entropy(logits, x0[masking.at], reduction="none"))

    def states(self, network: Any, x0: Tensor, masking: Masking, objective: str) -> Tensor:
        if objective != ORDER:
            return self._states(network, masking.hide(x0, network.mask_id), masking, when=masking.when)
        states: Tensor = network.chain(x0, masking.when)[masking.at]
        return states

    def validated(self, objective: str) -> str:
        return ORDER

    def pass_uniforms(self, t: Tensor, u: Tensor) -> Uniforms:
        return Uniforms(t, *u.unbind(1))

    def way(self, keys: Tensor, hits: Tensor, schedule: Schedule, where: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return super().way(keys, hits, schedule, self._drawn(where, *keys.shape))

    def along_order(self, model: Any, x0: Tensor, order: Tensor, *, time: Tensor | None = None) -> Tensor:
        """The chain rule in one pass of L entries."""
        if self.first_token is not None:
            check_begins(x0, model.mask_id, self.first_token)
        places = torch.arange(order.shape[1], device=x0.device).expand_as(order)
        when = torch.full_like(x0, -1).scatter(1, order, places)  # positions outside the order come first
        states, targets = model.chain(x0, when), x0.gather(1, order)
        exact = widest(x0.device)
        total = torch.zeros(len(x0), dtype=exact, device=x0.device)
        size, row = max(1, LOGITS // max(1, len(x0) * model.vocab_size)), torch.arange(len(x0)).unsqueeze(1)
        for at, target in zip(torch.split(order, size, 1), torch.split(targets, size, 1), strict=True):
            logits = model.answers(model.logits(states[row.to(at.device), at]), at)
            total = total + functional.cross_entropy(logits.to(exact).mT, target, reduction="none").sum(1)
        return total

    def per_position(self, model: Any, x0: Tensor, where: Tensor) -> Tensor:
        """One pass along the order from left to right gives all positions; what is given comes before it."""
        when = torch.where(where, torch.arange(x0.shape[1], device=x0.device), -1)
        row, position = where.nonzero(as_tuple=True)
        nats = torch.zeros(x0.shape, dtype=torch.float64)
        logits = model.answers(model.logits(model.chain(x0, when)[row, position]), position)
        nats[where.cpu()] = token_nats(logits, x0[where])
        return nats

    def _drawn(self, where: Tensor | None, batch: int, length: int) -> Tensor | None:
        """``where`` [B, L] without the position of the token that begins every sequence."""
        if self.first_token is None:
            return where
        drawn = (torch.arange(length) > 0).expand(batch, -1)
        return drawn if where is None else drawn & where
