"""Samples against real sequences: what perplexity and entropy cannot show, at little cost and without a network.

Samples that no model drew can have a low perplexity at any entropy: copies of the training text, or repeated frequent
phrases (Franca and Tong, 2026, arXiv 2606.08417). Here samples are compared with real sequences that were taken out of
the training data at random, by two rank tests:

- copies: the share of a sequence's windows of n tokens that occur in the rest of the training data. n is the smallest
  of WIDTHS at which at most RARE of the windows of real sequences do, measured on those that the test does not use.
- two samples: a classifier is fitted to one half, the ratio of two Kneser-Ney models, of samples and of real sequences;
  the test is whether it ranks the other half better than chance (Lopez-Paz and Oquab, 2017). The classifier sees
  n-grams of up to ORDER tokens, and nothing that is further apart.

Under the null hypothesis both compare independent draws of one law, so each has false alarms at the rate LEVEL.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.data.overlap import window_hashes
from unmask.networks.ngram import kneser_ney

WIDTHS = (3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # tokens of a window
RARE = 0.01  # share of the real windows that may occur in the training data
ORDER = 3
LEVEL = 1e-3  # false alarms of each test
POWER = 0.9
LEAST = 16  # sequences of either kind
MOST = 4096  # sequences of either kind that are read

Rows = Sequence[Tensor]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Real:
    """Sequences of real data with the samples' ids, each int64 [L]; negative ids are padding.

    held_out are not among the training ones and have their law, as if drawn at random from one text: the last books of
    a text differ from its first ones by themselves.
    """

    training: Rows
    held_out: Rows


@dataclass(frozen=True)
class RankTest:
    """Whether the samples' values are larger than the real sequences' (Mann and Whitney)."""

    auc: float  # P(a sample's value > a real one's), ties by half: 1/2 if both have one law
    p: float  # one-sided
    detectable: float  # the AUC that is found with probability POWER

    @property
    def differs(self) -> bool:
        return self.p < LEVEL

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "differs": self.differs}

    def __str__(self) -> str:
        verdict = "DIFFERENT" if self.differs else "no difference found"
        return f"{verdict}, AUC {self.auc:.3f} (p = {self.p:.2g}; {POWER:.0%} power from {self.detectable:.3f} on)"


@dataclass(frozen=True)
class Comparison:
    """Samples against real sequences. ``copies`` is None if no width makes copies rare among real windows."""

    two_samples: RankTest
    copies: RankTest | None
    width: int | None  # tokens of a window
    copied: float  # the mean share of a sample's windows; nan without a width
    copied_of_real: float
    samples: int
    real: int

    @property
    def differs(self) -> bool:
        return self.two_samples.differs or (self.copies is not None and self.copies.differs)

    def to_dict(self) -> dict[str, Any]:
        values = {name: value for name, value in vars(self).items() if value == value}  # a share may be nan
        tests = {
            name: test and test.to_dict() for name, test in (("two_samples", self.two_samples), ("copies", self.copies))
        }
        unknown = {"copied": None, "copied_of_real": None}
        told = {"differs": self.differs, "level": LEVEL, "power": POWER, "order": ORDER}
        return {**unknown, **values, **tests, **told}

    def __str__(self) -> str:
        classifier = f"classifier of {ORDER}-grams: {self.two_samples}"
        copies = "copies: unknown, for too many windows of real sequences occur in the training data"
        if self.copies is not None:
            copies = (
                f"copies: {self.copied:.2%} of windows of {self.width} tokens occur in the training data, and "
                f"{self.copied_of_real:.2%} of real ones: {self.copies}"
            )
        return f"{self.samples:,} samples, {self.real:,} real sequences; {classifier}; {copies}"


@dataclass(frozen=True)
class Truth:
    """Samples against the truth's own sequences, by the truth: below them is as wrong as above."""

    excess: float  # mean nats per token above those of the truth's own sequences
    error: float  # its standard error
    p: float  # two-sided, by the normal limit

    @classmethod
    def of(cls, samples: Floats, own: Floats) -> Truth:
        """From the nats per token of each sequence; infinite for a sample that the truth cannot draw."""
        if min(len(samples), len(own)) < LEAST:
            raise ValueError(
                f"a comparison with the truth needs {LEAST} sequences of both, not {len(samples)}, {len(own)}"
            )
        excess = float(samples.mean() - own.mean())
        if not math.isfinite(excess):
            return cls(excess, math.nan, 0.0)
        error = math.sqrt(samples.var(ddof=1) / len(samples) + own.var(ddof=1) / len(own))
        p = math.erfc(abs(excess) / error / math.sqrt(2)) if error else float(excess == 0)
        return cls(excess, error, p)

    @property
    def differs(self) -> bool:
        return self.p < LEVEL

    def to_dict(self) -> dict[str, Any]:
        values = {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}
        return {**values, "differs": self.differs, "level": LEVEL}

    def __str__(self) -> str:
        verdict = "DIFFERENT" if self.differs else "no difference found"
        return (
            f"{self.excess:+.4f} ± {self.error:.2g} nats per token from the truth's own sequences (standard error): "
            f"{verdict} (p = {self.p:.2g})"
        )


