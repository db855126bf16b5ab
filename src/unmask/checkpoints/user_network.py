"""Folders with the weights of a user's network: its class is not stored, and is needed to read them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.networks import pretrained
from unmask.networks.pretrained import AVERAGE, CONFIG, README, USER_NETWORK, WEIGHTS, Card

# A network, or a function of (vocab_size, length) that makes one.
Make = nn.Module | Callable[[int, int], nn.Module]


def described(network: Any, card: Card, extra: Mapping[str, Any]) -> dict[str, str]:
    """The files beside the weights, by name."""
    from unmask import __version__

    name, parameters = type(network).__qualname__, sum(parameter.numel() for parameter in network.parameters())
    config = {
        "architecture": USER_NETWORK,
        "unmask_version": __version__,
        "storage": "float32",
        "class": name,
        "vocab_size": network.vocab_size,
        "mask_id": network.mask_id,
        "card": asdict(card),
        "extra": dict(extra),
    }
    text = [
        f"# {name}, {parameters / 1e6:.2f} M parameters",
        "",
        f"Trained by `unmask.train` on {card.data or 'data that were not recorded'}; {card.notes or 'nothing noted'}.",
        "",
        "```python",
        f'model = unmask.load("this folder", network={name})  # the class, or a module of it',
        "print(model.sample(seed=0).text[0])",
        "```",
    ]
    return {CONFIG: json.dumps(config, indent=2) + "\n", README: "\n".join(text) + "\n"}


def read(folder: Path, header: Mapping[str, Any], make: Make | None) -> nn.Module:
    """The user's network with the folder's weights; for a checkpoint, the averaged ones. Ready to sample."""
    name, length = header.get("class"), int((header.get("extra") or {}).get("length", 0))
    if make is None:
        raise ValueError(
            f"{folder} holds the weights of {name}, a custom network: give its class with --network MODULE:{name}, or "
            f"load it in Python with unmask.load({str(folder)!r}, network={name})"
        )
    network = copy.deepcopy(make) if isinstance(make, nn.Module) else make(header["mask_id"], length)
    weights = pretrained.read_weights(folder / WEIGHTS)
    average = pretrained.read_weights(folder / AVERAGE) if (folder / AVERAGE).is_file() else {}
    expected = {key: tensor.shape for key, tensor in network.state_dict().items()}
    odd = sorted(key for key in {*expected, *weights} if weights.get(key, torch.empty(0)).shape != expected.get(key))
    if odd:
        raise ValueError(f"{folder / WEIGHTS} does not fit this {type(network).__name__}: {', '.join(odd[:5])}")
    pretrained.check_finite(weights | average, folder / WEIGHTS)
    network.load_state_dict(weights)
    with torch.no_grad():
        for key, parameter in network.named_parameters():
            parameter.copy_(average.get(key, parameter))
    return network.eval()
