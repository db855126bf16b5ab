"""The molecule of an incomplete sequence: a SMILES that can be drawn, and the token of each atom."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from unmask.tokenizers.molecules import problem, selfies_package

Part = tuple[int, str]  # a position of the canvas, and its token

ATOM = re.compile(r"\[[^\]]+\]|[A-Za-z*]+")
BONDS = frozenset("-=#$:/\\~.")


def structure(pieces: Sequence[str | None], kind: str) -> dict[str, Any]:
    """{smiles, atoms}: the position of each atom's token, in the order of the atoms. None in ``pieces`` is masked.

    An incomplete SMILES is without the tokens that have no partner yet. A complete one is unchanged, and without atoms
    if it is not a molecule.
    """
    parts = [(position, piece) for position, piece in enumerate(pieces) if piece]
    if kind == "selfies":
        return _of_selfies(parts)
    if None not in pieces:
        smiles = "".join(token for _, token in parts)
        if problem(smiles):
            return {"smiles": smiles, "atoms": []}
    else:
        parts = repaired(parts)
    atoms = [position for position, token in parts if ATOM.fullmatch(token)]
    return {"smiles": "".join(token for _, token in parts), "atoms": atoms}


def _of_selfies(parts: Sequence[Part]) -> dict[str, Any]:
    """Every SELFIES string is a molecule, even without its masked tokens."""
    smiles, maps = selfies_package().decoder("".join(token for _, token in parts), attribute=True)
    atoms = [one for one in maps if ATOM.fullmatch(one.token) and one.attribution]
    # The last token attributed to an atom is its own; those before it belong to the enclosing branch.
    return {"smiles": smiles, "atoms": [parts[max(own.index for own in one.attribution)][0] for one in atoms]}


def repaired(parts: Sequence[Part]) -> list[Part]:
    """The tokens of a SMILES without those that lost their partner or cannot stand where they are."""
    parts = list(parts)
    while True:
        kept = _in_place(_paired(parts))
        if len(kept) == len(parts):
            return kept
        parts = kept


def _paired(parts: Sequence[Part]) -> list[Part]:
    """Without parentheses and ring bonds that have no partner, and without rings of one or two atoms."""
    open_branches: list[int] = []
    open_rings: dict[str, tuple[int, int]] = {}  # where it began, and at which atom
    alone: set[int] = set()
    atoms = 0
    for i, (_, token) in enumerate(parts):
        if ATOM.fullmatch(token):
            atoms += 1
        elif token == "(":
            open_branches.append(i)
        elif token == ")":
            if open_branches:
                open_branches.pop()
            else:
                alone.add(i)
        elif _is_ring(token):
            label = token.lstrip("%")
            began, at = open_rings.pop(label, (None, 0))
            if began is None:
                open_rings[label] = i, atoms
            elif atoms - at < 2:
                alone |= {began, i}
    alone |= {*open_branches, *(began for began, _ in open_rings.values())}
    return [part for i, part in enumerate(parts) if i not in alone]


def _in_place(parts: Sequence[Part]) -> list[Part]:
    """Without tokens that cannot stand where they are: a bond before nothing, an empty branch."""
    kept: list[Part] = []
    for i, (position, token) in enumerate(parts):
        before = kept[-1][1] if kept else ""
        behind = parts[i + 1][1] if i + 1 < len(parts) else ""
        after_atom = bool(ATOM.fullmatch(before)) or _is_ring(before)
        if ATOM.fullmatch(token):
            fits = True
        elif token in BONDS:
            joins = bool(ATOM.fullmatch(behind)) or (_is_ring(behind) and token != ".")
            fits = joins and (after_atom or before in (("(", ")") if ATOM.fullmatch(behind) else ()))
        elif _is_ring(token):
            fits = after_atom or (before in BONDS and before != ".")
        elif token == "(":
            fits = after_atom or before == ")"
        else:
            fits = token == ")" and (after_atom or before == ")")
        if fits:
            kept.append((position, token))
    return kept


def _is_ring(token: str) -> bool:
    return token.lstrip("%").isdigit()
