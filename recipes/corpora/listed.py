"""The optimal network of a distribution over a list of sequences: all solutions of a puzzle, for example."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from unmask.networks.oracles.tables import (
    cdf,
    check_complete,
    check_num,
    check_rows,
    check_tokens,
    distribution,
    impossible,
    inverse_cdf,
    resolve_mask,
    reveal,
)

_LARGEST_LIST = 2**27  # numbers of K x L x V
_AT_ONCE = 2**24  # comparisons


class ListedOracle:
    """Proposition 3.2 for a joint that gives K sequences of length L all the probability, however long they are.

    log p(x^l = v | visible tokens) is a sum over the listed sequences that agree with what is visible.
    """

    def __init__(
        self, sequences: Tensor, vocab_size: int, *, probabilities: Tensor | None = None, mask_id: int | None = None
    ) -> None:
        """sequences: int64 [K, L], no two the same; probabilities: [K], equal by default."""
        self.mask_id, self.vocab_size = resolve_mask(mask_id, vocab_size), vocab_size
        self.sequences = check_complete(sequences, vocab_size, mask_id)
        count, self.length = self.sequences.shape
        if count * self.length * vocab_size > _LARGEST_LIST:
            raise ValueError(f"{count} sequences of L={self.length} and V={vocab_size} are more than {_LARGEST_LIST}")
        if len({tuple(row) for row in self.sequences.tolist()}) != count:
            raise ValueError("sequences must be different; give one that is likelier a probability")
        equal = torch.full((count,), 1 / count, dtype=torch.float64)
        self.probabilities = distribution("probabilities", equal if probabilities is None else probabilities, (count,))
        # Equal probabilities become 1, whose sums are exact: equal conditionals are then equal to the last bit.
        self._weights = self.probabilities / self.probabilities.max()
        self._one_hot = functional.one_hot(self.sequences, vocab_size).double().flatten(1)

    def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """log p(x^l = v | visible tokens), float64 [B, R, V]; the time is not read."""
        tokens = check_tokens(tokens, self.vocab_size, self.mask_id)
        rows = check_rows(rows, tokens)
        weights = self._agreeing(tokens, self._weights)
        evidence = weights.sum(1)
        if not bool((evidence > 0).all()):
            raise impossible(evidence > 0, tokens)
        mu = (weights @ self._one_hot).view(-1, self.length, self.vocab_size) / evidence[:, None, None]
        asked = mu.gather(1, rows.unsqueeze(-1).expand(-1, -1, self.vocab_size))
        return reveal(asked.log_(), tokens.gather(1, rows), self.mask_id)

    def log_likelihood(self, tokens: Tensor) -> Tensor:
        """log p(visible tokens) in nats, [B]; -inf where impossible."""
        return self._agreeing(check_tokens(tokens, self.vocab_size, self.mask_id), self.probabilities).sum(1).log()

    def sample(self, num: int, *, generator: torch.Generator, length: int | None = None) -> Tensor:
        """`num` exact draws, int64 [num, L]."""
        check_num(num, length, self.length)
        drawn = inverse_cdf(cdf(self.probabilities.view(1, -1)), torch.zeros(num, dtype=torch.int64), generator)
        return self.sequences[drawn]

    def entropy(self) -> float:
        """H(x) in nats."""
        return float(torch.special.entr(self.probabilities).sum())

    def _agreeing(self, tokens: Tensor, weights: Tensor) -> Tensor:
        """The weight of each sequence where it agrees with the visible tokens, else 0: [B, K]."""
        if tokens.shape[1] != self.length:
            raise ValueError(f"tokens must be [B, {self.length}] for these sequences, got {tuple(tokens.shape)}")
        made = [
            torch.where(((part == self.sequences) | (part == self.mask_id)).all(-1), weights, 0.0)
            for part in torch.split(tokens.unsqueeze(1), max(1, _AT_ONCE // self.sequences.numel()))
        ]
        return torch.cat(made) if made else weights.new_zeros(0, len(self.sequences))
