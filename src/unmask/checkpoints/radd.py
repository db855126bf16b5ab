"""RADD's checkpoints: the DDiT without noise level and adaLN, with biases in its norms.

The mean is the softmax over all columns but the last, the mask's, which is meaningless. There is no time.
"""

from __future__ import annotations

from typing import Any

from unmask.checkpoints import ddit_family as family
from unmask.checkpoints.contents import Scan
from unmask.networks.ddit import DDiTConfig

NAME = "RADD"
NEEDS = "tensors vocab_embed.embedding, blocks.0.norm1.bias, ... without a prefix and without sigma_map"
SETTINGS = ("ema", "length", "heads")


def recognises(scan: Scan) -> bool:
    """The DDiT's tensors without a prefix and a noise level, with biases in its norms."""
    names = scan.tensors
    return family.EMBEDDING in names and "blocks.0.norm1.bias" in names and family.LEVEL not in names


def _config(scan: Scan, given: dict[str, Any]) -> DDiTConfig:
    settings = family.settings(scan)
    return family.config_of(
        scan,
        "",
        mask_id=scan.tensors[family.EMBEDDING].shape[0] - 1,
        heads=given.get("heads", family.of_model(settings, "n_heads")),
        length=given.get("length", family.of_model(settings, "length")),
        dropout=family.of_model(settings, "dropout"),
        conditioning="none",
    )


_FORMAT = family.WithoutPrefix(NAME, SETTINGS, _config)
load, about = _FORMAT.load, _FORMAT.about
