"""What an evaluation has found: the bound, where in the sequence or in the process its nats are, and the truth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.bound import Bound

BINS = 32  # of the profile, at most, of


@dataclass(frozen=True)
class Profile:
    """Where in the sequence or in the process the nats are: the mean over equal parts of 0..1 is the nats per token."""

    over: str  # what 0..1 stands for
    nats: list[float]  # per token
    errors: list[float]


@dataclass(frozen=True)
class Evaluation:
    """What was found for a model and a token file, and how."""

    bound: Bound
    how: str  # "bound by count (Eq. 7)", ..., "exact, left to right"
    passes: int  # over each sequence, in all
    indices: Tensor  # int64 [B], which sequences of the file
    profile: Profile | None
    about: dict[str, Any]  # model, data, seed, ...
    truth: Tensor | None = None  # float64 [B]: -log p under the distribution of the data, where it is known

    @property
    def entropy(self) -> tuple[float, float] | None:
        """Nats per token of the truth on these sequences, and its error over them: the entropy of the data."""
        return None if self.truth is None else _mean_and_error(self.truth / self.bound.tokens)

    @property
    def distance(self) -> tuple[float, float] | None:
        """The Kullback-Leibler distance from the truth in nats per token, or a bound on it; the error is paired."""
        return None if self.truth is None else _mean_and_error((self.bound.nats - self.truth) / self.bound.tokens)

    def to_dict(self, *, sequences: bool = True) -> dict[str, Any]:
        """For JSON; what is infinite or unknown is None."""
        names = ("value", "error_of_estimate", "error_over_sequences")
        units = {
            unit.replace(" ", "_"): dict(zip(names, map(_finite, values), strict=True))
            for unit, values in self.bound.units().items()
        }
        made = {
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
                made[f"{name}_nats_per_token"] = {"value": _finite(pair[0]), "error_over_sequences": _finite(pair[1])}
        if self.profile is not None:
            values = [[_finite(value) for value in part] for part in (self.profile.nats, self.profile.errors)]
            made["profile"] = {"over": self.profile.over, "nats_per_token": values[0], "errors": values[1]}
        if sequences:
            nats, errors = (list(map(_finite, values.tolist())) for values in (self.bound.nats, self.bound.errors))
            made["per_sequence"] = {"index": self.indices.tolist(), "nats": nats, "errors": errors}
        return made


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
