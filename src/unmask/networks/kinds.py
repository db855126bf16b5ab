"""The kinds of networks by the name that config.json gives them, and as a run or an earlier version describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from unmask.networks import pretrained
from unmask.networks.adapters import AdaptedDDiT
from unmask.networks.any_order import OneStream
from unmask.networks.blocks import BlockDDiT
from unmask.networks.causal import Causal
from unmask.networks.config import TransformerConfig
from unmask.networks.ddit import DDiT
from unmask.networks.former import GONE, modern
from unmask.networks.insertion import InsertionDDiT
from unmask.networks.left_reading import LeftReadingDDiT
from unmask.networks.self_conditioned import SelfConditionedDDiT
from unmask.networks.transformer import Transformer
from unmask.networks.uniform import UniformDDiT
from unmask.networks.visible import VisibleDDiT

KINDS: tuple[type[Transformer], ...] = (
    DDiT,
    SelfConditionedDDiT,
    VisibleDDiT,
    BlockDDiT,
    InsertionDDiT,
    UniformDDiT,
    OneStream,
    Causal,
    AdaptedDDiT,
    LeftReadingDDiT,
)


def kind_of(architecture: object) -> type[Transformer]:
    """The class that config.json calls so."""
    for kind in KINDS:
        if kind.architecture == architecture:
            return kind
    if architecture in GONE:
        raise ValueError(GONE[str(architecture)])
    known = ", ".join(kind.architecture for kind in KINDS)
    raise ValueError(f"architecture must be one of {known} for a model of this project, got {architecture!r}")


def described(settings: Mapping[str, Any], architecture: str = "ddit") -> tuple[type[Transformer], TransformerConfig]:
    """The kind of network, and its config, of settings in one row: of a training run, or of an earlier version."""
    architecture, values = modern(architecture, settings)
    kind = kind_of(architecture)
    known = {field.name for field in fields(kind.config_class)}
    unknown = [f"{name}={value!r}" for name, value in values.items() if name not in known]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: a network of the kind {architecture!r} has no such setting")
    return kind, kind.config_class(**values)


def read_config(folder: str | Path) -> tuple[TransformerConfig, dict[str, Any]]:
    """The network's config, and what else config.json holds: architecture, unmask_version, storage, card, extra."""
    header = pretrained.read_header(folder)
    return pretrained.config_of(folder, header, kind_of(header["architecture"]))
