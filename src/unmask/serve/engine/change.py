"""The effect of one network call on one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.sampler import Step


@dataclass(frozen=True)
class Change:
    """The effect of one call on one sequence."""

    positions: list[int]
    tokens: list[int]
    probabilities: list[float]
    tau: list[float]
    hidden: list[int] | None
    guessed: list[tuple[int, int]] | None = None  # positions and tokens that may still change, with look-ahead
    corrected: int | None = None  # how many guesses of the previous call were wrong
    likeliest: list[list[tuple[int, float]]] | None = None  # ids and log-probabilities per position, if requested


def changes(step: Step) -> list[Change]:
    """A Step as its effect on each of its sequences, without padding."""
    columns = (step.positions, step.tokens, step.probabilities, step.tau)
    listed = []
    for i, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        cells = [cell for cell in zip(*row, strict=True) if cell[0] >= 0]
        # One list per column, even if it has no cells.
        positions, tokens, probabilities, tau = map(list, zip(*cells, strict=True)) if cells else ([],) * 4
        hidden = None if step.hidden is None else [p for p in step.hidden[i].tolist() if p >= 0]
        guessed = None if step.guessed is None else [(p, token) for p, token in step.guessed[i].tolist() if p >= 0]
        corrected = None if step.corrected is None else int(step.corrected[i])
        listed.append(Change(positions, tokens, probabilities, tau, hidden or None, guessed, corrected))
    return listed


def blanks_only(change: Change, shown: Sequence[int], mask_id: int) -> Change:
    """A change without the tokens that the canvas shows from the beginning."""
    cells = zip(change.positions, change.tokens, change.probabilities, change.tau, strict=True)
    kept = [cell for cell in cells if shown[cell[0]] == mask_id]
    positions, tokens, probabilities, tau = map(list, zip(*kept, strict=True)) if kept else ([],) * 4
    return Change(positions, tokens, probabilities, tau, None)


def likeliest(change: Change, top: int, rows: Tensor, log_weights: Tensor) -> Change:
    """A change with the most likely ids of each position, from the distribution of its tokens: [rows, V]."""
    place = {position: i for i, position in enumerate(rows[rows >= 0].tolist())}
    at = torch.tensor([place[position] for position in change.positions], dtype=torch.int64)
    log_p, ids = log_weights[at.to(log_weights.device)].log_softmax(-1).topk(min(top, log_weights.shape[-1]))
    alternatives = [
        [(i, p) for i, p in zip(*pair, strict=True) if p > -torch.inf]
        for pair in zip(ids.tolist(), log_p.tolist(), strict=True)
    ]
    return replace(change, likeliest=alternatives)
