"""Rounds of looking ahead on Markov chains, against the length: a few in a random order, many from left to right."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask import plan

LENGTHS = (64, 128, 256, 512, 1024)
STATES, SHARPNESS = 64, 64


class Chain:
    """A Markov chain that answers a whole chain of rows in one pass: the exact conditionals, by its powers.

    p(x_l = v | the visible tokens) is T^(l - a)[x_a, v] T^(b - l)[v, x_b], normalised, with the nearest visible
    neighbours a and b. (MarkovOracle answers the same, one canvas at a time.)
    """

    bytes = 0

    def __init__(self, initial: Tensor, transition: Tensor, length: int) -> None:
        self.vocab_size = self.mask_id = len(initial)
        powers = [torch.eye(self.vocab_size, dtype=torch.float64)]
        for _ in range(length):
            powers.append(powers[-1] @ transition)
        self.powers = torch.stack(powers)
        self.marginal = initial @ self.powers  # [L + 1, V]

    def __call__(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, *, seats: slice | None = None
    ) -> Tensor:
        assert rows is not None
        return torch.stack(
            [
                torch.stack([self._row(visible, tokens[b], p) for p in rows[b].tolist()])
                for b, visible in enumerate(_visible(tokens, self.mask_id))
            ]
        )

    def add(self, count: int, length: int) -> None:
        """Nothing is remembered."""

    def leave(self, seat: int) -> None:
        """Nothing is remembered."""

    def ahead(self, tokens: Tensor, order: Tensor, known: Tensor, *, seats: slice | None = None) -> Tensor:
        logits = torch.zeros(*order.shape, self.vocab_size, dtype=torch.float64)
        for b, chain in enumerate(order.tolist()):
            inside = set(chain)
            seen = [p for p in (tokens[b] != self.mask_id).nonzero().squeeze(1).tolist() if p not in inside]
            for k, p in enumerate(chain):
                if p < 0:
                    break
                logits[b, k] = self._row(seen, tokens[b], p)
                if k < int(known[b]):
                    insort(seen, p)
        return logits

    def _row(self, seen: list[int], x: Tensor, p: int) -> Tensor:
        at = bisect_left(seen, p)
        before = self.powers[p - seen[at - 1]][x[seen[at - 1]]] if at else self.marginal[p]
        behind = self.powers[seen[at] - p][:, x[seen[at]]] if at < len(seen) else torch.ones(self.vocab_size).double()
        return (before * behind).log()


def _visible(tokens: Tensor, mask_id: int) -> list[list[int]]:
    return [(row != mask_id).nonzero().squeeze(1).tolist() for row in tokens]


def tables(seed: int = 0) -> tuple[Tensor, Tensor]:
    """First states and moves of a chain that mostly goes to a few of its 64 states."""
    random = torch.Generator().manual_seed(seed)
    initial, moves = torch.rand(STATES, generator=random).double(), torch.rand(STATES, STATES, generator=random)
    moves = moves.double() ** SHARPNESS
    return initial / initial.sum(), moves / moves.sum(1, keepdim=True)


def rounds(num: int, lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
    """Mean rounds of a full window and their errors, in random orders and from left to right."""
    initial, moves = tables()
    entropy = float(-torch.xlogy(moves, moves).sum(1).mean())
    result: dict[str, Any] = {
        "chain": f"{STATES} states, {entropy:.2f} nats per move",
        "sequences": num,
        "random": {},
        "left-to-right": {},
    }
    for length in lengths:
        model = Chain(initial, moves, length)
        for name, how in (("random", plan.first_hitting), ("left-to-right", plan.left_to_right)):
            count = num if name == "random" else min(num, max(4, num * 64 // length))
            calls = unmask.sample(model, num=count, length=length, plan=how, ahead=length).nfe.double()
            result[name][length] = {
                "mean": float(calls.mean()),
                "error": float(calls.std()) / math.sqrt(count),
                "sequences": count,
            }
    return result
