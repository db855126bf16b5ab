"""Weights in the layout of oneDNN's kernels, for calls that multiply a few rows by every weight of a network.

A step of cached sampling has two rows. Its cost is that of reading the weights from memory, once if the kernel can. The
ordinary product of two rows takes as long as two products of one row; packed, they cost about as much as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from unmask.networks.cache.rows import sharing
from unmask.networks.layers import Block
from unmask.networks.transformer import Transformer

LEAST = 1 << 20  # number of weights above which a step is limited by memory; smaller networks stay in the cache
ROWS = 128  # for which the layout is made: it serves any number, and is faster than the plain one from 2 on


class Packed(nn.Module):
    """x W^T + b for a packed W [out, in], which is stored in no other form; for inference only.

    gelu: its tanh form in the same pass, at a tenth of the cost of a separate one. rows: the number per call; other
    numbers cost more.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, gelu: bool = False, rows: int = ROWS) -> None:
        super().__init__()
        self.then: tuple[str, list[Any], str] = ("gelu", [], "tanh") if gelu else ("none", [], "")
        with torch.inference_mode(False), torch.no_grad():  # a tensor of inference mode could not be used outside it
            self.bias = None if bias is None else bias.detach().clone()
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().clone(), rows)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, *self.then)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # nothing in it changes


@cache
def works() -> bool:
    """Whether this torch has oneDNN's kernels and they work: they are not a public interface."""
    weight, x = torch.eye(32), torch.arange(64.0).view(2, 32)
    try:
        return torch.equal(Packed(weight, torch.ones(32))(x), x + 1)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def available(weight: Tensor) -> bool:
    """Whether this weight can be packed here."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and works()


class Ready(NamedTuple):
    """A network without adaLN whose blocks are to be called, and the map from its final states to logits."""

    network: Transformer
    logits: Callable[[Tensor], Tensor]


def packed(network: Transformer) -> Ready:
    """A copy that shares all but its matrices with this network, and has those packed; itself if none can be."""
    made = sharing(network)
    linears = list(_linears(made))
    weights = [one.weight for *_, one in linears]
    if sum(weight.numel() for weight in weights) < LEAST or not all(map(available, weights)):
        return Ready(network, network.logits)
    fused = all(type(block) is Block for block in network.blocks)  # another may add to the maps before the GELU
    for parent, name, one in linears:
        # The first map of an MLP, which its GELU follows.
        widens = isinstance(parent, nn.Sequential) and name == "0" and isinstance(parent[1], nn.GELU) and fused
        setattr(parent, name, Packed(one.weight, one.bias, gelu=widens))
    for block in made.blocks:
        if fused and isinstance(block.mlp[1], nn.GELU):
            block.mlp[1] = nn.Identity()
    head = Packed(*made.head())
    del made.output_layer.linear
    return Ready(made, head)


def _linears(network: Transformer) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    for parent in network.blocks.modules():  # type: ignore[attr-defined]
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear):
                yield parent, name, child
