"""A checkpoint of a fine-tuning run that has not finished: what was trained, beside the name of what it began with.

Adapters (LoRA) are added to the projections that they adapt, W + scale B A; every other tensor takes its place. A base
that has changed since is refused. At its end a run writes a model that needs no other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unmask.checkpoints.contents import Found, Loaded, look
from unmask.networks.pretrained import AVERAGE, CONFIG, WEIGHTS, Card, check_finite, read_weights

NAME = "a checkpoint of a fine-tuning run"
NEEDS = "a config.json with fine_tuned, as unmask train --init writes it"
KEY = "fine_tuned"
DOWN, UP = ".lora_A.default.weight", ".lora_B.default.weight"  # peft's names


def described(base: Found, scale: float | None, card: Card) -> dict[str, str]:
    """config.json of such a checkpoint. scale: of the adapters, None where the network itself was trained."""
    said = {"base": str(base.path.resolve()), "base_sha256": base.sha256, "scale": scale, "card": asdict(card)}
    return {CONFIG: json.dumps({KEY: said}, indent=2) + "\n"}


def recognises(found: Found) -> bool:
    return isinstance(found.config.get(KEY), dict)


@dataclass(frozen=True)
class Tuned:
    """The format of such a checkpoint, whose base has the format ``base``."""

    base: Any
    NAME: ClassVar[str] = NAME

    def load(self, found: Found, **override: Any) -> Loaded:
        """The network of the base with the averaged weights of the checkpoint. override: what the base takes."""
        base, said = base_of(found), found.config[KEY]
        if base.sha256 != said["base_sha256"]:
            raise ValueError(f"{found.path} was fine-tuned from {base.path}, whose weights have changed since")
        loaded: Loaded = self.base.load(base, **override)
        weights = read_weights(found.folder / WEIGHTS) | read_weights(found.folder / AVERAGE)
        check_finite(weights, found.path)
        assert isinstance(loaded.denoiser, nn.Module)
        _put(loaded.denoiser.state_dict(), weights, said["scale"], found)
        return replace(loaded, about=self.about(found, **override))

    def about(self, found: Found, **override: Any) -> dict[str, Any]:
        """What the base's files say, and what was trained."""
        what = "adapters on it" if found.config[KEY]["scale"] is not None else "fine-tuned"
        said: dict[str, Any] = self.base.about(base_of(found), **override)
        known = {"tokenizer": "of its base"} if "tokenizer" not in said else {}
        return said | known | {"format": NAME, "variant": f"{self.base.NAME}, {what}", "has_average": True, "ema": True}


def _put(state: Mapping[str, Tensor], weights: Mapping[str, Tensor], scale: float | None, found: Found) -> None:
    """Copy or add what was trained into the base's tensors, in float32."""
    names = {name: name.removesuffix(DOWN) + ".weight" if name.endswith(DOWN) else name for name in weights}
    with torch.no_grad():
        for name, place in names.items():
            if name.endswith(UP):
                continue
            value = weights[name]
            if name.endswith(DOWN):
                up = weights.get(name.removesuffix(DOWN) + UP)
                if up is None or scale is None or place not in state:
                    raise ValueError(f"{found.path}: {name} does not fit its base")
                value = state[place].float() + scale * (up @ value)
            if place not in state or state[place].shape != value.shape:
                raise ValueError(f"{found.path}: {name} does not fit its base")
            state[place].copy_(value)


def base_of(found: Found) -> Found:
    """What the run began with."""
    path = str(found.config[KEY]["base"])
    try:
        return look(path)
    except ValueError as error:
        raise ValueError(f"{found.path} was fine-tuned from {path}, which it needs: {error}") from error
