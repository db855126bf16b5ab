"""The result of an evaluation: the bound, its profile over positions or the process, and the true likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unmask.bound import Bound

BINS = 32  # of the profile, at most


@dataclass(frozen=True)
class Profile:
    """The nats over positions or over the process: the mean over equal parts of 0..1 is the nats per token."""

    over: str  # the meaning of 0..1
    nats: list[float]  # per token
    errors: list[float]


@dataclass(frozen=True)
class Evaluation:
    """The result for a model and a token file, and how it was computed."""

    bound: Bound
    how: str  # "bound by count (Eq. 7)", ..., "exact, left to right"
    passes: int  # per sequence, in total
    indices: Tensor  # int64 [B], the sequences of the file
    profile: Profile | None
    about: dict[str, Any]  # model, data, seed, ...
    truth: Tensor | None = None  # float64 [B]: -log p under the distribution of the data, where it is known

    @property
    def entropy(self) -> tuple[float, float] | None:
        """Nats per token under the true distribution, and the error over sequences: the entropy of the data."""
        return None if self.truth is None else _mean_and_error(self.truth / self.bound.tokens)

    @property
    def distance(self) -> tuple[float, float] | None:
        """The KL divergence from the true distribution in nats per token, or a bound on it; the error is paired."""
        return None if self.truth is None else _mean_and_error((self.bound.nats - self.truth) / self.bound.tokens)

    def to_dict(self, *, sequences: bool = True) -> dict[str, Any]:
        """For JSON; infinite or unknown values become None."""
        names = ("value", "error_of_estimate", "error_over_sequences")
        units = {
            unit.replace(" ", "_"): dict(zip(names, map(_finite, values), strict=True))
            for unit, values in self.bound.units().items()
        }
        record = {
            **self.about,
            "how": self.how,
            "exact": self.bound.exact,
            "passes": self.passes,
            "sequences": self.bound.sequences,
            "tokens": int(self.bound.tokens.sum()),
            **units,
        }
        for name, pair in (("truth", self.entropy), ("distance_from_truth", self.distance)):
            if pair is not None:
                record[f"{name}_nats_per_token"] = {"value": _finite(pair[0]), "error_over_sequences": _finite(pair[1])}
        if self.profile is not None:
            values = [[_finite(value) for value in part] for part in (self.profile.nats, self.profile.errors)]
            record["profile"] = {"over": self.profile.over, "nats_per_token": values[0], "errors": values[1]}
        if sequences:
            nats, errors = (list(map(_finite, values.tolist())) for values in (self.bound.nats, self.bound.errors))
            record["per_sequence"] = {"index": self.indices.tolist(), "nats": nats, "errors": errors}
        return record


def paired(one: Evaluation, other: Evaluation) -> tuple[float, float]:
    """How many bits per token one model needs more than the other for the same sequences, and its standard error.

    The sequences are drawn once, and with them what they have in common: the error is that of the differences.
    """
    if not torch.equal(one.indices, other.indices):
        raise ValueError("two evaluations are compared sequence by sequence: they must be of the same sequences")
    gap = replace(one.bound, nats=one.bound.nats - other.bound.nats)
    return gap.bits_per_token, gap.error_over_sequences / math.log(2)


def _mean_and_error(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.inf


def _parts(length: int) -> Tensor:
    """Which of at most BINS equal parts each position is in."""
    return torch.arange(length) * min(length, BINS) // length


def in_parts(nats: Tensor) -> Tensor:
    """The sums over each part of the positions, from [B, L]."""
    sums = torch.zeros(len(nats), min(nats.shape[1], BINS), dtype=torch.float64)
    return sums.index_add(1, _parts(nats.shape[1]), nats)


def by_position(sums: Tensor, length: int) -> Profile:
    return Profile("position in the sequence", *means(list((sums / torch.bincount(_parts(length))).T)))


def means(groups: list[Tensor]) -> tuple[list[float], list[float]]:
    """Each group's mean, and its standard error."""
    means = [float(some.mean()) if len(some) else math.nan for some in groups]
    return means, [float(some.std()) / math.sqrt(len(some)) if len(some) > 1 else math.nan for some in groups]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
