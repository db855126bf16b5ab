"""Other people's checkpoints as denoisers: what is recognised, from config and tensor names alone.

Each format has a small file of its own with ``NAME``, ``NEEDS`` (what its files hold, for messages),
``recognises(found)``, ``load(found, **override) -> Loaded``, and ``about(found, **override)``, which says all of
``Loaded.about`` without reading the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from unmask.protocol import Denoiser
from unmask.schedule import Linear, Schedule
from unmask.text.adapters.found import Found, Tensorlike, look
from unmask.text.tokenizer import Layout

__all__ = ["ADAPTERS", "Found", "Loaded", "Tensorlike", "look", "recognise"]


@dataclass(frozen=True)
class Loaded:
    """A checkpoint, ready to sample."""

    denoiser: Denoiser  # with .length, that of the training sequences
    tokenizer: Any  # a Tokenizer of ours, a Foreign of unmask.text, or None if the folder has none
    schedule: Schedule = field(default_factory=Linear)
    layout: Layout = "wrapped"
    about: dict[str, Any] = field(default_factory=dict)
    # format, parameters, mask_id, special_ids, length, time, ema, missing, unexpected, needs


from unmask.text.adapters import dream, llada, mdlm, own, radd, sapiens, sedd, transformers_mlm

# Tried in this order: the general one comes last.
ADAPTERS: tuple[ModuleType, ...] = (own, mdlm, sedd, radd, llada, dream, sapiens, transformers_mlm)


def recognise(found: Found) -> ModuleType:
    """The adapter for what was found; if there is none, ValueError with what was found and what would be needed."""
    for adapter in ADAPTERS:
        if adapter.recognises(found):
            return adapter
    kinds = {key: found.config[key] for key in ("model_type", "architectures", "architecture") if key in found.config}
    names = list(found.tensors)
    shown = ", ".join(f"{name} {list(found.tensors[name].shape)}" for name in names[:6])
    needed = "; ".join(f"{adapter.NAME} has {adapter.NEEDS}" for adapter in ADAPTERS)
    raise ValueError(
        f"{found.path} is of no known kind. Found: {', '.join(found.weights)} with {len(names)} tensors ({shown}"
        f"{', ...' if len(names) > 6 else ''}), config {kinds or 'without a model_type'}. Known: {needed}"
    )
