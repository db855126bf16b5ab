"""Molecules as SMILES and as SELFIES, in which every string is a molecule (Krenn et al., 2020; the selfies package)."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any

SYMBOLS = re.compile(r"(?:\[[^\[\]]*\])*")


def is_selfies(text: str) -> bool:
    """Whether a text is nothing but bracketed symbols."""
    return SYMBOLS.fullmatch(text) is not None


def to_selfies(smiles: str) -> str:
    """The SELFIES of a SMILES; a text that is SELFIES already comes back as it is."""
    return smiles if is_selfies(smiles) else of_smiles(smiles)


def of_smiles(smiles: str) -> str:
    """The SELFIES of a SMILES, bracketed atoms included; ValueError where it is not a molecule."""
    selfies = _selfies()
    try:
        return str(selfies.encoder(smiles)) if smiles else ""
    except selfies.EncoderError as error:
        raise ValueError(f"{smiles!r} has no SELFIES: {' '.join(str(error).split())}") from error


def fragments(pieces: Sequence[str | int]) -> tuple[list[str | int], bool]:
    """Visible pieces and blanks in turn, as SELFIES; and whether they came as SMILES.

    Each visible piece of a SMILES has to be one on its own: its SELFIES then stand where it stood.
    """
    if all(is_selfies(piece) for piece in pieces if isinstance(piece, str)):
        return list(pieces), False
    made: list[str | int] = []
    for piece in pieces:
        try:
            made.append(of_smiles(piece) if isinstance(piece, str) else piece)
        except ValueError as error:
            raise ValueError(
                f"{error}. What stands between blanks must be a molecule on its own, with its rings and branches "
                "closed: move the blanks, or write SELFIES"
            ) from error
    return made, True


def to_smiles(text: str) -> str:
    """The SMILES of a SELFIES."""
    return str(_selfies().decoder(text))


def _selfies() -> Any:
    return importlib.import_module("selfies")  # when it is first needed
