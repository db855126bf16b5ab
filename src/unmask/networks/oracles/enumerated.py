"""Models with known answers: the optimal network of Prop. 3.2 for a known joint distribution.

They allow a sampler or an objective to be verified without pretrained weights: ``EnumeratedOracle`` for
tiny lengths and vocabularies, ``HiddenMarkovOracle`` and ``MarkovOracle`` for any. All are float64 denoisers that
return log p(x^l = v | visible tokens), ignore the time as the optimal network does, and have an exact
``log_likelihood``, an exact ``sample`` and a ``fit``. A mask id below the vocabulary's size is allowed if the
distribution never uses that id.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.networks.oracles.hidden_markov import HiddenMarkovOracle, MarkovOracle
from unmask.networks.oracles.tables import (
    allowed_ids,
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
from unmask.protocol import Denoiser

__all__ = ["EnumeratedOracle", "HiddenMarkovOracle", "MarkovOracle", "TimeDependent"]

_LARGEST_TABLE = 2**26


class EnumeratedOracle:
    """Proposition 3.2 by enumeration: the joint p(x) is a table of shape [V] * L."""

    def __init__(self, joint: Tensor, *, mask_id: int | None = None) -> None:
        joint = torch.as_tensor(joint)
        if joint.dim() == 0 or len(set(joint.shape)) != 1:
            raise ValueError(f"joint must have shape [V] * L, got {tuple(joint.shape)}")
        self.vocab_size: int = joint.shape[0]
        self.length: int = joint.dim()
        if (self.vocab_size + 1) ** self.length > _LARGEST_TABLE:
            raise ValueError(
                f"joint of V={self.vocab_size}, L={self.length} has (V + 1)^L contexts, more than {_LARGEST_TABLE}: "
                "use HiddenMarkovOracle"
            )
        self.joint = distribution("joint", joint, dims=self.length)
        self.mask_id = resolve_mask(mask_id, self.vocab_size)
        # Index V of an axis is the sum over it: entry x is then p(visible tokens of x) with V at the hidden positions.
        marginal = self.joint
        for axis in range(self.length):
            marginal = torch.cat([marginal, marginal.sum(axis, keepdim=True)], axis)
        self._marginal = marginal.flatten()
        self._stride = torch.tensor(marginal.stride())
        if self.mask_id < self.vocab_size and any(
            bool(self.joint.select(axis, self.mask_id).any()) for axis in range(self.length)
        ):
            raise ValueError(f"mask_id={mask_id} lies below V={self.vocab_size}, but joint gives it a probability")

    def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """log p(x^l = v | visible tokens), float64 [B, R, V]; the time is not read."""
        context, tokens = self._context(tokens)
        rows = check_rows(rows, tokens)
        evidence = self._marginal[context]
        if not bool((evidence > 0).all()):
            raise impossible(evidence > 0, tokens)
        # p(x^l = v | visible) = p(visible and x^l = v) / p(visible): at a hidden l, replace index V by v.
        change = torch.arange(self.vocab_size) - self.vocab_size
        asked = tokens.gather(1, rows)
        step = torch.where(asked == self.mask_id, self._stride[rows], 0)
        index = context[:, None, None] + step.unsqueeze(-1) * change
        return reveal((self._marginal[index] / evidence[:, None, None]).log_(), asked, self.mask_id)

    def log_likelihood(self, tokens: Tensor) -> Tensor:
        """log p(visible tokens) in nats, [B]; -inf where impossible."""
        return self._marginal[self._context(tokens)[0]].log()

    def sample(self, num: int, *, generator: torch.Generator, length: int | None = None) -> Tensor:
        """`num` exact draws, int64 [num, L]."""
        check_num(num, length, self.length)
        flat = inverse_cdf(cdf(self.joint.view(1, -1)), torch.zeros(num, dtype=torch.int64), generator)
        return torch.stack(torch.unravel_index(flat, self.joint.shape), -1)

    def entropy(self) -> float:
        """H(x) in nats."""
        return float(-torch.xlogy(self.joint, self.joint).sum())

    @classmethod
    def fit(
        cls, tokens: Tensor, vocab_size: int, *, smoothing: float = 0.0, mask_id: int | None = None
    ) -> EnumeratedOracle:
        """The frequencies of the sequences in tokens [N, L], with `smoothing` added to every sequence's count."""
        if not (math.isfinite(smoothing) and smoothing >= 0):
            raise ValueError(f"smoothing must be finite and >= 0, got {smoothing}")
        allowed = allowed_ids(vocab_size, mask_id)
        tokens = check_complete(tokens, vocab_size, mask_id)
        length = tokens.shape[1]
        if (vocab_size + 1) ** length > _LARGEST_TABLE:
            raise ValueError(f"V={vocab_size}, L={length} is too large to enumerate: use HiddenMarkovOracle.fit")
        flat = (tokens * vocab_size ** torch.arange(length - 1, -1, -1)).sum(1)
        counts = torch.bincount(flat, minlength=vocab_size**length).double().view([vocab_size] * length)
        possible = torch.tensor(True)
        for _ in range(length):
            possible = possible.unsqueeze(-1) & allowed
        counts += smoothing * possible
        return cls(counts / counts.sum(), mask_id=mask_id)

    def _context(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Each context's place in the table of marginals, and the checked tokens."""
        tokens = check_tokens(tokens, self.vocab_size, self.mask_id)
        if tokens.shape[1] != self.length:
            raise ValueError(f"tokens must be [B, {self.length}] for this joint, got {tuple(tokens.shape)}")
        index = torch.where(tokens == self.mask_id, self.vocab_size, tokens)
        return (index * self._stride).sum(1), tokens


@dataclass(frozen=True)
class TimeDependent:
    """A network that reads the time: the wrapped model's logits times 1 + strength (t - 1/2)."""

    model: Denoiser
    strength: float = 1.0

    def __post_init__(self) -> None:
        if not abs(self.strength) < 2:
            raise ValueError(f"strength must be in (-2, 2) so that no temperature is negative, got {self.strength}")

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def mask_id(self) -> int:
        return self.model.mask_id

    def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        if time is None:
            raise ValueError(f"time is needed by a time-dependent model: a float tensor [{tokens.shape[0]}], got None")
        if time.shape != tokens.shape[:1] or not bool(((time >= 0) & (time <= 1)).all()):
            raise ValueError(f"time must be [{tokens.shape[0]}] within 0..1, got {time}")
        logits = self.model(tokens, time=time, rows=rows)
        return logits * (1 + self.strength * (time.to(logits.dtype) - 0.5))[:, None, None]
