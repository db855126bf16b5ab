"""Dream and its kin: Qwen2's network without the causal mask, its outputs shifted.

``decoding.dream`` decodes as its authors do. DiffuCoder and Dream-Coder have the same network and config. So does
DreamOn, whose tokens also insert and remove masks: it is told by its token for expansion, and refused.
"""

from __future__ import annotations

from unmask.checkpoints.contents import Scan
from unmask.checkpoints.qwens import Family, named
from unmask.checkpoints.settings import GENERATION
from unmask.files import content_of

_FAMILY = Family(
    "Dream",
    "a config.json with model_type Dream, and Qwen2's tensors (model.layers.i.self_attn.q_proj, ...)",
    # The tensors alone would be a left-to-right model.
    lambda scan: any(kind.startswith("dream") for kind in named(scan)),
    shifted=True,
)
NAME, NEEDS = _FAMILY.NAME, _FAMILY.NEEDS
recognises, load, about = _FAMILY.recognises, _FAMILY.load, _FAMILY.about

EXPAND, EXPAND_ID = "<|expand|>", "expand_token_id"
VOCABULARIES = ("added_tokens.json", "tokenizer_config.json", "tokenizer.json")
DREAMON = (
    "DreamOn, whose expand and delete tokens change the number of masks while a text is filled: it is not supported, "
    "because here a blank keeps its length"
)


def expands(scan: Scan) -> bool:
    """Whether it is a DreamOn: a Dream with a token that stands for two masks."""
    if not recognises(scan):
        return False
    if EXPAND_ID in scan.config or any(kind.startswith("dreamon") for kind in named(scan)):
        return True
    signs = {**dict.fromkeys(VOCABULARIES, EXPAND), GENERATION: EXPAND_ID}
    files = {name: scan.folder / name for name in signs}
    return any(path.is_file() and f'"{signs[name]}"'.encode() in content_of(path) for name, path in files.items())
