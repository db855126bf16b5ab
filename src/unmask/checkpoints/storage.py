"""How a network's weights are stored: ``unmask.load(..., weights=...)`` replaces its matrices after they are read.

float32     as ordinary parameters
bfloat16    half the memory; what the files hold in it is not even copied, but mapped
int8        a quarter: whole numbers up to 127, and a scale for each row
int4        5 bits: 16 values for each 32 weights of a row; the tables of the vocabulary are int8
auto        as the files have it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from unmask.errors import OptionError
from unmask.networks.stored import GROUP, Matrix, Rows, StoredEmbedding, StoredLinear, int4, int8
from unmask.networks.transformer import Transformer

Weights = Literal["auto", "float32", "bfloat16", "int8", "int4"]
HALF = (torch.bfloat16, torch.float16)


def store(network: Any, weights: Weights, *, on_cpu: bool = True) -> Any:
    """The network with its matrices stored so; it is changed. All else is float32, and so are its activations.

    on_cpu: whether it will run there, where a network in half precision throughout is slow on most machines, and
    coarse; auto then computes all but the products in float32.
    """
    if weights not in get_args(Weights):
        raise OptionError("weights", f"weights must be one of {', '.join(get_args(Weights))}, got {weights!r}")
    kinds = {tensor.dtype for tensor in network.parameters()} if isinstance(network, nn.Module) else set()
    # A network in several types, as GGUF files have it, is stored whatever the device.
    if weights == "auto" and (not kinds.intersection(HALF) or (not on_cpu and len(kinds) == 1)):
        return network
    if not isinstance(network, nn.Module):
        raise OptionError("weights", f"a {type(network).__name__} has no weights that could be stored as {weights}")
    if weights != "float32":
        _replace(network, weights)
    return network.float()


def _replace(network: nn.Module, weights: Weights) -> None:
    # Of this project's own networks the blocks: sampling reads their embedding and head in ways of its own.
    own = isinstance(network, Transformer)
    maps = list(_maps(network.blocks if own else network))  # type: ignore[arg-type]
    if not maps:
        raise OptionError("weights", f"a {type(network).__name__} has no linear maps that could be stored as {weights}")
    tables = {id(child.weight) for *_, child in maps if isinstance(child, nn.Embedding)}
    kept: dict[int, Matrix] = {}  # a tied matrix is stored once
    for parent, name, child in sorted(maps, key=lambda one: not isinstance(one[2], nn.Embedding)):
        weight = child.weight
        of_vocabulary = id(weight) in tables or len(weight) == getattr(network, "vocab_size", None)
        if id(weight) not in kept:
            kept[id(weight)] = _stored(weight.detach(), weights, of_vocabulary)
        matrix = kept[id(weight)]
        new = StoredEmbedding(matrix) if isinstance(child, nn.Embedding) else StoredLinear(matrix, child.bias)
        setattr(parent, name, new.train(child.training))


def _stored(weight: Tensor, weights: Weights, of_vocabulary: bool) -> Matrix:
    kinds: dict[str, Callable[[Tensor], Matrix]] = {
        "auto": lambda w: Rows(w if w.dtype in HALF else w.bfloat16()),
        "bfloat16": lambda w: Rows(w.bfloat16()),
        "int8": int8,
        "int4": int8 if of_vocabulary or weight.shape[1] % GROUP else int4,
    }
    return kinds[weights](weight)


def _maps(network: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear | nn.Embedding]]:
    """Every linear map and table, with its parent and its name there. Subclasses may use their weights otherwise.

    The router of a mixture of experts is left: it is small, and a rounded score may choose another expert.
    """
    for parent in network.modules():
        for name, child in parent.named_children():
            if name != "router" and (type(child) is nn.Linear or type(child) is nn.Embedding):
                yield parent, name, child
