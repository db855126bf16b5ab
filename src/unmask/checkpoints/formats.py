"""The formats of checkpoints, recognised by their config and tensor names alone.

Each format has a small file with ``NAME``, ``NEEDS`` (what its files contain, for messages), ``recognises(scan)``,
``load(scan, **override) -> Loaded``, and ``about(found, **override)``, which gives ``Loaded.about`` without reading
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
from unmask.checkpoints.contents import Scan

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


def recognise(scan: Scan) -> Any:
    """The format of a checkpoint; if there is none, a ValueError with what was found and what would be needed."""
    if tuned.recognises(scan):
        return tuned.Tuned(recognise(tuned.base_of(scan)))
    if scan.config.get("model_type") in UNSUPPORTED:
        raise ValueError(f"{scan.path} is {UNSUPPORTED[str(scan.config['model_type'])]}")
    if dream.expands(scan):
        raise ValueError(f"{scan.path} is {dream.DREAMON}")
    for one in FORMATS:
        if one.recognises(scan):
            return one
    for name, what in NOT_READ.items():
        if name in scan.tensors:
            raise ValueError(f"{scan.path} is {what}")
    if "auto_map" in scan.config:
        named = ", ".join(sorted(map(str, dict(scan.config["auto_map"]).values())))
        raise ValueError(
            f"{scan.path} has an unknown format: it contains code (auto_map names {named}), which is never executed"
        )
    needed = "; ".join(f"{one.NAME} has {one.NEEDS}" for one in (tuned, *FORMATS))
    kinds = {key: scan.config[key] for key in ("model_type", "architectures", "architecture") if key in scan.config}
    names = list(scan.tensors)
    shown = ", ".join(f"{name} {list(scan.tensors[name].shape)}" for name in names[:6])
    raise ValueError(
        f"{scan.path} has an unknown format. Found: {', '.join(scan.weights)} with {len(names)} tensors ({shown}"
        f"{', ...' if len(names) > 6 else ''}), config {kinds or 'without a model_type'}. Known: {needed}"
    )
