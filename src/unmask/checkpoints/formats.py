"""The formats of checkpoints, recognised by their config and tensor names alone.

Each format has a small file with ``NAME``, ``NEEDS`` (what its files contain, for messages), ``recognises(found)``,
``load(found, **override) -> Loaded``, and ``about(found, **override)``, which gives ``Loaded.about`` without reading
the weights.
"""

from __future__ import annotations

from typing import Any

from unmask.checkpoints import (
    dream,
    left_to_right,
    llada,
    llada_moe,
    mdlm,
    project,
    qwens,
    radd,
    sapiens,
    sedd,
    transformers_mlm,
    tuned,
)
from unmask.checkpoints.contents import Found

# Tried in this order: the most general one comes last.
FORMATS: tuple[Any, ...] = (
    project,
    mdlm,
    sedd,
    radd,
    llada,
    dream,
    *llada_moe.FAMILIES,
    *qwens.FAMILIES,
    left_to_right,
    sapiens,
    transformers_mlm,
)


# Known networks that are not supported, by a characteristic tensor.
NOT_READ = {
    "transformer.h.0.attn.attn.weight": "an SMDM checkpoint (lit-gpt's network), which is not supported",
    "backbone.bert.embeddings.word_embeddings.weight": "a GenMol checkpoint (a BERT of molecules as SAFE strings), "
    "which is not supported",
}
# And by their model_type.
UNSUPPORTED = {
    "diffusion_gemma": "DiffusionGemma, a uniform-state mixture of experts with 26 B parameters and self-conditioning: "
    "it is not supported, because nobody has compared it here with its own code on a machine that holds it",
    "wedlm": "WeDLM, whose masked positions see those before them in an order with the observed tokens first: it is "
    "not supported",
    "nemotron_labs_diffusion": "Nemotron-Labs-Diffusion, which has a mode of its own for each attention mask: it is "
    "not supported",
}


def recognise(found: Found) -> Any:
    """The format of a checkpoint; if there is none, a ValueError with what was found and what would be needed."""
    if tuned.recognises(found):
        return tuned.Tuned(recognise(tuned.base_of(found)))
    if found.config.get("model_type") in UNSUPPORTED:
        raise ValueError(f"{found.path} is {UNSUPPORTED[str(found.config['model_type'])]}")
    if dream.expands(found):
        raise ValueError(f"{found.path} is {dream.DREAMON}")
    for one in FORMATS:
        if one.recognises(found):
            return one
    for name, what in NOT_READ.items():
        if name in found.tensors:
            raise ValueError(f"{found.path} is {what}")
    if "auto_map" in found.config:
        named = ", ".join(sorted(map(str, dict(found.config["auto_map"]).values())))
        raise ValueError(
            f"{found.path} has an unknown format: it contains code (auto_map names {named}), which is never executed"
        )
    needed = "; ".join(f"{one.NAME} has {one.NEEDS}" for one in (tuned, *FORMATS))
    kinds = {key: found.config[key] for key in ("model_type", "architectures", "architecture") if key in found.config}
    names = list(found.tensors)
    shown = ", ".join(f"{name} {list(found.tensors[name].shape)}" for name in names[:6])
    raise ValueError(
        f"{found.path} has an unknown format. Found: {', '.join(found.weights)} with {len(names)} tensors ({shown}"
        f"{', ...' if len(names) > 6 else ''}), config {kinds or 'without a model_type'}. Known: {needed}"
    )
