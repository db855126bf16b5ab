"""Finite automata over token ids as guides: p(accepted | visible, token) by forward-backward over the canvas.

The automaton reads a canvas from left to right. At a masked position its input is random, under one of two models of
the masked tokens:

    the network's prediction at each masked position, as if these were independent given the visible tokens. It is
    exact for a network whose tokens are independent, and an approximation for others
    a hidden Markov chain, such as ``HiddenMarkovOracle``: exact if it is the network, and an approximation for a
    network that it was fitted to (as in GeLaTo and Ctrl-G)

Both are exact for a finished canvas. So every sequence that is drawn is accepted, and particles correct the
distribution.

With the chain's states s, the automaton's states q, ids v of class c and moves q -> q(c),

    F_1(s, q) = initial(s) [q = start]     F_{l+1}(s', q') = sum_{s,q,c: q(c) = q'} F_l(s, q) e_l(s, c) T(s, s')
    B_{L+1}(s, q) = [q accepts]            B_l(s, q) = sum_{s',c} e_l(s, c) T(s, s') B_{l+1}(s', q(c))

where e_l(s, c) is the probability that state s emits an id of class c, or only that of the visible id; T acts from l to
l + 1. At the position l, p(accepted | visible, v) is sum_{s,q} F_l e(s, v) (T B_{l+1})(s, q(c_v)) divided by the same
with B = 1. Without a chain there is one state, and e_l is the network's prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from unmask.guide import Call, Guide, Weigh


@dataclass(frozen=True)
class Automaton:
    """A deterministic finite automaton: moves [Q, V] from state to state by token id, started in state 0."""

    moves: Tensor = field(repr=False)  # int64 [Q, V]
    accepts: Tensor = field(repr=False)  # bool [Q]: the states in which a whole sequence may end

    def __post_init__(self) -> None:
        moves, accepts = torch.as_tensor(self.moves), torch.as_tensor(self.accepts)
        if moves.ndim != 2 or moves.dtype != torch.int64 or accepts.shape != moves.shape[:1]:
            raise ValueError(
                f"moves must be int64 [Q, V] and accepts bool [Q], got {tuple(moves.shape)} and {tuple(accepts.shape)}"
            )
        if not bool(((moves >= 0) & (moves < len(moves))).all()):
            raise ValueError(f"moves must lead to states 0..{len(moves) - 1}")
        object.__setattr__(self, "moves", moves)
        object.__setattr__(self, "accepts", accepts.bool())

    @property
    def states(self) -> int:
        return len(self.moves)

    @cached_property
    def classes(self) -> tuple[Tensor, Tensor]:
        """Ids that no state distinguishes form one class: the class of each id [V], and the moves by class [Q, C]."""
        moves, of = self.moves.unique(dim=1, return_inverse=True)  # type: ignore[no-untyped-call]
        return of, moves

    def accepted(self, tokens: Tensor) -> Tensor:
        """Which complete sequences [B, L] it accepts, bool [B]."""
        q = torch.zeros(len(tokens), dtype=torch.int64)
        for column in tokens.cpu().unbind(1):
            q = self.moves[q, column]
        return self.accepts[q]

    def __and__(self, other: Automaton) -> Automaton:
        """The automaton of the sequences that both accept."""
        if self.moves.shape[1] != other.moves.shape[1]:
            raise ValueError("the automata read different vocabularies")
        both, of = torch.stack((self.classes[0], other.classes[0]), 1).unique(dim=0, return_inverse=True)  # type: ignore[no-untyped-call]
        steps = [one.classes[1][:, both[:, k]] for k, one in enumerate((self, other))]
        numbers: dict[tuple[int, int], int] = {(0, 0): 0}
        table: list[list[int]] = []
        todo = [(0, 0)]
        for pair in todo:  # grows
            after = list(zip(*(step[q].tolist() for step, q in zip(steps, pair, strict=True)), strict=True))
            for one in after:
                if one not in numbers:
                    numbers[one] = len(numbers)
                    todo.append(one)
            table.append([numbers[one] for one in after])
        accepts = torch.tensor([bool(self.accepts[a]) and bool(other.accepts[b]) for a, b in todo])
        return Automaton(torch.tensor(table)[:, of], accepts)


class Chain(Protocol):
    """A hidden Markov chain: initial [S], transition [S, S] and emission [S, V]."""

    @property
    def initial(self) -> Tensor: ...

    @property
    def transition(self) -> Tensor: ...

    @property
    def emission(self) -> Tensor: ...


@dataclass(frozen=True)
class Matching:
    """h(x) = 1 where the automaton accepts x."""

    automaton: Automaton
    chain: Chain | None = None
    begin: int = 0  # the automaton reads the canvas from here on
    allowed: Mapping[int, Tensor] = field(default_factory=dict, repr=False)  # ids at masked positions, bool [V]
    races: bool = False
    tilts: bool = True

    @property
    def everywhere(self) -> bool:
        return self.chain is None

    def possible(self, canvas: Tensor, mask_id: int) -> bool:
        """Whether a canvas [L] has a sequence that is accepted, if any allowed id may fill a masked position."""
        of, moves = self.automaton.classes
        state = torch.zeros(len(moves), dtype=torch.bool)
        state[0] = True
        for place, token in enumerate(canvas.tolist()[self.begin :], self.begin):
            if token != mask_id:
                after = moves[state][:, of[token]]
            elif place in self.allowed:
                after = moves[state][:, of[self.allowed[place].cpu()]]
            else:
                after = moves[state]
            state = torch.zeros_like(state).index_fill_(0, after.flatten(), True)
        return bool((state & self.automaton.accepts).any())

    def __call__(self, call: Call) -> Weigh:
        size = call.log_mu.shape[1]
        if self.automaton.moves.shape[1] != size:
            raise ValueError(f"the automaton reads {self.automaton.moves.shape[1]} ids, and the model has {size}")
        of, moves = self.automaton.classes
        initial, transition, emission = _tables(self.chain, size)
        by_class = _summed(emission, of, moves.shape[1])
        masked = by_class.expand(*call.x.shape, *by_class.shape)  # e_l(s, c) at masked positions: [B, L, S, C]
        if self.chain is None:
            masked = masked.clone()
            row, column = (call.rows >= 0).nonzero(as_tuple=True)
            masked[row, call.rows[row, column], 0] = _summed(call.log_mu.exp().cpu(), of, moves.shape[1])
        elif self.allowed:
            masked = masked.clone()
            for place, ids in self.allowed.items():
                masked[:, place] = _summed(emission * ids.cpu(), of, moves.shape[1])
        if self.begin:  # a visible id before the beginning leaves the automaton where it is: a class of its own
            if not bool(call.given[:, : self.begin].all()):
                raise ValueError(f"the automaton begins at {self.begin}, and positions before it are masked")
            moves = torch.cat((moves, torch.arange(len(moves)).unsqueeze(1)), 1)
            masked = functional.pad(masked, (0, 1))

        def weigh(i: Tensor, x: Tensor, at: Tensor, race: Tensor | None) -> Tensor:
            x = x.cpu()
            seen = x != call.mask_id
            shown = torch.where(seen, x, 0)
            kinds = of[shown]
            kinds[:, : self.begin] = moves.shape[1] - 1
            exact = functional.one_hot(kinds, moves.shape[1]).unsqueeze(2) * emission.T[shown].unsqueeze(3)
            evidence = torch.where(seen[:, :, None, None], exact, masked[i])
            row = torch.arange(len(x))
            accepted, scale = _backward(evidence, transition, moves, self.automaton.accepts)
            whole, most = _backward(evidence.sum(3, keepdim=True), transition, moves.new_zeros(1, 1), torch.ones(1))
            here = _forward(evidence, initial, transition, moves)[row, at]  # [b, S, Q]
            # [b, S, C]: into each class from every state of the automaton
            after = torch.einsum("bsq,bsqc->bsc", here, accepted[row, at][:, :, moves])
            top = torch.einsum("bsv,sv->bv", after[:, :, of], emission)
            bottom = torch.einsum("bs,sv->bv", here.sum(2) * whole[row, at][:, :, 0], emission)
            log_g = top.log() - bottom.log() + (scale[row, at] - most[row, at]).unsqueeze(1)
            return torch.where(bottom > 0, log_g, -torch.inf)

        return weigh


@dataclass(frozen=True)
class Both:
    """h(x) = h_1(x) h_2(x), weighed by the product of the two guides."""

    first: Guide
    second: Guide
    races: bool = False

    @property
    def everywhere(self) -> bool:
        return self.first.everywhere or self.second.everywhere

    @property
    def tilts(self) -> bool:
        return self.first.tilts and self.second.tilts

    def __call__(self, call: Call) -> Weigh:
        one, other = self.first(call), self.second(call)
        return lambda i, x, at, race: one(i, x, at, race).cpu() + other(i, x, at, race).cpu()


def _tables(chain: Chain | None, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Initial, transition and emission; without a chain one state, whose emission is not used."""
    if chain is None:
        one = torch.ones(1, 1, dtype=torch.float64)
        return one[0], one, one.expand(1, size)
    if chain.emission.shape[1] != size:
        raise ValueError(f"the chain emits {chain.emission.shape[1]} ids, and the model has {size}")
    return chain.initial, chain.transition, chain.emission


