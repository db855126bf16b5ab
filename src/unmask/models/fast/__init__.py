"""What ``for_sampling()`` turns a network into: the same logits, faster.

Constants are folded, the last block and the head are computed for asked rows alone, and where attention is causal, in
the order of unmasking or from left to right, every token is read once. docs/speed.md says what each of these gives.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from torch import nn

from unmask.models.fast.cached import AnyOrderCached, LeftToRightCached
from unmask.models.fast.fold import constants_folded, own
from unmask.models.fast.packing import packed
from unmask.models.fast.rows import AskedRows
from unmask.models.self_conditioned import SelfConditioned

if TYPE_CHECKING:
    from unmask.models.causal import Causal
    from unmask.models.ddit import DDiT


def masked_network(network: DDiT) -> nn.Module:
    """For a run of sampling from a masked model."""
    if network.config.self_conditioning:
        return SelfConditioned(constants_folded(network))
    if not network.any_order:
        return AskedRows(network)
    return AnyOrderCached(packed(own(network)))


def left_to_right_network(network: Causal) -> LeftToRightCached:
    """For a run of sampling from left to right."""
    alone = own(network)
    return LeftToRightCached(alone, cache(lambda: packed(alone)))
