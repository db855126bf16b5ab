"""Other people's checkpoints as denoisers: what is recognised, from config and tensor names alone.

Each format has a small file of its own with ``NAME``, ``NEEDS`` (what its files hold, for messages),
``recognises(found)``, ``load(found, **override) -> Loaded``, and ``about(found, **override)``, which says all of
``Loaded.about`` without reading the weights.
"""

from __future__ import annotations

from types import ModuleType

from unmask.text.adapters import dream, llada, mdlm, own, radd, sapiens, sedd, transformers_mlm
from unmask.text.adapters.found import Found, Loaded, Tensorlike, look

__all__ = ["ADAPTERS", "Found", "Loaded", "Tensorlike", "look", "recognise"]

# Tried in this order: the general one comes last.
ADAPTERS: tuple[ModuleType, ...] = (own, mdlm, sedd, radd, llada, dream, sapiens, transformers_mlm)


# Known networks that are not read, by a tensor that tells them.
NOT_READ = {"transformer.h.0.attn.attn.weight": "an SMDM checkpoint (lit-gpt's network), which is not supported"}


def recognise(found: Found) -> ModuleType:
    """The adapter for what was found; if there is none, ValueError with what was found and what would be needed."""
    for adapter in ADAPTERS:
        if adapter.recognises(found):
            return adapter
    for name, what in NOT_READ.items():
        if name in found.tensors:
            raise ValueError(f"{found.path} is {what}")
    if "auto_map" in found.config:
        named = ", ".join(sorted(map(str, dict(found.config["auto_map"]).values())))
        raise ValueError(
            f"{found.path} has an unknown format: it contains code (auto_map names {named}), which is never executed"
        )
    needed = "; ".join(f"{adapter.NAME} has {adapter.NEEDS}" for adapter in ADAPTERS)
    kinds = {key: found.config[key] for key in ("model_type", "architectures", "architecture") if key in found.config}
    names = list(found.tensors)
    shown = ", ".join(f"{name} {list(found.tensors[name].shape)}" for name in names[:6])
    raise ValueError(
        f"{found.path} has an unknown format. Found: {', '.join(found.weights)} with {len(names)} tensors ({shown}"
        f"{', ...' if len(names) > 6 else ''}), config {kinds or 'without a model_type'}. Known: {needed}"
    )
