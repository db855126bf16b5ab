"""Where models are: a folder of the user's, the box that comes with the package, the cache, the Hugging Face hub.

Folders of this project are read by ``models.pretrained``, everybody else's by ``models.adapters``.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from unmask.schedule import SCHEDULES
from unmask.text.fetch import cache_folder
from unmask.text.model import Model
from unmask.text.tokenizer import ROWS, Tokenizer
from unmask.text.weights import NAMED, fetch

BOX = Path(__file__).parents[1] / "box"
DEFAULT = "kjv"  # of the box
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# What is fetched of a repository on the hub: never its code, and pickles only where there is nothing else.
DATA_FILES, PICKLES = ("*.safetensors", "*.json", "*.txt"), ("*.bin", "*.ckpt", "*.pt", "*.pth")


@dataclass(frozen=True)
class Known:
    """A model that can be loaded by its name."""

    name: str
    where: Literal["box", "cache", "hub"]
    folder: Path


def load(name: str | os.PathLike[str], *, device: str | torch.device | None = None, **override: Any) -> Model:
    """A model by its name in the box, the cache or data.weights, by its folder, file or run, or by its id on the hub.

    ``unmask models`` lists the names, ``unmask inspect`` says what a folder or file is. device: where to put the
    network, the CPU by default. override: what a checkpoint does not say, or says otherwise; MDLM's, for example, take
    ``time=True`` to be fed the time although they were trained without, and ``ema=False`` for the weights as they were.
    """
    path = locate(name)
    return (_load_ours if _is_ours(path) else _load_theirs)(name, path, device, override)


def _load_ours(
    name: str | os.PathLike[str], folder: Path, device: str | torch.device | None, override: dict[str, Any]
) -> Model:
    from unmask.models import pretrained

    network: Any = pretrained.load(folder)
    given = {key: value for key, value in override.items() if value is not None}
    if given.keys() == {"time"} and not network.causal:
        network.config = replace(network.config, conditioning="time" if given["time"] else "none")
    elif given:
        raise ValueError(f"{folder} says everything about itself: {', '.join(given)} cannot be given, time can")
    tokenizer, (_, header) = _tokenizer(folder), pretrained.read_config(folder)
    extra: dict[str, Any] = header.get("extra") or {}
    default = "rows" if tokenizer.kind in ROWS else "wrapped"
    return Model(
        _put(network, device), tokenizer, _schedule(extra.get("schedule", "linear"), folder),
        name=_called(name, folder), layout=extra.get("layout", default),
        characters_per_token=extra.get("characters_per_token"),
    )  # fmt: skip


def _load_theirs(
    name: str | os.PathLike[str], path: Path, device: str | torch.device | None, override: dict[str, Any]
) -> Model:
    from unmask.text import adapters

    found = adapters.look(path)
    loaded = adapters.recognise(found).load(found, **override)
    if loaded.tokenizer is None:
        raise ValueError(loaded.about.get("needs") or f"{path} has no tokenizer: its ids have no meaning")
    return Model(
        _put(loaded.denoiser, device), loaded.tokenizer, loaded.schedule, name=_called(name, path), layout=loaded.layout
    )


def tokenizer_of(name: str) -> Any:
    """A model's tokenizer; of our own folders, without the network being read."""
    path = locate(name)
    return _tokenizer(path) if _is_ours(path) else load(name).tokenizer


def locate(name: str | os.PathLike[str]) -> Path:
    """The folder or file of a model; what can only be the hub's is fetched."""
    return find(name) or _hub_folder(str(name))


def find(name: str | os.PathLike[str]) -> Path | None:
    """The folder or file of a model, or None if the name can only be the hub's."""
    from unmask.text.adapters.found import INDEX, SUFFIXES

    path = Path(name).expanduser()
    if path.is_file():
        return path
    for folder in (path, path / "model"):
        if (folder / CONFIG).is_file():
            return folder
    if (path / "config.toml").is_file():
        raise ValueError(f"{path} is a run that has not finished: it has no model yet; unmask train --resume goes on")
    if path.is_dir():
        files = sorted(file.name for file in path.iterdir())
        if any(file.endswith((*SUFFIXES, INDEX)) for file in files):
            return path
        there = ", ".join(files[:8]) or "nothing"
        raise ValueError(f"{path} is neither a model nor a run: it has no {CONFIG} and no weights. Known: {there}")
    known = {found.name: found.folder for found in reversed([*_folders(BOX, "box"), *_folders(_cache(), "cache")])}
    if str(name) in known:
        return known[str(name)]
    if str(name) in NAMED:
        return fetch(str(name))
    # A folder that was misspelt is not asked for on the hub.
    if HUB_ID.fullmatch(str(name)) and not path.parent.is_dir():
        return None
    close = difflib.get_close_matches(str(name), [*known, *NAMED], n=1)
    by_name = f"by name there are {', '.join(sorted(known)) or 'none'}, and to be fetched {', '.join(NAMED)}"
    there = f"did you mean {close[0]!r}?" if close else by_name
    raise ValueError(f"there is no model {str(name)!r}: {there}; otherwise give a run's folder, or a hub id ORG/NAME")


