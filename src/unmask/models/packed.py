"""Weights in the layout of oneDNN's kernels, for calls that multiply a few rows by every weight of a network.

A step of cached sampling has two rows. It costs what reading the weights from memory costs, once if the kernel can. The
ordinary product of two rows takes as long as two products of one row; packed, they cost about as much as one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor, nn

from unmask.models.layers import Linear

if TYPE_CHECKING:
    from unmask.models.transformer import Transformer

T = TypeVar("T", bound="Transformer")

LEAST = 1 << 20  # numbers of weights in all from which a step waits for the memory; smaller networks stay in the cache
ROWS = 16  # that the layout is made for: it serves any number, and from 2 to about 32 better than the plain one


class Packed(nn.Module):
    """x W^T + b for a packed W [out, in], which it does not keep in any other form; for inference alone.

    then: "gelu" for the tanh form of it in the same pass.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, then: str = "none") -> None:
        super().__init__()
        self.bias, self.then, self.form = bias, then, "tanh" if then == "gelu" else ""
        with torch.inference_mode(False), torch.no_grad():  # a tensor of inference mode could not be used outside it
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().clone(), ROWS)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """``bias``: another one for this call."""
        made: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias if bias is None else bias, self.then, [], self.form
        )
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # nothing in it changes


@cache
def works() -> bool:
    """Whether this torch has oneDNN's kernels and they do what they should: they are not a public interface."""
    weight, x = torch.eye(32), torch.arange(64.0).view(2, 32)
    try:
        return torch.equal(Packed(weight, torch.ones(32))(x), x + 1)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def available(weight: Tensor) -> bool:
    """Whether this weight can be packed here."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and works()


def pack(network: Transformer) -> None:
    """Replace a sampling copy's weights by packed ones, where that is possible and they are large enough to pay."""
    linears = list(_linears(network))
    weights = [one.weight for *_, one in linears]
    if sum(weight.numel() for weight in weights) < LEAST or not all(map(available, weights)):
        return
    for parent, name, one in linears:
        followed = isinstance(parent, nn.Sequential) and name == "0"  # an MLP's first map, by its GELU
        setattr(parent, name, Packed(one.weight, one.bias, "gelu" if followed else "none"))
        if followed:
            parent.add_module("1", nn.Identity())
    head = network.output_layer
    head.packed = Packed(head.weight(network.vocab_embed.embedding))
    head.linear.register_parameter("weight", None)


def packed(network: T) -> T:
    """A network that shares all but its matrices with this one, and has those packed; itself where none would be."""
    shared = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    made = copy.deepcopy(network, shared)
    pack(made)
    return made if made.output_layer.packed is not None else network


def _linears(network: Transformer) -> Iterator[tuple[nn.Module, str, Linear]]:
    for parent in network.blocks.modules():  # type: ignore[attr-defined]
        for name, child in parent.named_children():
            if isinstance(child, Linear):
                yield parent, name, child
