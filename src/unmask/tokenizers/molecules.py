"""Molecules as SMILES and as SELFIES, in which every string is a molecule (Krenn et al., 2020; the selfies package)."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Sequence
from typing import Any

from unmask.extras import needed

NEXT = "C"  # an atom that bonds to any other
WAYS = 2000  # spellings of a molecule to try, to find one with its blanks at the ends
SYMBOLS = re.compile(r"(?:\[[^\[\]]*\])*")
# Bracketed atoms, the two-letter atoms of the organic subset and two-digit ring bonds are one token each.
SMILES = re.compile(r"\[[^\]]*\]|Br|Cl|%\d\d|.", re.DOTALL)
ATOM = re.compile(r"\[[0-9]*(?:[A-Z][a-z]?|[bcnops]|se|as|\*)[^\[\]]*\]|Br|Cl|[BCNOPSFIbcnops*]")
RING = re.compile(r"%\d\d|\d")


def is_selfies(text: str) -> bool:
    """Whether a text consists only of bracketed symbols."""
    return SYMBOLS.fullmatch(text) is not None


def to_selfies(smiles: str) -> str:
    """The SELFIES of a SMILES; a text that is SELFIES already is returned unchanged."""
    return smiles if is_selfies(smiles) else of_smiles(smiles)


def of_smiles(smiles: str) -> str:
    """The SELFIES of a SMILES, including bracketed atoms; ValueError if it is not a molecule."""
    selfies = selfies_package()
    try:
        return str(selfies.encoder(smiles)) if smiles else ""
    except selfies.EncoderError as error:
        raise ValueError(f"{smiles!r} has no SELFIES: {' '.join(str(error).split())}") from error


def fragments(pieces: Sequence[str | int]) -> tuple[list[str | int], bool]:
    """Visible pieces and blanks alternately, as SELFIES; and whether they were SMILES.

    A blank may stand wherever an atom may: c1ccc(____)cc1 is a ring to be decorated. In the sequence it must be before,
    after or between whole molecules, so the SMILES is rewritten until it is.
    """
    if all(is_selfies(piece) for piece in pieces if isinstance(piece, str)):
        return list(pieces), False
    try:
        return _each_as_selfies(pieces), True
    except ValueError:
        return _each_as_selfies(around_blanks(pieces)), True


def _each_as_selfies(pieces: Sequence[str | int]) -> list[str | int]:
    last = len(pieces) - 1
    return [
        piece if isinstance(piece, int) else (of_smiles if i == last else open_ended)(piece)
        for i, piece in enumerate(pieces)
    ]


def open_ended(smiles: str) -> str:
    """The SELFIES of a SMILES that will be continued: C(=O) is then a branch, not the end."""
    return of_smiles(f"{smiles}{NEXT}").removesuffix(f"[{NEXT}]") if smiles else ""


def around_blanks(pieces: Sequence[str | int]) -> list[str | int]:
    """The same molecule with its one or two blanks, such that each piece between them is a SMILES."""
    chem = needed("rdkit.Chem", "a blank inside a branch or a ring needs RDKit", "molecules")
    blanks = [piece for piece in pieces if isinstance(piece, int)]
    numbers = iter(range(1, len(blanks) + 1))
    text = "".join(piece if isinstance(piece, str) else f"[*:{next(numbers)}]" for piece in pieces)
    with importlib.import_module("rdkit.rdBase").BlockLogs():  # errors are reported below, once
        whole = chem.MolFromSmiles(text)
    if whole is None:
        raise ValueError(f"{text!r}, with [*] for the blanks, is no SMILES: close its rings and branches")
    atoms = {atom.GetAtomMapNum(): atom for atom in whole.GetAtoms() if atom.GetAtomicNum() == 0}
    bonds = [bond for atom in atoms.values() for bond in atom.GetBonds()]
    if any(bond.GetBondTypeAsDouble() != 1 or bond.IsInRing() for bond in bonds):
        raise ValueError("a blank is joined by single bonds, and is no part of a ring that is there already")
    degrees = [atom.GetDegree() for atom in atoms.values()]
    if degrees == [1]:
        return ["", blanks[0], _written(chem, whole, first="[*:1]")]
    if degrees == [1, 1]:
        return ["", blanks[0], _written(chem, whole, first="[*:1]", last="[*:2]"), blanks[1]]
    if degrees == [2]:
        cut = chem.FragmentOnBonds(whole, [bond.GetIdx() for bond in bonds], dummyLabels=[(1, 1), (1, 1)])
        ends = [part for part in chem.GetMolFrags(cut, asMols=True) if not _has_map(part)]
        return [_written(chem, ends[0], last="[1*]"), blanks[0], _written(chem, ends[1], first="[1*]")]
    raise ValueError("SMILES take one blank, or two at the ends of branches: write SELFIES for more")


def _has_map(molecule: Any) -> bool:
    return any(atom.GetAtomMapNum() for atom in molecule.GetAtoms())


def _written(chem: Any, molecule: Any, first: str = "", last: str = "") -> str:
    """A SMILES that begins and ends with these atoms, without them."""
    for text in chem.MolToRandomSmilesVect(molecule, WAYS, randomSeed=1):
        if text.startswith(first) and text.endswith(last):
            return str(text)[len(first) : len(text) - len(last)]
    raise ValueError(f"no SMILES of {chem.MolToSmiles(molecule)} begins and ends with its blanks: write SELFIES")


def to_smiles(text: str) -> str:
    """The SMILES of a SELFIES."""
    return str(selfies_package().decoder(text))


def selfies_package() -> Any:
    return needed("selfies", "a model of SELFIES needs the package selfies", "molecules")


def problem(smiles: str) -> str:
    """Why a SMILES is not a molecule; "" for a molecule. Without RDKit, valences and aromatic rings are not checked."""
    says = not_smiles(smiles)
    if says:
        return says
    if not has_rdkit():
        return ""
    chem = importlib.import_module("rdkit.Chem")
    with importlib.import_module("rdkit.rdBase").BlockLogs():  # RDKit prints a line for each of them
        molecule = chem.MolFromSmiles(smiles, sanitize=False)
        if molecule is None:
            return "its order of atoms and bonds is not that of a molecule"
        problems = chem.DetectChemistryProblems(molecule)
    return _in_words(problems[0]) if problems else ""


def verdict(smiles: str) -> dict[str, Any]:
    """{valid, verdict}: whether a text is a molecule, and the same in words."""
    wrong = problem(smiles)
    if wrong:
        return {"valid": False, "verdict": f"not a molecule: {wrong}"}
    return {"valid": True, "verdict": VALID if has_rdkit() else f"{WELL_FORMED}, without a check by RDKit"}


def verdict_on(smiles: Sequence[str]) -> str:
    """How many of some texts are molecules, in a sentence."""
    valid, all_ = sum(not problem(one) for one in smiles), len(smiles)
    if has_rdkit():
        return f"{valid:,} of {all_:,} {'is a valid molecule' if all_ == 1 else 'are valid molecules'}"
    what = "is a well-formed SMILES" if all_ == 1 else "are well-formed SMILES"
    return f"{valid:,} of {all_:,} {what}; pip install 'unmask[molecules]' checks whether they are molecules"


def has_rdkit() -> bool:
    try:
        importlib.import_module("rdkit.Chem")
    except ImportError:
        return False
    return True


VALID, WELL_FORMED = "a valid molecule", "a well-formed SMILES"
WORDS = {"KekulizeException": "its aromatic rings have no alternating bonds"}


def _in_words(problem: Any) -> str:
    """What RDKit finds wrong with a molecule."""
    if problem.GetType() == "AtomValenceException":
        return f"atom {problem.GetAtomIdx() + 1} has more bonds than its element can have"
    if problem.GetType() == "AtomKekulizeException":
        return f"atom {problem.GetAtomIdx() + 1} is aromatic but in no ring"
    return WORDS.get(problem.GetType(), "RDKit refuses it")


def not_smiles(text: str) -> str:
    """What keeps a text from being a SMILES: its alphabet, brackets, branches and rings; "" for nothing.

    Valences are not checked: whether a SMILES is a molecule is decided by rdkit.
    """
    rings: set[str] = set()
    depth, atoms = 0, 0
    for token in SMILES.findall(text):
        if ATOM.fullmatch(token):
            atoms += 1
        elif RING.fullmatch(token) and atoms:
            rings ^= {token}
        elif token in "()":
            depth += 1 if token == "(" else -1
            if depth < 0:
                return "it closes a branch that is not open"
        elif token not in "-=#$:/\\.":
            return f"{token!r} is no part of one"
    if rings or depth:
        return f"ring {min(rings)} is not closed" if rings else "a branch is not closed"
    return "" if atoms else "it has no atom"
