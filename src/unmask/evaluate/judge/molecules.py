"""Molecules under the metrics of the MOSES benchmark: validity, uniqueness, novelty, and property distances.

Polykovskiy et al. (2020), Molecular Sets. Validity is over all samples, uniqueness over the valid ones, novelty over
the valid and unique ones; nothing is dropped before it is counted.
"""

from __future__ import annotations

import importlib
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.extras import needed

PROPERTIES = ("logP", "QED", "weight")


@dataclass(frozen=True)
class Molecules:
    """The metrics of ``num`` samples. The distances are Wasserstein-1, in the unit of each property."""

    num: int
    valid: int
    unique: int
    novel: int | None  # None without training molecules
    distance: dict[str, float]  # to the held-out molecules; empty if there are none

    @property
    def validity(self) -> float:
        return self.valid / self.num

    @property
    def uniqueness(self) -> float:
        return self.unique / self.valid if self.valid else 0.0

    @property
    def novelty(self) -> float | None:
        return None if self.novel is None else self.novel / self.unique if self.unique else 0.0


def judged(
    smiles: Sequence[str], *, training: Container[str] | None = None, held_out: Sequence[str] | None = None
) -> Molecules:
    """Validity, uniqueness, novelty and property distances of samples.

    training: canonical SMILES, as ``canonical`` writes them. held_out: real molecules to compare properties with.
    """
    if not smiles or isinstance(smiles, str):
        raise ValueError(f"smiles must be a list of at least one molecule, got {smiles!r}")
    valid = [one for one in map(canonical, smiles) if one is not None]
    unique = sorted(set(valid))
    novel = None if training is None else sum(one not in training for one in unique)
    distance = property_distances(valid, held_out) if held_out is not None and valid else {}
    return Molecules(len(smiles), len(valid), len(unique), novel, distance)


def canonical(smiles: str) -> str | None:
    """RDKit's canonical SMILES, or None for invalid ones; the empty string is invalid."""
    chem = _rdkit("Chem")
    molecule = chem.MolFromSmiles(smiles) if smiles else None
    return None if molecule is None else str(chem.MolToSmiles(molecule))


def property_distances(smiles: Sequence[str], others: Sequence[str]) -> dict[str, float]:
    """Wasserstein-1 distances of octanol-water logP, QED and molecular weight between two sets of valid molecules."""
    distance = importlib.import_module("scipy.stats").wasserstein_distance
    here, there = ([properties(one) for one in set_] for set_ in (smiles, others))
    return {name: float(distance([p[name] for p in here], [p[name] for p in there])) for name in PROPERTIES}


def properties(smiles: str) -> dict[str, float]:
    """logP (Crippen), QED and weight of a valid molecule."""
    molecule = _rdkit("Chem").MolFromSmiles(smiles)
    if molecule is None:
        raise ValueError(f"{smiles!r} is not a molecule")
    return {
        "logP": float(_rdkit("Chem.Crippen").MolLogP(molecule)),
        "QED": float(_rdkit("Chem.QED").qed(molecule)),
        "weight": float(_rdkit("Chem.Descriptors").MolWt(molecule)),
    }


def _rdkit(module: str) -> Any:
    rdkit, log = (needed(f"rdkit.{name}", "molecules need rdkit", "molecules") for name in (module, "RDLogger"))
    log.DisableLog("rdApp.*")  # RDKit prints a line for each invalid molecule
    return rdkit
