"""The optimal network of ``unmask.insertion`` for a distribution over a list of strings of different lengths."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unmask.processes import Insertion

SMALLEST = -600.0  # the logarithm that stands for probability 0 where a difference must be finite


class StringsOracle:
    """G and f by enumeration, for strings of tokens 0 .. V - 1 and at most N = ``length`` tokens.

    With e(a, b) the number of ways to find string a in b, its order kept and a mask being any token, the posterior of a
    string x of n tokens, given m masks and tokens y of which j slots are decided, is
    p(x) e(y, x) (N - n)! / (N - n - (j - m))! up to a factor.
    """

    process = Insertion()

    def __init__(self, strings: Sequence[Sequence[int]], probabilities: Tensor, vocab_size: int, length: int) -> None:
        if max(map(len, strings)) > length or len(set(map(tuple, strings))) != len(strings):
            raise ValueError(f"strings must be different and have at most {length} tokens")
        self.tokens, self.length = vocab_size, length
        self.vocab_size, self.mask_id = vocab_size + 2, vocab_size + 2
        self.strings = [torch.tensor(list(one), dtype=torch.int64) for one in strings]
        self.probabilities = torch.as_tensor(probabilities, dtype=torch.float64)

    def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        every, of = tokens.unique(dim=0, return_inverse=True)  # type: ignore[no-untyped-call]
        logits = torch.stack([self._answer(canvas) for canvas in every])[of]
        return logits if rows is None else logits.gather(1, rows.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))

    def padded(self) -> Tensor:
        """The strings as sequences [K, N], padded with EMPTY."""
        x = torch.full((len(self.strings), self.length), self.mask_id - 2)
        for row, one in zip(x, self.strings, strict=True):
            row[: len(one)] = one
        return x

    def _answer(self, canvas: Tensor) -> Tensor:
        y, left = canvas[(canvas < self.tokens) | (canvas == self.mask_id)], int((canvas == self.mask_id - 1).sum())
        empty = self.length - left - len(y)  # phantoms decided
        gaps = torch.zeros(len(y) + 1, dtype=torch.float64)
        none, found = 0.0, torch.zeros(len(y), self.tokens, dtype=torch.float64)
        for x, p in zip(self.strings, self.probabilities.tolist(), strict=True):
            spare = self.length - len(x)
            if spare < empty or len(x) < len(y):
                continue
            p *= float(torch.arange(spare - empty + 1, spare + 1, dtype=torch.float64).prod())
            before, after = self._ways(y, x), self._ways(y.flip(0), x.flip(0)).flip(0, 1)
            none += p * float(before[-1, -1]) * (spare - empty)
            gaps += p * (before[:, :-1] * after[:, 1:]).sum(1)
            fits = (y.unsqueeze(1) == x) | (y == self.mask_id).unsqueeze(1)
            found.index_add_(1, x, p * before[:-1, :-1] * after[1:, 1:] * fits)
        logits = torch.full((self.length, self.vocab_size), SMALLEST, dtype=torch.float64)
        logits[:, : self.tokens] = 0.0
        logits[: len(y), : self.tokens] = found.log()
        logits[: len(y) + 1, -1] = gaps.log()[: self.length].clamp(min=SMALLEST)
        logits[:, -2] = max(torch.tensor(none).log().item(), SMALLEST)
        return logits

    def _ways(self, y: Tensor, x: Tensor) -> Tensor:
        """The ways to find the first i of y in the first k of x: float64 [len(y) + 1, len(x) + 1]."""
        ways = torch.zeros(len(y) + 1, len(x) + 1, dtype=torch.float64)
        ways[0] = 1.0
        for i, one in enumerate(y.tolist()):
            fits = (x == one) | (one == self.mask_id)
            ways[i + 1, 1:] = (ways[i, :-1] * fits).cumsum(0)
        return ways
