"""Convert any DDiT to this project's safetensors folder, and back to MDLM's hub layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.checkpoints.contents import Loaded, Scan
from unmask.checkpoints.formats import recognise
from unmask.files import new_folder
from unmask.networks import pretrained
from unmask.networks.ddit import DDiT, DDiTConfig

PREFIX = "backbone."
MODEL_TYPE = "mdlm"


def to_own(scan: Scan, out: str | Path, *, half: bool = False, **override: Any) -> dict[str, Any]:
    """Write a folder of this project: weights, config, card and tokenizer. The original is recorded in config.json.

    half: store float16. override: as in ``unmask.load``; with time=True the folder's network is fed the time. Returns a
    description of what was written.
    """
    adapter = recognise(scan)
    loaded: Loaded = adapter.load(scan, **override)
    network = _ddit(loaded, scan, adapter.NAME)
    card = network.card or pretrained.Card(notes=f"Converted from a checkpoint of {adapter.NAME}.")
    tokenizer = loaded.tokenizer
    with new_folder(Path(out)) as folder:
        extra = {"schedule": "linear", "layout": loaded.layout, "origin": origin_of(scan, loaded)}
        pretrained.save(folder, network, card=card, half=half, extra=extra)
        if tokenizer is not None:
            tokenizer.save(folder / "tokenizer.json")
    why = loaded.about.get("needs") if tokenizer is None else None
    return {
        "folder": str(out),
        "format": "unmask",
        "from": adapter.NAME,
        "tokenizer": tokenizer is not None,
        "note": why,
    }


def origin_of(scan: Scan, loaded: Loaded) -> dict[str, Any]:
    """What a folder of this project records about the checkpoint that it was made from."""
    dtypes = {name: tensor.dtype for name, tensor in scan.tensors.items() if tensor.dtype != "float32"}
    kind = recognise(scan).NAME
    return {"format": kind, "config": scan.config, "dtypes": dtypes, "ema": bool(loaded.about.get("ema"))}


def to_mdlm(scan: Scan, out: str | Path, **override: Any) -> dict[str, Any]:
    """Write MDLM's hub layout: model.safetensors under ``backbone.`` and config.json.

    A checkpoint that had this layout is restored bit for bit. A mask without a column gets one of zeros: MDLM
    suppresses it.
    """
    from safetensors.torch import save_file

    adapter = recognise(scan)
    loaded: Loaded = adapter.load(scan, **override)
    network = _ddit(loaded, scan, adapter.NAME)
    _expressible(network.config, scan)
    extra = scan.config.get("extra")
    origin = (extra.get("origin") if isinstance(extra, dict) else None) or {}
    state = _with_mask_column(network)
    for name in state.keys() & origin.get("dtypes", {}).keys():
        state[name] = state[name].to(getattr(torch, origin["dtypes"][name]))
    with new_folder(Path(out)) as folder:
        save_file(state, folder / pretrained.WEIGHTS, metadata={"format": "pt"})
        text = json.dumps(_hub_config(network.config, origin.get("config") or {}), indent=2) + "\n"
        (folder / pretrained.CONFIG).write_text(text, encoding="utf-8")
        # GPT-2's tokenizer is not part of the layout.
        own = loaded.tokenizer is not None and loaded.tokenizer.kind != "gpt2"
        if own:
            loaded.tokenizer.save(folder / "tokenizer.json")
    return {"folder": str(out), "format": "MDLM", "from": adapter.NAME, "tokenizer": own, "note": None}


def _ddit(loaded: Loaded, scan: Scan, name: str) -> DDiT:
    if type(loaded.denoiser) is not DDiT:
        raise ValueError(
            f"{scan.path} is {name}, whose network ({type(loaded.denoiser).__name__}) is not the DDiT that these "
            "folders hold; unmask.load reads it as it is"
        )
    return loaded.denoiser


def _expressible(config: DDiTConfig, scan: Scan) -> None:
    """Refuse what MDLM's network does not have."""
    wanted = {
        "adaln": True,
        "norm_bias": False,
        "tie_embeddings": False,
        "convolution": 0,
        "learned_positions": False,
        "mlp_ratio": 4,
        "hidden": 0,
        "mlp": "gelu",
        "norm": "layer",
    }
    odd = [f"{name}={getattr(config, name)}" for name, value in wanted.items() if getattr(config, name) != value]
    if config.conditioning == "ratio" or (config.conditioning == "time" and config.time_embedding != "log-linear"):
        odd.append(f"conditioning={config.conditioning!r} by {config.time_embedding!r}")
    if odd:
        raise ValueError(f"{scan.path}: MDLM's network has no {', '.join(odd)}")


def _with_mask_column(network: DDiT) -> dict[str, Tensor]:
    state = {PREFIX + name: tensor.detach().contiguous() for name, tensor in network.state_dict().items()}
    if network.mask_id == network.vocab_size:
        for name in ("weight", "bias"):
            key = f"{PREFIX}output_layer.linear.{name}"
            room = (0, 0, 0, 1) if name == "weight" else (0, 1)
            state[key] = nn.functional.pad(state[key], room)
    return state


def _hub_config(config: DDiTConfig, before: dict[str, Any]) -> dict[str, Any]:
    """config.json of the hub: the original one, if there was one, with the current time setting."""
    time = config.conditioning == "time"
    if before.get("model_type") == MODEL_TYPE:
        return before | ({} if bool(before.get("time_conditioning")) == time else {"time_conditioning": time})
    columns = max(config.vocab_size, config.mask_id + 1)
    made = {
        "model_type": MODEL_TYPE,
        "vocab_size": columns,
        "model_length": config.length,
        "hidden_dim": config.width,
        "cond_dim": config.cond_dim,
        "n_blocks": config.layers,
        "n_heads": config.heads,
        "dropout": config.dropout,
        "time_conditioning": time,
    }
    # Only if readers look for it elsewhere.
    return made if config.mask_id == columns - 1 and columns != 30_522 else made | {"mask_index": config.mask_id}