def available() -> list[Known]:
    """What can be loaded by name without a network: the box, the cache, and what the hub's cache holds of ours."""
    return [*_folders(BOX, "box"), *_folders(_cache(), "cache"), *_hub_cache()]


def default() -> str:
    """The model that is meant where none is named."""
    names = [model.name for model in available()]
    if not names:
        raise ValueError("no model is in the box: give the folder of a run, or ORG/NAME on the Hugging Face hub")
    return DEFAULT if DEFAULT in names else names[0]


def describe(found: Known) -> dict[str, Any]:
    """What its files say about a model, without its weights being read; of a damaged one, what is wrong (error)."""
    from unmask.models import pretrained

    about: dict[str, Any] = {"name": found.name, "where": found.where, "folder": str(found.folder)}
    try:
        if not _is_ours(found.folder):
            return about | _describe_theirs(found.folder)
        (config, header), tokenizer = pretrained.read_config(found.folder), _tokenizer(found.folder)
        megabytes = (found.folder / pretrained.WEIGHTS).stat().st_size / 1e6
    except (ValueError, OSError, ImportError) as error:
        return about | {"error": " ".join(str(error).split())}
    extra = header.get("extra") or {}
    return about | {
        "architecture": header["architecture"], "megabytes": megabytes, "length": config.length,
        "tokenizer": tokenizer.kind, "vocab_size": tokenizer.vocab_size,
        "characters_per_token": extra.get("characters_per_token"), "card": header.get("card") or {},
    }  # fmt: skip


def _describe_theirs(folder: Path) -> dict[str, Any]:
    from unmask.text import adapters

    there = adapters.look(folder)
    said = adapters.recognise(there).about(there)
    return {
        "architecture": said["format"], "megabytes": sum(t.bytes for t in there.tensors.values()) / 1e6,
        "length": said.get("length"), "tokenizer": said["format"], "vocab_size": said.get("vocab_size") or 0,
        "characters_per_token": None, "card": {},
    }  # fmt: skip


def _cache() -> Path:
    return cache_folder() / "models"


def _folders(root: Path, where: Literal["box", "cache"]) -> list[Known]:
    folders = sorted(root.iterdir()) if root.is_dir() else []
    return [Known(folder.name, where, folder) for folder in folders if (folder / CONFIG).is_file()]


def _hub_cache() -> list[Known]:
    """Repositories in huggingface_hub's cache that are models of this package, with their tokenizers."""
    from unmask.models.pretrained import read_config

    try:
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.errors import CacheNotFound
    except ImportError:
        return []
    try:
        repositories = sorted(scan_cache_dir().repos, key=lambda repository: repository.repo_id)
    except CacheNotFound:
        return []
    found = []
    for repository in repositories:
        for revision in repository.revisions:
            folder = Path(revision.snapshot_path)
            if repository.repo_type == "model" and "main" in revision.refs and (folder / TOKENIZER).is_file():
                try:
                    read_config(folder)
                except ValueError:
                    continue
                found.append(Known(repository.repo_id, "hub", folder))
    return found


def _hub_folder(name: str) -> Path:
    """A repository of the hub, in the hub's own cache."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ImportError(f"{name} is no folder; the hub needs huggingface_hub: pip install 'unmask[hub]'") from None
    try:
        folder = Path(snapshot_download(name, allow_patterns=list(DATA_FILES)))
        if not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns=[*DATA_FILES, *PICKLES]))
    except OSError as error:
        raise ValueError(f"{name} is no folder, and it could not be fetched from the hub: {error}") from error
    return folder


def _is_ours(path: Path) -> bool:
    """Whether config.json is one that this project wrote."""
    try:
        config = json.loads((path / CONFIG).read_bytes()) if path.is_dir() else None
    except (ValueError, RecursionError, OSError):
        return False
    return isinstance(config, dict) and "unmask_version" in config


def _tokenizer(folder: Path) -> Tokenizer:
    if not (folder / TOKENIZER).is_file():
        raise ValueError(f"{folder} has no {TOKENIZER}: its ids have no meaning; put the training data's there")
    return Tokenizer.load(folder / TOKENIZER)


def _schedule(name: Any, folder: Path) -> Any:
    if name not in SCHEDULES:
        raise ValueError(f"{folder / CONFIG}: schedule must be one of {', '.join(SCHEDULES)}, got {name!r}")
    return SCHEDULES[name]


def _put(network: Any, device: str | torch.device | None) -> Any:
    if device is None:
        return network
    try:
        return network.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:  # which is how torch says that it has no such device
        raise ValueError(f"device={str(device)!r}: {str(error).splitlines()[0]}") from error


def _called(name: str | os.PathLike[str], folder: Path) -> str:
    """A folder or file by its full path, so that a saved trace finds it from anywhere; others as they are called."""
    return str(folder.resolve()) if Path(name).expanduser().exists() else str(name)
