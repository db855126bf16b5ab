"""Folders of this project, for ``unmask inspect`` and ``unmask convert``: ``unmask.load`` reads them directly."""

from __future__ import annotations

from typing import Any

from unmask.checkpoints import ddit_family as family
from unmask.checkpoints import folder
from unmask.checkpoints.contents import Found, Loaded
from unmask.networks import kinds, pretrained

NAME = "unmask"
NEEDS = "a config.json with an architecture of this project, as unmask train writes it"
SETTINGS = ("time",)


def recognises(found: Found) -> bool:
    """Recognised by the fields of this project's config.json."""
    known = {kind.architecture for kind in kinds.KINDS}
    return found.config.get("architecture") in known and "unmask_version" in found.config


def load(found: Found, **override: Any) -> Loaded:
    """The network and its tokenizer. override: time."""
    model = folder.load(found.folder, **family.checked(override, SETTINGS, NAME))
    return Loaded(model.denoiser, model.tokenizer, model.schedule, model.layout, about(found))


def about(found: Found, **override: Any) -> dict[str, Any]:
    """What the files say, without reading the weights."""
    family.checked(override, SETTINGS, NAME)
    config, header = kinds.read_config(found.folder)
    said = family.said(found, "", kinds.kind_of(header["architecture"]), config, ema=False, ours=True)
    origin = ((header.get("extra") or {}).get("origin") or {}).get("format")
    average = (found.folder / pretrained.AVERAGE).is_file()  # of a checkpoint of a run
    return (
        {"format": NAME, "variant": header["architecture"], "time": getattr(config, "conditioning", "none")}
        | said
        | {"origin": origin, "has_average": average, "ema": average}
    )
