"""Dream and its kin: Qwen2's network without the causal mask, its outputs shifted.

``decoding.dream`` decodes as its authors do. DiffuCoder and Dream-Coder have the same network and config.
"""

from __future__ import annotations

from unmask.checkpoints.qwens import Family, named

_FAMILY = Family(
    "Dream",
    "a config.json with model_type Dream, and Qwen2's tensors (model.layers.i.self_attn.q_proj, ...)",
    # The tensors alone would be a left-to-right model.
    lambda found: any(kind.startswith("dream") for kind in named(found)),
    shifted=True,
)
NAME, NEEDS = _FAMILY.NAME, _FAMILY.NEEDS
recognises, load, about = _FAMILY.recognises, _FAMILY.load, _FAMILY.about
