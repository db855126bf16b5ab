"""Copies of a network for sampling: adaLN's constants folded into the weights beside them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from unmask.models.layers import LayerNorm, Transformer, modulation

T = TypeVar("T", bound=Transformer)


@torch.no_grad()
def folded(network: T) -> T:
    """The same function without adaLN, for sampling: with no conditioning its vectors are constants.

    Shifts and scales go into the norms, gates into the projections before them. The result is a copy that shares
    nothing with this network, so training on cannot leave it half old and half new.
    """
    config = network.config
    if not config.adaln or config.conditioning != "none":
        raise ValueError(
            f"only adaLN vectors that are constants can be folded: adaln={config.adaln}, "
            f"conditioning={config.conditioning!r}"
        )
    made, c = separate(network), network.constant_conditioning()
    made.config, made.sigma_map = replace(config, adaln=False, norm_bias=True), None
    for block, old in zip(made.blocks, network.blocks, strict=True):
        vectors = [vector.flatten() for vector in old.vectors(c) or ()]
        _fold(block.norm1, *vectors[:2])
        _fold(block.norm2, *vectors[3:5])
        down = cast("nn.Linear", block.mlp[2])
        block.attn_out.weight.mul_(vectors[2].unsqueeze(1))
        down.weight.mul_(vectors[5].unsqueeze(1))
        down.bias.mul_(vectors[5])
        block.adaLN_modulation = None
    final = modulation(network.output_layer.adaLN_modulation, c, 2) or ()
    _fold(made.output_layer.norm_final, *(vector.flatten() for vector in final))
    made.output_layer.adaLN_modulation = None
    return made


def _fold(norm: LayerNorm, shift: Tensor, scale: Tensor) -> None:
    bias = torch.zeros_like(shift) if norm.bias is None else norm.bias
    norm.bias = nn.Parameter(torch.addcmul(shift, bias, 1 + scale), requires_grad=False)
    norm.weight.mul_(1 + scale)


def separate(network: T) -> T:
    """A copy that shares nothing with the network, to be read alone."""
    made = copy.deepcopy(network).eval().requires_grad_(False)
    made.zero_grad()
    return made


def sharing(network: T) -> T:
    """A copy with modules of its own and the network's tensors, to be read alone."""
    tensors = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    return copy.deepcopy(network, tensors).eval()


def constants_folded(network: T) -> T:
    """A copy without adaLN where its vectors are constants, and otherwise one that shares the network's tensors."""
    constant = network.config.adaln and network.config.conditioning == "none"
    return folded(network) if constant else sharing(network)


def own(network: T) -> T:
    """A copy without adaLN that shares nothing: who keeps what weights gave needs weights that do not change."""
    return folded(network) if network.config.adaln else separate(network)
