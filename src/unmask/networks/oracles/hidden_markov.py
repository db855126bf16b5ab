"""Hidden Markov chains as denoisers: the optimal network of Prop. 3.2 by forward-backward, at any length.

A chain of hidden states z starts from ``initial`` [S] and moves by ``transition`` [S, S]; state s emits token v with
probability ``emission`` [s, v]. A masked position emits nothing, so any pattern of holes is handled alike. Only the
states are summed over the whole sequence; the emission is applied to the asked rows alone, so no B x L x V tensor
exists and V = 50,257 at L = 1024 is cheap. The recursions are scaled at every position, in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unmask.networks.oracles import baum_welch
from unmask.networks.oracles.tables import (
    allowed_ids,
    cdf,
    check_complete,
    check_rows,
    check_tokens,
    distribution,
    impossible,
    inverse_cdf,
    normalise,
    resolve_mask,
    reveal,
)


class HiddenMarkovOracle:
    """Proposition 3.2 for a hidden Markov chain."""

    def __init__(self, initial: Tensor, transition: Tensor, emission: Tensor, *, mask_id: int | None = None) -> None:
        initial, emission = torch.as_tensor(initial), torch.as_tensor(emission)
        if initial.dim() != 1 or emission.dim() != 2:
            raise ValueError(
                f"initial must be [S] and emission [S, V], got {tuple(initial.shape)} and {tuple(emission.shape)}"
            )
        states, self.vocab_size = len(initial), emission.shape[1]
        self.initial = distribution("initial", initial)
        self.transition = distribution("transition", transition, (states, states))
        self.emission = distribution("emission", emission, (states, self.vocab_size))
        self.mask_id = resolve_mask(mask_id, self.vocab_size)
        if self.mask_id < self.vocab_size:
            visited = (self.initial > 0) | (self.transition > 0).any(0)
            if bool(self.emission[visited, self.mask_id].any()):
                raise ValueError(f"mask_id={mask_id} lies below V={self.vocab_size}, but a state may emit it")
        # p(x | z) by token id, contiguous for look-up; a masked position says nothing about its state.
        ids = max(self.vocab_size, self.mask_id + 1)
        self._likelihood = torch.ones(ids, states, dtype=torch.float64)
        self._likelihood[: self.vocab_size] = self.emission.T
        self._likelihood[self.mask_id] = 1.0

    @property
    def states(self) -> int:
        return len(self.initial)

    def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """log p(x^l = v | visible tokens), float64 [B, R, V]; the time is not read."""
        tokens = check_tokens(tokens, self.vocab_size, self.mask_id)
        rows = check_rows(rows, tokens)
        size = baum_welch.rows_at_once(tokens.shape[1], self.states)
        parts = zip(torch.split(tokens, size), torch.split(rows, size), strict=True)
        posterior = torch.cat([self._posterior(x, r) for x, r in parts])
        return reveal(self._emit(posterior).log_(), tokens.gather(1, rows), self.mask_id)

    def log_likelihood(self, tokens: Tensor) -> Tensor:
        """log p(visible tokens) in nats, [B]; -inf where impossible."""
        tokens = check_tokens(tokens, self.vocab_size, self.mask_id)
        parts = torch.split(tokens, baum_welch.rows_at_once(tokens.shape[1], self.states))
        evidence = (baum_welch.evidence_of(x, self._likelihood) for x in parts)
        return torch.cat([baum_welch.messages(e, self.initial, self.transition)[1].log().sum(0) for e in evidence])

    def sample(self, num: int, length: int, generator: torch.Generator) -> Tensor:
        """`num` exact draws, int64 [num, length]."""
        if num < 0 or length < 1:
            raise ValueError(f"num must be >= 0 and length >= 1, got num={num}, length={length}")
        z = torch.empty(num, length, dtype=torch.int64)
        z[:, 0] = inverse_cdf(cdf(self.initial.unsqueeze(0)), torch.zeros_like(z[:, 0]), generator)
        moves = cdf(self.transition)
        for position in range(1, length):
            z[:, position] = inverse_cdf(moves, z[:, position - 1], generator)
        return inverse_cdf(cdf(self.emission), z.flatten(), generator).view_as(z)

    @classmethod
    def fit(
        cls,
        tokens: Tensor,
        vocab_size: int,
        states: int,
        *,
        iterations: int = 25,
        smoothing: float = 0.0,
        seed: int = 0,
        mask_id: int | None = None,
        start: HiddenMarkovOracle | None = None,
        callback: Callable[[int, float], None] | None = None,
    ) -> HiddenMarkovOracle:
        """Baum-Welch (EM) on tokens [N, L], or on a stream [N] cut into rows of 1024; masks are missing data.

        Starts from token classes (``baum_welch.start``) or from the model given as `start`. No iteration lowers the
        likelihood. `smoothing` is added to every expected count once, after the last iteration, so that unseen tokens
        are not impossible. `callback(i, nats)` hears the log-likelihood of all tokens before iteration i.
        """
        allowed = allowed_ids(vocab_size, mask_id)
        if states < 1 or iterations < 1 or not 0 <= smoothing < float("inf"):
            raise ValueError(
                f"states and iterations must be >= 1 and smoothing finite and >= 0, got states={states}, "
                f"iterations={iterations}, smoothing={smoothing}"
            )
        mask = resolve_mask(mask_id, vocab_size)
        tokens = check_tokens(baum_welch.as_rows(tokens, mask), vocab_size, mask)
        if start is None:
            tables = baum_welch.start(tokens, allowed, states, seed)
        elif (start.states, start.vocab_size) == (states, vocab_size):
            tables = start.initial, start.transition, start.emission
        else:
            raise ValueError(
                f"start has {start.states} states and V={start.vocab_size}; states={states} and {vocab_size} were asked"
            )
        model = HiddenMarkovOracle(*tables, mask_id=mask_id)
        for i in range(iterations):
            first, moves, emitted, nats = baum_welch.expected_counts(
                tokens, model.initial, model.transition, model._likelihood
            )
            emitted = emitted[:, :vocab_size] * allowed
            if callback is not None:
                callback(i, nats)
            extra = smoothing if i == iterations - 1 else 0.0
            model = HiddenMarkovOracle(
                normalise(first + extra),
                normalise(moves + extra),
                normalise(emitted + extra * allowed, allowed),
                mask_id=mask_id,
            )
        return model

    def _posterior(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """p(z^l | visible tokens, bar x^l itself) at the asked rows, [B, R, S]."""
        evidence = baum_welch.evidence_of(tokens, self._likelihood)
        forward, _, backward = baum_welch.forward_backward(tokens, evidence, self.initial, self.transition)
        at = (rows, torch.arange(len(tokens)).unsqueeze(1))
        posterior = forward[at] * backward[at]
        total = posterior.sum(-1, keepdim=True)
        # Both messages are positive, yet their product may fall below float64's smallest number.
        if not bool((total > 0).all()):
            raise impossible((total > 0).flatten(1).all(1), tokens)
        return posterior / total

    def _emit(self, posterior: Tensor) -> Tensor:
        return posterior @ self.emission


class MarkovOracle(HiddenMarkovOracle):
    """Proposition 3.2 for a Markov chain of tokens: the hidden chain whose state is the token."""

    def __init__(self, initial: Tensor, transition: Tensor, *, mask_id: int | None = None) -> None:
        super().__init__(initial, transition, torch.eye(len(initial), dtype=torch.float64), mask_id=mask_id)

    def _emit(self, posterior: Tensor) -> Tensor:
        return posterior

    def entropy(self, length: int) -> float:
        """H(x) in nats of a sequence of this length: the first token's and then each move's."""
        if length < 1:
            raise ValueError(f"length must be >= 1, got {length}")
        move = -torch.xlogy(self.transition, self.transition).sum(-1)
        total = -torch.xlogy(self.initial, self.initial).sum()
        now = self.initial
        for _ in range(length - 1):
            total += now @ move
            now = now @ self.transition
        return float(total)

    @classmethod
    def fit(  # type: ignore[override]
        cls, tokens: Tensor, vocab_size: int, *, smoothing: float = 0.0, mask_id: int | None = None
    ) -> MarkovOracle:
        """The frequencies of first tokens and of moves in tokens [N, L] or a stream [N]; `smoothing` on each count."""
        allowed = allowed_ids(vocab_size, mask_id)
        if not 0 <= smoothing < float("inf"):
            raise ValueError(f"smoothing must be finite and >= 0, got {smoothing}")
        tokens = check_complete(tokens.unsqueeze(0) if tokens.dim() == 1 else tokens, vocab_size, mask_id)
        first = torch.bincount(tokens[:, 0], minlength=vocab_size).double()
        pairs = (tokens[:, :-1] * vocab_size + tokens[:, 1:]).flatten()
        moves = torch.bincount(pairs, minlength=vocab_size**2).double().view(vocab_size, vocab_size)
        extra = smoothing * allowed
        return cls(normalise(first + extra, allowed), normalise(moves + extra, allowed), mask_id=mask_id)
