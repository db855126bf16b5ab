"""Folders of this project, for ``unmask inspect`` and ``unmask convert``: ``unmask.load`` reads them directly."""

from __future__ import annotations

from typing import Any

from unmask.checkpoints import ddit_family as family
from unmask.checkpoints import folder
from unmask.checkpoints.contents import Loaded, Scan
from unmask.networks import kinds, pretrained

NAME = "unmask"
NEEDS = "a config.json with an architecture of this project, as unmask train writes it"
SETTINGS = ("time",)


def recognises(scan: Scan) -> bool:
    """Recognised by the fields of this project's config.json."""
    known = {kind.architecture for kind in kinds.KINDS}
    return scan.config.get("architecture") in known and "unmask_version" in scan.config


def load(scan: Scan, **override: Any) -> Loaded:
    """The network and its tokenizer. override: time."""
    model = folder.load(scan.folder, **family.checked(override, SETTINGS, NAME))
    return Loaded(model.denoiser, model.tokenizer, model.schedule, model.layout, about(scan))


def about(scan: Scan, **override: Any) -> dict[str, Any]:
    """What the files say, without reading the weights."""
    family.checked(override, SETTINGS, NAME)
    config, header = kinds.read_config(scan.folder)
    facts = family.facts(scan, "", kinds.kind_of(header["architecture"]), config, ema=False, ours=True)
    origin = ((header.get("extra") or {}).get("origin") or {}).get("format")
    average = (scan.folder / pretrained.AVERAGE).is_file()  # of a checkpoint of a run
    return (
        {"format": NAME, "variant": header["architecture"], "time": getattr(config, "conditioning", "none")}
        | facts
        | {"origin": origin, "has_average": average, "ema": average}
    )
