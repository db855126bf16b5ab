"""RADD's checkpoints: the DDiT without noise level and adaLN, with biases in its norms.

The mean is the softmax over all columns but the last, the mask's, which is meaningless. There is no time.
"""

from __future__ import annotations

from typing import Any

from unmask.checkpoints import ddit_family as family
from unmask.checkpoints.contents import Found
from unmask.networks.ddit import DDiTConfig

NAME = "RADD"
NEEDS = "tensors vocab_embed.embedding, blocks.0.norm1.bias, ... without a prefix and without sigma_map"
SETTINGS = ("ema", "length", "heads")


def recognises(found: Found) -> bool:
    """The DDiT's tensors without a prefix and a noise level, with biases in its norms."""
    names = found.tensors
    return family.EMBEDDING in names and "blocks.0.norm1.bias" in names and family.LEVEL not in names


def _config(found: Found, given: dict[str, Any]) -> DDiTConfig:
    said = family.settings(found)
    return family.config_of(
        found,
        "",
        mask_id=found.tensors[family.EMBEDDING].shape[0] - 1,
        heads=given.get("heads", family.of_model(said, "n_heads")),
        length=given.get("length", family.of_model(said, "length")),
        dropout=family.of_model(said, "dropout"),
        conditioning="none",
    )


_FORMAT = family.WithoutPrefix(NAME, SETTINGS, _config)
load, about = _FORMAT.load, _FORMAT.about
