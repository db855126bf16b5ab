"""Oracles as judges: generative perplexity under the true distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from unmask.evaluate.judge.samples import Samples
from unmask.networks.oracles import baum_welch
from unmask.networks.oracles.hidden_markov import HiddenMarkovOracle


@runtime_checkable
class JudgesTokens(Protocol):
    """A distribution that gives -log p token by token, without a call for each prefix."""

    def judged_nats(self, tokens: Tensor) -> Tensor:
        """-log p of each judged token of rows [B, L], given those before it: float64 [B, n]."""
        ...


@dataclass(frozen=True)
class OracleJudge:
    """An oracle's -log p of token sequences.

    oracle: anything with ``vocab_size``, and either ``judged_nats`` or ``log_likelihood`` and ``mask_id``.
    """

    oracle: Any
    name: str = "oracle"
    conventions: str = "the samples' own tokens are judged, the first one too; there is no eos, no window"

    def nats(self, samples: Samples) -> list[Tensor]:
        """-log p(x_j | x_<j) of every token, float64; infinite from the first impossible token on."""
        return [values for row in self._groups(samples) for values in self._nats(row)]

    def ids(self, samples: Samples) -> list[Tensor]:
        if samples.tokens is None:
            raise ValueError(f"{self.name} judges tokens, but these samples have only texts")
        return samples.rows

    def _groups(self, samples: Samples) -> list[Tensor]:
        rows = self.ids(samples)
        same = len({len(row) for row in rows}) == 1
        return [torch.stack(rows)] if same else [row[None] for row in rows]

    def _nats(self, tokens: Tensor) -> list[Tensor]:
        if not tokens.numel():
            return [torch.zeros(0, dtype=torch.float64) for _ in tokens]
        if bool((tokens >= self.oracle.vocab_size).any()):
            raise ValueError(f"tokens must be below the oracle's V={self.oracle.vocab_size}, got {int(tokens.max())}")
        if isinstance(self.oracle, JudgesTokens):
            return list(self.oracle.judged_nats(tokens))
        if isinstance(self.oracle, HiddenMarkovOracle):
            return list(-_forward(self.oracle, tokens).log())
        return list(_chain_rule(self.oracle, tokens))


def _forward(oracle: HiddenMarkovOracle, tokens: Tensor) -> Tensor:
    """p(x_j | x_<j) [B, L]: the scales of the forward recursion."""
    parts = torch.split(tokens, baum_welch.rows_at_once(tokens.shape[1], oracle.states))
    scales = []
    for part in parts:
        evidence = baum_welch.evidence_of(part, oracle._likelihood)
        scales.append(baum_welch.messages(evidence, oracle.initial, oracle.transition)[1].T)
    return torch.cat(scales)


def _chain_rule(oracle: Any, tokens: Tensor) -> Tensor:
    """log p(x_<j) - log p(x_<=j) [B, L], with later tokens masked."""
    length = tokens.shape[1]
    prefixes = [
        oracle.log_likelihood(tokens.masked_fill(torch.arange(length) >= j, oracle.mask_id)) for j in range(length + 1)
    ]
    return (-torch.stack(prefixes, 1).diff(dim=1)).nan_to_num(nan=torch.inf, posinf=torch.inf)
