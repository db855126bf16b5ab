"""The network that a run trains: the project's, from its configuration, or a user's module."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import nn

from unmask.checkpoints.user_network import Make
from unmask.data.batches import generator
from unmask.processes import process_of
from unmask.protocol import check
from unmask.training.config import USER_NETWORK, TrainConfig
from unmask.training.data import Data
from unmask.training.masking import Loss

SHAPE = (
    "layers",
    "width",
    "heads",
    "attention",
    "block",
    "conditioning",
    "self_conditioning",
    "neighbours",
    "convolution",
    "learned_positions",
    "tie_embeddings",
)
FOR_OURS = (*SHAPE, "dropout", "compile", "init")  # settings of the project's networks
SMALL = 30_000_000  # parameters below which a user's network gets the defaults of a small one


@dataclass(frozen=True)
class Network:
    """How the network of a run is made, and what must agree when the run is resumed."""

    build: Callable[[], nn.Module]  # a new one, whose weights follow from torch's generator or are given
    length: int
    identity: dict[str, Any]
    loss: Loss | None = None  # by default that of the configuration's objective
    defaults: dict[str, Any] = field(default_factory=dict)  # of the identity: a run may be older than a field


def of_config(config: TrainConfig, vocab_size: int, length: int) -> Network:
    """The project's network of a resolved configuration."""
    kind, shape = config.network(vocab_size, length)
    defaults = {one.name: one.default for one in fields(shape)}
    return Network(lambda: kind(shape), length, asdict(shape), defaults=defaults)


def of_user(module: nn.Module, length: int, loss: Loss | None) -> Network:
    """A user's network, each time a copy of this one."""
    identity = {
        "class": type(module).__qualname__,
        "vocab_size": module.vocab_size,
        "mask_id": module.mask_id,
        "loss": None if loss is None else getattr(loss, "__qualname__", type(loss).__qualname__),
    }
    return Network(lambda: copy.deepcopy(module), length, identity, loss)


def made(make: Make, data: Data, config: TrainConfig) -> nn.Module:
    """The user's module for these data, with the initial weights of the seed; refused if it does not fit them."""
    usual = {one.name: one.default for one in fields(TrainConfig)}
    given = [name for name in FOR_OURS if getattr(config, name) != usual[name]]
    if config.preset not in (None, USER_NETWORK):
        given.insert(0, "preset")
    if given:
        raise ValueError(f"{', '.join(given)}: only for the networks of this project, not for a custom network")
    if config.optimizer == "muon":
        raise ValueError("optimizer='muon' is only for the networks of this project: use adamw")
    vocab_size, length = data.train.vocab_size, data.train.length
    module: Any = make
    if not isinstance(make, nn.Module):
        torch.manual_seed(generator(config.seed, 0, "weights").initial_seed())
        module = make(vocab_size, length)
    if not isinstance(module, nn.Module):
        raise ValueError(f"network must be a torch module, or make one of (vocab_size, length); got {module!r}")
    check(module)
    _check_vocabulary(module, vocab_size)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(f"{type(module).__name__} has no parameter to train")
    process_of(module).check_objective(config.objective)
    return module


def _check_vocabulary(module: Any, ids: int) -> None:
    """The ids are 0 .. ids - 1 and the mask is the next one, which may or may not have a logit."""
    if module.mask_id != ids or module.vocab_size not in (ids, ids + 1):
        raise ValueError(
            f"{type(module).__name__} has vocab_size={module.vocab_size} and mask_id={module.mask_id}, and the data "
            f"have {ids} ids: it needs mask_id={ids}, and vocab_size={ids}, or {ids + 1} with a logit for the mask"
        )
