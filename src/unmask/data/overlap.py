"""The overlap of two data sets: a number measured on training text is not a held-out number.

Wrapped text without its frame is a stream again, and is compared in windows of about a hundred characters, however it
was cut into sequences. A window that occurs once or twice in the training text is a copy. One that occurs more often is
boilerplate (a licence, a table header), which any other text of that kind contains too. Rows are compared whole, and
each match is a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask import noise as streams
from unmask.data.tokens import TokenFile

CHARACTERS = 100  # per window. Two texts rarely share this many in a row by chance
COPIES = 2  # the largest number of occurrences in the training text of a copied window
LOOKED_FOR = 4096  # windows or rows, evenly spaced
BLOCK = 1 << 22  # tokens read at a time
TABLE = 20  # bits of a hash that decide quickly about nearly every window

Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Overlap:
    """Fractions of the data, from 0 to 1."""

    copied: float  # copies from the training data
    found: float  # in the training data, including boilerplate


def overlap(tokens: TokenFile, training: TokenFile) -> Overlap:
    """The fraction of ``tokens`` that is also in ``training``; both have one tokenizer and layout."""
    if tokens.header.sha256 == training.header.sha256:
        return Overlap(1.0, 1.0)
    window = 1 << max(0, math.ceil(math.log2(CHARACTERS / max(training.characters_per_token, 1e-9))))
    wanted = np.concatenate(list(_hashes(tokens, window)))
    wanted = wanted[np.linspace(0, len(wanted) - 1, min(len(wanted), LOOKED_FOR)).astype(np.int64)]
    ordered = np.unique(wanted)
    times = np.zeros(len(ordered), dtype=np.int64)  # occurrences of each in the training data
    shift = np.uint64(64 - TABLE)
    possible = np.zeros(1 << TABLE, dtype=bool)
    possible[ordered >> shift] = True
    for hashes in _hashes(training, window):
        candidates = hashes[possible[hashes >> shift]]
        places = np.minimum(np.searchsorted(ordered, candidates), len(ordered) - 1)
        np.add.at(times, places[ordered[places] == candidates], 1)
    of_wanted = times[np.searchsorted(ordered, wanted)]
    known = of_wanted > 0
    copied = known if tokens.header.layout == "rows" else known & (of_wanted <= COPIES)
    return Overlap(float(copied.mean()), float(known.mean()))


def _hashes(file: TokenFile, window: int) -> Iterator[Hashes]:
    """Hashes of all rows, or of all windows of the stream, block by block."""
    rows = max(1, BLOCK // file.length)
    rest = np.empty(0, dtype=np.uint64)
    framed = file.tokenizer.eos_id is not None
    for start in range(0, len(file), rows):
        block = file.sequences(np.arange(start, min(start + rows, len(file)))).numpy().astype(np.uint64)
        if file.header.layout == "rows":
            yield window_hashes(block, file.length)[:, 0]
            continue
        stream = np.concatenate([rest, (block[:, 1:-1] if framed else block).reshape(-1)])
        if len(stream) >= window:
            yield window_hashes(stream[None], window)[0]
            rest = stream[len(stream) - window + 1 :]
        else:
            rest = stream
    if file.header.layout != "rows" and len(rest) < window - 1:  # less than a window in all
        yield window_hashes(rest[None], len(rest))[0]


def window_hashes(tokens: Hashes, width: int) -> Hashes:
    """Hashes [B, L - width + 1] of the windows of this many tokens: polynomials modulo 2^64, by doubling."""
    factor = np.uint64(streams.word("overlap") | 1)
    with np.errstate(over="ignore"):
        power = (tokens + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)  # for windows of 1, 2, 4, ... tokens
        power ^= power >> np.uint64(29)
        mixed: Hashes | None = None
        size = 1  # tokens per window in ``power``
        done = 0  # tokens per window in ``made``
        while width:
            if width & 1:
                if mixed is None:
                    mixed = power
                else:  # the windows of ``done`` tokens, each followed by one of ``size``
                    later = power[:, done:]
                    mixed = mixed[:, : later.shape[1]] * factor + later
                done += size
            width >>= 1
            if width:
                longer = power[:, size:]
                power = power[:, : longer.shape[1]] * (factor + np.uint64(2 * size)) + longer
                power ^= power >> np.uint64(31)
                size *= 2
    assert mixed is not None
    return mixed
