"""SEDD's checkpoints: its hub folders and checkpoint.pth of its training.

Its log-score is out - log(e^sigma - 1) - log(V - 1) (without these shifts if scale_by_sigma is false), and the mean
parameterisation is its normalisation over the data tokens: both shifts cancel, so the mean's logits are ``out``. The
network is always fed the noise level sigma. With graph.type uniform it is a uniform-state model, whose ``out`` is the
logarithm of p(x with y at l) / p(x), with 0 for the token that is there (``networks.scores``). A run's folder has its
settings in .hydra/config.yaml.
"""

from __future__ import annotations

from typing import Any

from unmask.checkpoints import ddit_family as family
from unmask.checkpoints.contents import Scan
from unmask.networks.ddit import DDiTConfig

NAME = "SEDD"
NEEDS = "tensors vocab_embed.embedding, sigma_map.mlp.0.weight, blocks.0.adaLN_modulation.weight, ... without a prefix"
SETTINGS = ("time", "ema", "mask_id", "length", "heads")


def recognises(scan: Scan) -> bool:
    """The DDiT's tensors without a prefix, including the embedding of the noise level."""
    return family.EMBEDDING in scan.tensors and family.LEVEL in scan.tensors


def _config(scan: Scan, given: dict[str, Any]) -> DDiTConfig:
    settings = family.settings(scan)
    graph = settings.get("graph")
    kind = graph.get("type") if isinstance(graph, dict) else None
    if kind is None and "mask_id" not in given:
        raise ValueError(
            f"{scan.path}: whether this SEDD has a mask (graph.type absorb) or none (uniform) is not in its files: "
            "keep .hydra/config.yaml of its run in the same folder, or give mask_id"
        )
    if kind not in ("absorb", "uniform", None):
        raise ValueError(f"{scan.path} is SEDD with graph.type={kind!r}; 'absorb' or 'uniform' is known")
    uniform, columns = kind == "uniform", scan.tensors[family.EMBEDDING].shape[0]
    if uniform and (given.get("mask_id") is not None or family.of_model(settings, "scale_by_sigma")):
        raise ValueError(f"{scan.path} has graph.type='uniform': it takes no mask_id and no model.scale_by_sigma")
    return family.config_of(
        scan,
        "",
        mask_id=None if uniform else int(given.get("mask_id", columns - 1)),
        heads=given.get("heads", family.of_model(settings, "n_heads")),
        length=given.get("length", family.of_model(settings, "length")),
        dropout=family.of_model(settings, "dropout"),
        conditioning="time" if given.get("time", True) else "none",
    )


_FORMAT = family.WithoutPrefix(NAME, SETTINGS, _config)
load, about = _FORMAT.load, _FORMAT.about