def _summed(probabilities: Tensor, of: Tensor, classes: int) -> Tensor:
    """[..., V] summed by class: [..., C]."""
    return probabilities.new_zeros(*probabilities.shape[:-1], classes).index_add_(-1, of, probabilities)


def _backward(evidence: Tensor, transition: Tensor, moves: Tensor, accepts: Tensor) -> tuple[Tensor, Tensor]:
    """(T B_{l+1})(s, q) for each l, [B, L, S, Q], up to a factor whose logarithm is returned second, [B, L]."""
    size, length, states = evidence.shape[:3]
    after = torch.empty(size, length, states, len(moves), dtype=torch.float64)
    scale = torch.zeros(size, length, dtype=torch.float64)
    b, log = accepts.double().expand(size, states, -1), torch.zeros(size, dtype=torch.float64)
    for place in range(length - 1, -1, -1):
        # After the last position the chain has no next state.
        b = b if place == length - 1 else torch.einsum("st,btq->bsq", transition, b)
        after[:, place], scale[:, place] = b, log
        b = torch.einsum("bsqc,bsc->bsq", b[:, :, moves], evidence[:, place])
        most = b.flatten(1).amax(1).clamp(min=torch.finfo(torch.float64).tiny)
        b, log = b / most[:, None, None], log + most.log()
    return after, scale


def _forward(evidence: Tensor, initial: Tensor, transition: Tensor, moves: Tensor) -> Tensor:
    """F_l(s, q) before each position, [B, L, S, Q], normalised to sum to 1."""
    size, length, states = evidence.shape[:3]
    before = torch.empty(size, length, states, len(moves), dtype=torch.float64)
    f = torch.zeros(size, states, len(moves), dtype=torch.float64)
    f[:, :, 0] = initial
    for place in range(length):
        f = f / f.sum((1, 2), keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        before[:, place] = f
        spread = (f.unsqueeze(3) * evidence[:, place].unsqueeze(2)).flatten(2)  # [b, S, Q C]
        f = torch.zeros_like(f).index_add_(2, moves.flatten(), spread)
        f = torch.einsum("bsq,st->btq", f, transition)
    return before
