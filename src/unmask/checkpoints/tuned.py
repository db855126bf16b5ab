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

from unmask.checkpoints.contents import Loaded, Scan, look
from unmask.networks.pretrained import AVERAGE, CONFIG, WEIGHTS, Card, check_finite, read_weights

NAME = "a checkpoint of a fine-tuning run"
NEEDS = "a config.json with fine_tuned, as unmask train --init writes it"
KEY = "fine_tuned"
DOWN, UP = ".lora_A.default.weight", ".lora_B.default.weight"  # peft's names


def described(base: Scan, scale: float | None, card: Card) -> dict[str, str]:
    """config.json of such a checkpoint. scale: of the adapters, None where the network itself was trained."""
    adapter = {"base": str(base.path.resolve()), "base_sha256": base.sha256, "scale": scale, "card": asdict(card)}
    return {CONFIG: json.dumps({KEY: adapter}, indent=2) + "\n"}


def recognises(scan: Scan) -> bool:
    return isinstance(scan.config.get(KEY), dict)


@dataclass(frozen=True)
class Tuned:
    """The format of such a checkpoint, whose base has the format ``base``."""

    base: Any
    NAME: ClassVar[str] = NAME

    def load(self, scan: Scan, **override: Any) -> Loaded:
        """The network of the base with the averaged weights of the checkpoint. override: what the base takes."""
        base, stored = base_of(scan), scan.config[KEY]
        if base.sha256 != stored["base_sha256"]:
            raise ValueError(f"{scan.path} was fine-tuned from {base.path}, whose weights have changed since")
        loaded: Loaded = self.base.load(base, **override)
        weights = read_weights(scan.folder / WEIGHTS) | read_weights(scan.folder / AVERAGE)
        check_finite(weights, scan.path)
        assert isinstance(loaded.denoiser, nn.Module)
        _put(loaded.denoiser.state_dict(), weights, stored["scale"], scan)
        return replace(loaded, about=self.about(scan, **override))

    def about(self, scan: Scan, **override: Any) -> dict[str, Any]:
        """What the base's files say, and what was trained."""
        what = "adapters on it" if scan.config[KEY]["scale"] is not None else "fine-tuned"
        facts: dict[str, Any] = self.base.about(base_of(scan), **override)
        known = {"tokenizer": "of its base"} if "tokenizer" not in facts else {}
        return (
            facts | known | {"format": NAME, "variant": f"{self.base.NAME}, {what}", "has_average": True, "ema": True}
        )


def _put(state: Mapping[str, Tensor], weights: Mapping[str, Tensor], scale: float | None, scan: Scan) -> None:
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
                    raise ValueError(f"{scan.path}: {name} does not fit its base")
                value = state[place].float() + scale * (up @ value)
            if place not in state or state[place].shape != value.shape:
                raise ValueError(f"{scan.path}: {name} does not fit its base")
            state[place].copy_(value)


def base_of(scan: Scan) -> Scan:
    """What the run began with."""
    path = str(scan.config[KEY]["base"])
    try:
        return look(path)
    except ValueError as error:
        raise ValueError(f"{scan.path} was fine-tuned from {path}, which it needs: {error}") from error
