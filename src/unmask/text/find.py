"""Where models are: a folder of the user's, the box that comes with the package, the cache, the Hugging Face hub."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from unmask.data.fetch import cache_folder
from unmask.data.tokenizer import ROWS, Tokenizer
from unmask.text.model import Model

BOX = Path(__file__).parents[1] / "box"
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Found:
    """A model that can be loaded by its name."""

    name: str
    where: Literal["box", "cache", "hub"]
    folder: Path


def load(name: str | os.PathLike[str], *, device: str | torch.device | None = None) -> Model:
    """A model by its name in the box or the cache, by its folder (or its run's), or by its id on the hub.

    ``unmask models`` lists the names. device: where to put the network, the CPU by default.
    """
    from unmask.models import pretrained

    folder = find(name)
    if folder is not None:
        network: Any = pretrained.load(folder)
    else:
        try:
            network = pretrained.Pretrained.from_pretrained(str(name))
        except OSError as error:
            raise ValueError(f"{name} could not be fetched from the hub: {error}") from error
        folder = _hub_folder(str(name))
    tokenizer, (_, header) = _tokenizer(folder), pretrained.read_config(folder)
    extra: dict[str, Any] = header.get("extra") or {}
    default = "rows" if tokenizer.kind in ROWS else "wrapped"
    return Model(
        _put(network, device), tokenizer, _schedule(extra.get("schedule", "linear"), folder),
        name=_called(name, folder), layout=extra.get("layout", default),
        characters_per_token=extra.get("characters_per_token"),
    )  # fmt: skip


def tokenizer_of(name: str) -> Tokenizer:
    """A model's tokenizer without its network."""
    return _tokenizer(find(name) or _hub_folder(name))


def find(name: str | os.PathLike[str]) -> Path | None:
    """The folder of a model, or None if the name can only be the hub's."""
    path = Path(name).expanduser()
    for folder in (path, path / "model"):
        if (folder / CONFIG).is_file():
            return folder
    if (path / "config.toml").is_file():
        raise ValueError(f"{path} is a run that has not finished: it has no model yet; unmask train --resume goes on")
    if path.is_dir():
        raise ValueError(f"{path} is neither a model nor a run: it has no {CONFIG}")
    known = {found.name: found.folder for found in reversed([*_folders(BOX, "box"), *_folders(_cache(), "cache")])}
    if str(name) in known:
        return known[str(name)]
    # A folder that was misspelt is not asked for on the hub.
    if HUB_ID.fullmatch(str(name)) and not path.parent.is_dir():
        return None
    close = difflib.get_close_matches(str(name), known, n=1)
    there = f"did you mean {close[0]!r}?" if close else f"by name there are {', '.join(sorted(known)) or 'none'}"
    raise ValueError(f"there is no model {str(name)!r}: {there}; otherwise give a run's folder, or a hub id ORG/NAME")


def available() -> list[Found]:
    """What can be loaded by name without a network: the box, the cache, and what the hub's cache holds of ours."""
    return [*_folders(BOX, "box"), *_folders(_cache(), "cache"), *_hub_cache()]


def describe(found: Found) -> dict[str, Any]:
    """What its files say about a model, without its weights being read; of a damaged one, what is wrong (error)."""
    from unmask.models import pretrained

    about: dict[str, Any] = {"name": found.name, "where": found.where, "folder": str(found.folder)}
    try:
        (config, header), tokenizer = pretrained.read_config(found.folder), _tokenizer(found.folder)
        megabytes = (found.folder / pretrained.WEIGHTS).stat().st_size / 1e6
    except (ValueError, OSError) as error:
        return about | {"error": " ".join(str(error).split())}
    extra = header.get("extra") or {}
    return about | {
        "architecture": header["architecture"], "megabytes": megabytes, "length": config.length,
        "tokenizer": tokenizer.kind, "vocab_size": tokenizer.vocab_size,
        "characters_per_token": extra.get("characters_per_token"), "card": header.get("card") or {},
    }  # fmt: skip


def _cache() -> Path:
    return cache_folder() / "models"


def _folders(root: Path, where: Literal["box", "cache"]) -> list[Found]:
    folders = sorted(root.iterdir()) if root.is_dir() else []
    return [Found(folder.name, where, folder) for folder in folders if (folder / CONFIG).is_file()]


def _hub_cache() -> list[Found]:
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
                found.append(Found(repository.repo_id, "hub", folder))
    return found


def _hub_folder(name: str) -> Path:
    """The folder of a repository's tokenizer in the hub's cache, where the rest of it is, too."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(hf_hub_download(name, TOKENIZER)).parent
    except OSError as error:
        raise ValueError(f"{name}: its {TOKENIZER} could not be fetched from the hub: {error}") from error
    except EntryNotFoundError as error:
        raise ValueError(f"{name} has no {TOKENIZER}: its ids have no meaning") from error


def _tokenizer(folder: Path) -> Tokenizer:
    if not (folder / TOKENIZER).is_file():
        raise ValueError(f"{folder} has no {TOKENIZER}: its ids have no meaning; put the training data's there")
    return Tokenizer.load(folder / TOKENIZER)


def _schedule(name: Any, folder: Path) -> Any:
    from unmask.train.config import SCHEDULES

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
    """A folder by its full path, so that a saved trace finds it from anywhere; others as they are called."""
    return str(folder.resolve()) if Path(name).expanduser().is_dir() else str(name)
