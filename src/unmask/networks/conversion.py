"""A left-to-right network as the start of one that fills in another order.

What is added starts at zero, so that the new network is the given one where both are asked the same:

masked      every entry sees every other and also reads its own token where that is visible. Before its attention is
            opened (``LeftReadingDDiT.opens``), it is the given network.
blocks      with adapters (networks/adapters.py): within a block in any order, from left to right the given network
any-order   one stream (networks/any_order.py): from left to right the given network
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from unmask.networks.adapters import AdaptedDDiT, AdaptersConfig
from unmask.networks.any_order import AnyOrderConfig, OneStream
from unmask.networks.causal import Causal
from unmask.networks.config import DDiTConfig, blocks_of
from unmask.networks.left_reading import LeftReadingDDiT
from unmask.networks.transformer import Transformer

Target = Literal["masked", "blocks", "any-order"]
RANK, NEIGHBOURS = 64, 2  # of the adapters, and on each side


def converted(network: Causal, to: Target, *, block: int = 1, neighbours: int = NEIGHBOURS) -> Transformer:
    """The network that starts from a left-to-right one; block: the size of the blocks."""
    config = network.config
    if config.convolution:
        raise ValueError(
            f"a network with convolution={config.convolution} cannot become {to}, because it reads from left to right: "
            "train the left-to-right model with --convolution 0"
        )
    kind, shape = _kind(config, to, block, neighbours)
    return kind.built(shape, _state(network, kind, shape)).train(network.training)


def _kind(config: Any, to: Target, block: int, neighbours: int) -> tuple[type[Transformer], Any]:
    """The class and the config of the new network."""
    if to == "blocks":
        return AdaptedDDiT, blocks_of(config, AdaptersConfig, dropout=0.0, adapters=RANK, block=block)
    if to == "any-order":
        return OneStream, blocks_of(config, AnyOrderConfig, dropout=0.0, neighbours=neighbours)
    return LeftReadingDDiT, blocks_of(config, DDiTConfig, dropout=0.0)


def _state(network: Causal, kind: type[Transformer], shape: Any) -> dict[str, Tensor]:
    """The given tensors, and those that it lacks as a new network has them; what reads another token is zero."""
    given = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        added = {name: tensor for name, tensor in kind(shape).state_dict().items() if name not in given}
    for name in added:
        if name in ("own_token.weight", "offset", "near.weight"):
            added[name] = torch.zeros_like(added[name])
    return given | added
