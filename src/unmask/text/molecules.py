"""Molecules as SMILES and as SELFIES, in which every string is a molecule (Krenn et al., 2020; the selfies package)."""

from __future__ import annotations

import importlib
import re
from typing import Any

SYMBOLS = re.compile(r"(?:\[[^\[\]]*\])*")


def is_selfies(text: str) -> bool:
    """Whether a text is nothing but bracketed symbols."""
    return SYMBOLS.fullmatch(text) is not None


def to_selfies(smiles: str) -> str:
    """The SELFIES of a SMILES; a text that is SELFIES already comes back as it is."""
    if is_selfies(smiles):
        return smiles
    selfies = _selfies()
    try:
        return str(selfies.encoder(smiles))
    except selfies.EncoderError as error:
        raise ValueError(f"{smiles!r} has no SELFIES: {' '.join(str(error).split())}") from error


def to_smiles(text: str) -> str:
    """The SMILES of a SELFIES."""
    return str(_selfies().decoder(text))


def _selfies() -> Any:
    return importlib.import_module("selfies")  # when it is first needed
