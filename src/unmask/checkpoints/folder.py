"""Folders of this project: config.json, model.safetensors and tokenizer.json, as ``unmask train`` writes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.checkpoints.settings import check_numbers
from unmask.checkpoints.user_network import read as read_own
from unmask.checkpoints.weight_file import shapes_of
from unmask.files import content_of
from unmask.model import TOKENIZER as TOKENIZER
from unmask.model import Model
from unmask.networks import counted, pretrained
from unmask.networks.ddit import DDiT
from unmask.networks.kinds import kind_of as network_kind
from unmask.schedule import SCHEDULES
from unmask.tokenizers.tokenizer import EXTERNAL, ROWS, Tokenizer, kind_of

CONFIG = "config.json"


def is_ours(path: Path) -> bool:
    """Whether config.json is one that this project wrote."""
    try:
        config = json.loads(content_of(path / CONFIG)) if path.is_dir() else None
    except (ValueError, RecursionError, OSError):
        return False
    return isinstance(config, dict) and "unmask_version" in config


def load_network(folder: str | Path, own: Any = None) -> Any:
    """The network in a folder that ``pretrained.save`` wrote, ready to sample. Any problem is one ValueError.

    own: a module, or a function of (vocab_size, length) that makes one, for the weights of a user's network.
    """
    if (Path(folder) / CONFIG).exists():
        content_of(Path(folder) / CONFIG)  # a regular file, or a refusal
    header = pretrained.read_header(folder)
    if (Path(folder) / pretrained.WEIGHTS).is_file():
        check_numbers(Path(folder), header, shapes_of(Path(folder) / pretrained.WEIGHTS))
    kind = header["architecture"]
    if kind == pretrained.USER_NETWORK:
        return read_own(Path(folder), header, own)
    if own is not None:
        raise ValueError(f"{folder} holds a {kind!r} network of this project: it needs no network of your own")
    return pretrained.read(folder, network_kind(kind))


def load(folder: Path, *, name: str = "model", **override: Any) -> Model:
    """The model in a folder. override: time, whether the network gets it; network, see ``load_network``."""
    network = load_network(folder, override.pop("network", None))
    given = {key: value for key, value in override.items() if value is not None}
    if given.keys() == {"time"} and isinstance(network, DDiT):
        network.config = replace(network.config, conditioning="time" if given["time"] else "none")
    elif given:
        raise ValueError(f"{folder} stores all its settings: {', '.join(given)} cannot be given, time can")
    tokenizer, header = tokenizer_of(folder), pretrained.read_header(folder)
    extra: dict[str, Any] = header.get("extra") or {}
    if extra.get("counts"):
        network = counted.load(folder, network)
    schedule = extra.get("schedule", "linear")
    if schedule not in SCHEDULES:
        raise ValueError(f"{folder / CONFIG}: schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
    return Model(
        network,
        tokenizer,
        SCHEDULES[schedule],
        name=name,
        layout=extra.get("layout", "rows" if tokenizer.kind in ROWS else "wrapped"),
        characters_per_token=extra.get("characters_per_token"),
        extra=extra,
    )


def tokenizer_of(folder: Path) -> Any:
    """The folder's tokenizer, without reading the network."""
    if not (folder / TOKENIZER).is_file():
        raise ValueError(f"{folder} has no {TOKENIZER}: its ids have no meaning; put the training data's there")
    if kind_of(folder / TOKENIZER) == EXTERNAL:
        from unmask.tokenizers.external import restored

        return restored(folder / TOKENIZER)
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    own = (pretrained.read_header(folder).get("extra") or {}).get("tokenizer_sha256", tokenizer.hash)
    if own != tokenizer.hash:
        raise ValueError(
            f"{folder / TOKENIZER} is not the tokenizer that the model was trained with ({tokenizer.hash[:12]} and not "
            f"{str(own)[:12]}): put the training data's there"
        )
    return tokenizer


def about(folder: Path) -> dict[str, Any]:
    """What the files say about the model, without reading its weights."""
    header, tokenizer = pretrained.read_header(folder), tokenizer_of(folder)
    extra = header.get("extra") or {}
    return {
        "architecture": header["architecture"],
        "megabytes": (folder / pretrained.WEIGHTS).stat().st_size / 1e6,
        "length": header.get("length", extra.get("length")),
        "tokenizer": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "characters_per_token": extra.get("characters_per_token"),
        "card": header.get("card") or {},
    }
