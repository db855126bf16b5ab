"""The diversity of sequences: the paper's entropy, distinct n-grams, repetition, unigram KL, MAUVE.

tokens are int64 [B, L]; negative ids are padding and are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.extras import needed


def sequence_entropy(tokens: Tensor | Sequence[Tensor]) -> Tensor:
    """The paper's entropy: -sum_k p_k log p_k with p_k = L_k / L, in nats, of each sequence: float64 [B].

    0 for one token repeated, log L for L distinct ones, and 0 for an empty sequence.
    """
    return torch.tensor([_entropy(row) for row in _rows(tokens)], dtype=torch.float64)


def distinct(tokens: Tensor | Sequence[Tensor], n: int) -> float:
    """distinct-n: different n-grams over all n-grams, counted over all sequences together; nan if there is none.

    It falls with the number and the length of the sequences: compare only like with like.
    """
    grams = [gram for row in _rows(tokens) for gram in _grams(row, n)]
    return len(set(grams)) / len(grams) if grams else math.nan


def self_repetition(tokens: Tensor | Sequence[Tensor], n: int = 4) -> Tensor:
    """The fraction of a sequence's n-grams that occurred in it before: float64 [B], 0 if it is shorter than n."""
    parts = []
    for row in _rows(tokens):
        grams = _grams(row, n)
        parts.append(1 - len(set(grams)) / len(grams) if grams else 0.0)
    return torch.tensor(parts, dtype=torch.float64)


def unigram_kl(tokens: Tensor | Sequence[Tensor], counts: Tensor, *, smoothing: float = 1.0) -> float:
    """KL(samples' unigrams | training data's) in nats; counts [V] are the training data's, smoothing added to each.

    The samples' frequencies are not smoothed: with N tokens of K kinds an exact sampler has a KL of about (K - 1) / 2N.
    """
    if counts.ndim != 1 or bool((counts < 0).any()) or not (math.isfinite(smoothing) and smoothing >= 0):
        raise ValueError(
            f"counts must be [V] and not negative and smoothing finite and >= 0, got {tuple(counts.shape)}, {smoothing}"
        )
    ids = torch.cat(_rows(tokens))
    if not len(ids):
        raise ValueError("tokens must hold at least one token")
    if int(ids.max()) >= len(counts):
        raise ValueError(f"tokens must be below V={len(counts)}, the length of counts; one is {int(ids.max())}")
    p = torch.bincount(ids, minlength=len(counts)).double() / len(ids)
    q = counts.double() + smoothing
    return float((torch.xlogy(p, p) - torch.xlogy(p, q / q.sum())).sum())


def mauve(features: Tensor, references: Tensor, *, seed: int = 0, **options: Any) -> float:
    """MAUVE of samples' features [N, D] against reference texts' [M, D], by the mauve-text package: 1 is best.

    Features may come from any model, the same for both: ``CausalJudge.features`` gives the final state at each text's
    last token. options are those of mauve.compute_mauve, such as num_buckets. MAUVE depends on the model and on N and
    M.
    """
    package = needed("mauve", "MAUVE needs mauve-text", "mauve")
    if features.ndim != 2 or references.ndim != 2 or features.shape[1] != references.shape[1]:
        shapes = f"{tuple(features.shape)} and {tuple(references.shape)}"
        raise ValueError(f"features and references must be [N, D] and [M, D], got {shapes}")
    both = [np.ascontiguousarray(part.detach().cpu().numpy(), dtype=np.float32) for part in (references, features)]
    result = package.compute_mauve(p_features=both[0], q_features=both[1], seed=seed, verbose=False, **options)
    return float(result.mauve)


def _rows(tokens: Tensor | Sequence[Tensor]) -> list[Tensor]:
    if isinstance(tokens, Tensor) and tokens.ndim != 2:
        raise ValueError(f"tokens must be [batch, length], got {tuple(tokens.shape)}")
    return [row[row >= 0].cpu() for row in tokens]


def _entropy(row: Tensor) -> float:
    if not len(row):
        return 0.0
    p = torch.unique(row, return_counts=True)[1].double() / len(row)
    return max(float(-torch.xlogy(p, p).sum()), 0.0)


def _grams(row: Tensor, n: int) -> list[tuple[int, ...]]:
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    ids = row.tolist()
    return list(zip(*(ids[i:] for i in range(n)), strict=False))
