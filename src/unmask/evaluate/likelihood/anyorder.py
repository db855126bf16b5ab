"""Bounds from likelihoods along orders: their mean, and tighter ones that average likelihoods over several orders.

A masked model that fills one token at a time in a random order sigma is the mixture p(x) = E_sigma p_sigma(x) of its
chain rules. ``along_orders`` gives -log p_sigma(x) exactly; for a network with attention="order" each costs one pass
(``DDiT.two_streams``), for any other one call per token. Their mean over orders is the bound of Eq. 7, and

    -log 1/K sum_k p_{sigma_k}(x)

is tighter in expectation, the more so the larger K is, and tends to -log p(x).

    orders = random_orders(len(tokens), 8, tokens.shape[1], generator=generator)
    nats = along_orders(model, tokens, orders)        # [B, 8]
    nats.mean(1), importance_weighted(nats)[:, 0]     # the bound of Eq. 7, and the one of 8 orders
    importance_weighted(nats, 2)                      # [B, 4]: four independent estimates of the one of 2 orders
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.likelihood import along_orders, importance_weighted

__all__ = ["along_orders", "importance_weighted", "random_orders"]


def random_orders(num: int, orders: int, length: int, *, generator: torch.Generator) -> Tensor:
    """Uniform orders of ``length`` positions, ``orders`` for each of ``num`` sequences: int64 [num, orders, length]."""
    keys = torch.rand(num, orders, length, dtype=torch.float64, generator=generator, device=generator.device)
    return keys.argsort(2)