def compare(samples: Rows, real: Real) -> Comparison:
    """Samples against real sequences with the same ids; deterministic, for sequences in random order."""
    drawn, true, training = (_rows(rows) for rows in (samples, real.held_out, real.training))
    drawn, true = spread(drawn, MOST), spread(true, MOST)
    if min(len(drawn), len(true)) < LEAST or not training:
        raise ValueError(
            f"a comparison with real sequences needs {LEAST} samples, {LEAST} held-out sequences and training data, "
            f"got {len(drawn)}, {len(true)} and {len(training)}: take more of them"
        )
    fitted = min(len(drawn), len(true)) // 2  # of each
    values = _log_ratios(drawn[:fitted], true[:fitted], drawn[fitted:], true[fitted:])
    two_samples = rank_test(*values)
    at = bisect_left(WIDTHS, True, key=lambda n: bool(_copied([true[:fitted]], training, n)[0].mean() <= RARE))
    longest = max(len(row) for row in (*drawn, *true))
    if at == len(WIDTHS) or WIDTHS[at] > longest:
        return Comparison(two_samples, None, None, math.nan, math.nan, len(drawn), len(true))
    mine, theirs = _copied([drawn, true[fitted:]], training, WIDTHS[at])
    return Comparison(
        two_samples,
        rank_test(mine, theirs),
        WIDTHS[at],
        float(mine.mean()),
        float(theirs.mean()),
        len(drawn),
        len(true),
    )


def rank_test(samples: Floats, real: Floats) -> RankTest:
    """The Mann-Whitney test by its normal limit; with ties its p is too large rather than too small."""
    ordered = np.sort(real)
    below, up_to = (np.searchsorted(ordered, samples, side=side) for side in ("left", "right"))
    auc = float((below + up_to).mean() / 2 / len(real))
    spread = math.sqrt((len(samples) + len(real) + 1) / (12 * len(samples) * len(real)))
    p = math.erfc((auc - 0.5) / spread / math.sqrt(2)) / 2
    quantile = NormalDist().inv_cdf
    return RankTest(auc, p, min(1.0, 0.5 + spread * (quantile(1 - LEVEL) + quantile(POWER))))


def _log_ratios(drawn: Rows, true: Rows, *others: Rows) -> list[Floats]:
    """log p(sequence) per token under counts of samples minus that under counts of real sequences."""
    vocab_size = 1 + max(int(row.max()) for rows in (drawn, true, *others) for row in rows)
    models = [kneser_ney([row.numpy() for row in rows], ORDER, vocab_size) for rows in (drawn, true)]
    values = []
    for rows in others:
        mine, theirs = (model.log_prob([row.numpy() for row in rows]) for model in models)
        starts = np.cumsum([0, *(len(row) for row in rows[:-1])])
        values.append(np.add.reduceat(mine - theirs, starts) / [len(row) for row in rows])
    return values


def _copied(sets: Sequence[Rows], training: Rows, width: int) -> list[Floats]:
    """The share of each sequence's windows that occur in the training data; 0 of a sequence without one."""
    known = np.unique(
        np.concatenate([hashes.ravel() for _, hashes in _windows(training, width)] or [np.empty(0, dtype=np.uint64)])
    )
    shares = [np.zeros(len(rows)) for rows in sets]
    for share, rows in zip(shares, sets, strict=True):
        for at, hashes in _windows(rows, width):
            share[at] = np.isin(hashes, known).mean(1)
    return shares


def _windows(rows: Rows, width: int) -> list[tuple[list[int], NDArray[np.uint64]]]:
    """The places of the rows of each length, and hashes [B, L - width + 1] of their windows."""
    places: dict[int, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if len(row) >= width:
            places[len(row)].append(place)
    return [
        (at, window_hashes(torch.stack([rows[i] for i in at]).numpy().astype(np.uint64), width))
        for at in places.values()
    ]


def _rows(rows: Rows) -> list[Tensor]:
    """Without padding, which may also be a token that is repeated up to the end, and without empty sequences."""
    return [row[: _end(row)] for row in (row[row >= 0].cpu() for row in rows) if len(row)]


def _end(row: Tensor) -> int:
    """The length up to the first of the equal tokens that end a row, that one included."""
    others = (row != row[-1]).nonzero()
    return int(others[-1]) + 2 if len(others) else 1


def spread(rows: list[Tensor], most: int) -> list[Tensor]:
    """At most so many of them, evenly spaced."""
    return rows if len(rows) <= most else [rows[i] for i in np.linspace(0, len(rows) - 1, most).astype(int)]
