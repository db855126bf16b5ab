"""What describes a network in one row of settings: the options of a training run, and config.json before 0.2.

One class then had a field for every kind of network. A setting that a kind does not have may stand there with the value
that changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Settings that say which kind a network is, or belong to some kinds, with the values that change nothing.
NOTHING: dict[str, Any] = {
    "attention": "bidirectional",
    "block": 0,
    "insertion": False,
    "uniform": False,
    "adapters": 0,
    "start": -1,
    "neighbours": 0,
    "reads_left": False,
    "self_conditioning": False,
    "conditioning": "none",
    "shifted": False,
}
TIME = ("time_embedding", "sigma_max")  # of networks that are not conditioned, whatever the values
BY_ATTENTION = {"visible": "visible", "block": "blocks", "order": "two-streams"}
GONE = {  # kinds that are no longer read
    "two-streams": "this is an any-order network of two streams, of an earlier version, which is no longer read: train "
    "one again with --attention order"
}
OWN = {
    "ddit": ("conditioning", *TIME),
    "self-conditioned": ("conditioning", *TIME),
    "visible": ("conditioning", *TIME),
    "uniform": ("conditioning", *TIME),
    "left-reading": ("conditioning", *TIME),
    "blocks": ("block",),
    "adapters": ("adapters", "start", "block"),
    "any-order": ("start", "neighbours"),
}
SAID_BY_KIND: dict[str, dict[str, Any]] = {  # the settings that the kind itself says
    "self-conditioned": {"self_conditioning": True},
    "visible": {"attention": "visible"},
    "left-reading": {"reads_left": True},
    "blocks": {"attention": "block"},
    "any-order": {"attention": "order"},
    "insertion": {"insertion": True},
    "uniform": {"uniform": True},
}


def modern(architecture: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The architecture's name and its settings; contradictory ones stay, so that they are refused by name."""
    kind = _kind(settings) if architecture == "ddit" else architecture
    without_effect = {**NOTHING, **SAID_BY_KIND.get(kind, {})}
    if kind == "adapters" and settings.get("block"):
        without_effect["attention"] = "block"
    if settings.get("conditioning", "none") == "none":
        without_effect |= {name: settings[name] for name in TIME if name in settings}
    return kind, {
        name: value
        for name, value in settings.items()
        if name in OWN.get(kind, ()) or name not in without_effect or not _same(value, without_effect[name])
    }


def _same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def _kind(settings: Mapping[str, Any]) -> str:
    """Which kind the settings of the one class describe."""
    if settings.get("insertion") is True:
        return "insertion"
    if settings.get("uniform") is True:
        return "uniform"
    if settings.get("adapters", 0) != 0:
        return "adapters"
    attention = settings.get("attention", "bidirectional")
    if isinstance(attention, str) and attention in BY_ATTENTION:
        return BY_ATTENTION[attention]
    if settings.get("reads_left") is True:
        return "left-reading"
    return "self-conditioned" if settings.get("self_conditioning") is True else "ddit"
