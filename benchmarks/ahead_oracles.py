"""Rounds of looking ahead on Markov chains, plain and hidden, against the length.

A few in a random order, many from left to right.
"""

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


class Seatless:
    """A network that answers chains of rows and remembers nothing of its sequences (the protocol LooksAhead)."""

    bytes = 0

    def add(self, count: int, length: int) -> None:
        """Nothing is remembered."""

    def leave(self, seat: int) -> None:
        """Nothing is remembered."""


class HiddenChain(Seatless):
    """A hidden Markov chain that answers a whole chain of rows in one pass: the exact conditionals, by a tree.

    A leaf is T diag(p(x_l | state)), without the second factor where x_l is masked, and a node the product of those
    below it. A row reads the nodes beside its way down, and a guess changes those on its way up: log L products each.
    (HiddenMarkovOracle answers the same, one canvas at a time.)
    """

    def __init__(self, initial: Tensor, transition: Tensor, emission: Tensor, length: int) -> None:
        self.initial, self.emission = initial, emission
        self.vocab_size = self.mask_id = emission.shape[1]
        self.levels = max(math.ceil(math.log2(length)), 1)
        self.moves = transition.repeat(length, 1, 1)
        self.moves[0] = torch.eye(len(initial))  # the first state has its own distribution
        self.likelihood = torch.cat((emission.T, torch.ones(1, len(initial), dtype=torch.float64)))  # the mask's is 1

    def __call__(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, *, seats: slice | None = None
    ) -> Tensor:
        assert rows is not None
        tree = self._tree(tokens)
        return torch.stack([self._row(tree, one) for one in rows.unbind(1)], 1)

    def ahead(self, tokens: Tensor, order: Tensor, known: Tensor, *, seats: slice | None = None) -> Tensor:
        batch = torch.arange(len(tokens))
        row, column = (order >= 0).nonzero(as_tuple=True)
        settled = tokens.clone()
        settled[row, order[row, column]] = self.mask_id
        tree, logits = self._tree(settled), []
        for k, position in enumerate(order.clamp(min=0).unbind(1)):
            logits.append(self._row(tree, position))
            self._show(tree, batch[k < known], position[k < known], tokens)
        return torch.stack(logits, 1)

    def _tree(self, tokens: Tensor) -> Tensor:
        leaves, states = 1 << self.levels, len(self.initial)
        tree = torch.eye(states, dtype=torch.float64).repeat(len(tokens), 2 * leaves, 1, 1)
        tree[:, leaves : leaves + tokens.shape[1]] = self.moves * self.likelihood[tokens].unsqueeze(2)
        for level in range(self.levels - 1, -1, -1):
            first = 1 << level
            tree[:, first : 2 * first] = _scaled(
                tree[:, 2 * first : 4 * first : 2] @ tree[:, 2 * first + 1 : 4 * first : 2]
            )
        return tree

    def _show(self, tree: Tensor, sequences: Tensor, positions: Tensor, tokens: Tensor) -> None:
        node = positions + (1 << self.levels)
        likelihood = self.likelihood[tokens[sequences, positions]]
        tree[sequences, node] = self.moves[positions] * likelihood.unsqueeze(1)
        for _ in range(self.levels):
            node = node // 2
            tree[sequences, node] = _scaled(tree[sequences, 2 * node] @ tree[sequences, 2 * node + 1])

    def _row(self, tree: Tensor, positions: Tensor) -> Tensor:
        batch, leaf = torch.arange(len(tree)), positions + (1 << self.levels)
        before, behind = self.initial.repeat(len(tree), 1), torch.ones(len(tree), len(self.initial)).double()
        for level in range(1, self.levels + 1):
            node = leaf >> (self.levels - level)
            right, beside = (node % 2 == 1).unsqueeze(1), tree[batch, node ^ 1]
            before = torch.where(right, (before.unsqueeze(1) @ beside).squeeze(1), before)
            behind = torch.where(right, behind, (beside @ behind.unsqueeze(2)).squeeze(2))
            before, behind = before / before.sum(1, keepdim=True), behind / behind.sum(1, keepdim=True)
        state = (before.unsqueeze(1) @ self.moves[positions]).squeeze(1) * behind
        return (state @ self.emission).log()


def _scaled(products: Tensor) -> Tensor:
    """The same up to a factor that no conditional depends on."""
    return products / products.amax((-1, -2), keepdim=True)


class Chain(Seatless):
    """A Markov chain that answers a whole chain of rows in one pass: the exact conditionals, by its powers.

    p(x_l = v | the visible tokens) is T^(l - a)[x_a, v] T^(b - l)[v, x_b], normalised, with the nearest visible
    neighbours a and b. (MarkovOracle answers the same, one canvas at a time.)
    """

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


def hidden_tables(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """First states, moves and emissions of a hidden chain of 8 states and 32 tokens."""
    random = torch.Generator().manual_seed(seed)
    shapes = ((8,), 1), ((8, 8), 8), ((8, 32), 8)
    weights = [torch.rand(shape, generator=random).double() ** sharpness for shape, sharpness in shapes]
    initial, moves, emission = (one / one.sum(-1, keepdim=True) for one in weights)
    return initial, moves, emission


def rounds(num: int, lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
    """Mean rounds of a full window and their errors, in random orders and from left to right."""
    initial, moves = tables()
    entropy = float(-torch.xlogy(moves, moves).sum(1).mean())
    result: dict[str, Any] = {
        "chain": f"{STATES} states, {entropy:.2f} nats per move",
        "sequences": num,
        "random": {},
        "left-to-right": {},
        "hidden, random": {},
    }
    for length in lengths:
        plain, hidden = Chain(initial, moves, length), HiddenChain(*hidden_tables(), length)
        ways = {
            "random": (plain, plan.first_hitting),
            "left-to-right": (plain, plan.left_to_right),
            "hidden, random": (hidden, plan.first_hitting),
        }
        for name, (model, how) in ways.items():
            count = min(num, max(4, num * 64 // length)) if name == "left-to-right" else num
            calls = unmask.sample(model, num=count, length=length, plan=how, ahead=length).nfe.double()
            result[name][length] = {
                "mean": float(calls.mean()),
                "error": float(calls.std()) / math.sqrt(count),
                "sequences": count,
            }
    return result
