"""The settings that come with a checkpoint: config.json, Hydra's YAML, and which fields are allowed."""

from __future__ import annotations

import importlib
import math
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.files import content_of, parsed

CONFIG, GENERATION = "config.json", "generation_config.json"
HYDRA = ".hydra/config.yaml"  # of a run
# Fields that transformers writes into any config, or that do not change inference.
EVERYBODYS = frozenset(
    (
        *("architectures", "auto_map", "model_type", "dtype", "torch_dtype", "transformers_version", "_name_or_path"),
        *("use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "mask_token_id", "return_dict"),
        *("attention_dropout", "initializer_range", "_commit_hash", "_attn_implementation_autoset"),
    )
)


def reachable(path: Path) -> Path:
    """A folder or a regular file: reading a pipe would block forever."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise ValueError(f"{path} is a link to {os.readlink(path)}, which does not exist") from None
        raise ValueError(f"there is no file or folder {path}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ValueError(f"{path} is neither a file nor a folder but a pipe, a socket or a device")
    return path


def beside(folder: Path) -> dict[str, Any]:
    """The configuration beside the weights: config.json, or the one that Hydra wrote for the whole run."""
    if os.path.lexists(folder / CONFIG):  # a link that leads nowhere is not the same as no config
        return read_json(reachable(folder / CONFIG))
    for run in (folder, folder.parent):
        if os.path.lexists(run / HYDRA):
            return read_yaml(reachable(run / HYDRA))
    return {}


def end_ids(config: Mapping[str, Any], folder: Path) -> tuple[int, ...]:
    """The ids that end a text, by the config and then by generation_config.json."""
    told = [config]
    if os.path.lexists(folder / GENERATION):
        told.append(read_json(reachable(folder / GENERATION)))
    listed = [one.get("eos_token_id") for one in told]
    each = [one for ids in listed for one in (ids if isinstance(ids, list) else [ids])]
    return tuple(dict.fromkeys(one for one in each if type(one) is int and one >= 0))


def refuse_unknown(path: Path, config: Mapping[str, Any], known: frozenset[str], prefix: str = "") -> None:
    """Refuse an unknown setting by name: the network could be a different one."""
    for name in sorted(config.keys() - known - EVERYBODYS):
        raise ValueError(
            f"{path}: its config says {prefix}{name}={config[name]!r}, an unknown setting: it could change the network"
        )


def check_numbers(path: Path, config: Mapping[str, Any], shapes: Sequence[Sequence[int]], depth: int = 3) -> None:
    """Refuse a config with more layers than there are tensors, or a width that no tensor can have.

    A network of such a config would fill the memory before its shapes are compared with the weights.
    """
    largest = max((math.prod(shape) for shape in shapes), default=0)
    for name, value in config.items():
        if isinstance(value, Mapping) and depth:
            check_numbers(path, value, shapes, depth - 1)
        if name in LENGTHS and isinstance(value, int | float) and value > LONGEST:
            raise ValueError(f"{path}: its config says {name}={value:,}, and no sequence is longer than {LONGEST:,}")
        size = name in SIZES or name.endswith("_size") or name.startswith("num_")
        if not isinstance(value, int | float) or (name not in LAYERS and not size):
            continue
        if value > max(len(shapes), PLAUSIBLE) if name in LAYERS else value > max(largest, PLAUSIBLE):
            there = f"{len(shapes):,} tensors" if name in LAYERS else f"tensors of at most {largest:,} values"
            raise ValueError(f"{path}: its config says {name}={value:,}, and its weights are {there}")


LAYERS = ("layers", "num_hidden_layers", "num_layers", "n_layers", "n_layer", "n_blocks", "encoder_layers")
SIZES = ("width", "hidden_dim", "d_model", "n_embd", "dim", "cond_dim", "hidden", "mlp_ratio", "heads", "n_heads")
LENGTHS, LONGEST = ("length", "max_position_embeddings", "max_sequence_length", "n_positions"), 1 << 24
PLAUSIBLE = 1000


def read_json(path: Path) -> dict[str, Any]:
    content = parsed(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold an object, got {type(content).__name__}")
    return content


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise ImportError(f"reading {path} needs pyyaml: pip install pyyaml") from None
    try:
        content = yaml.safe_load(content_of(path).decode())
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a mapping, got {type(content).__name__}")
    return content
