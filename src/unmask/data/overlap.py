"""How much of some data stands in other data: a number measured on training text is no held-out number.

Wrapped text is a stream again once its frame is taken off, and is compared in windows of about a hundred characters,
however it was cut into sequences. A window that the training text has once or twice is a copy. One that it has more
often is boilerplate (a licence, a table's head), which any other text of that kind has too. Rows are compared whole,
and each that is there is a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask import noise as streams
from unmask.data.tokens import TokenFile

CHARACTERS = 100  # of a window. Two texts that share so many in a row share them for a reason
COPIES = 2  # how often a copied window is in the training text at most
LOOKED_FOR = 4096  # windows or rows, evenly spaced
BLOCK = 1 << 22  # tokens read at a time
TABLE = 20  # bits of a hash that decide at once about nearly every window

Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Overlap:
    """Parts of some data, from 0 to 1."""

    copied: float  # from the training data
    found: float  # there, boilerplate too


def overlap(tokens: TokenFile, training: TokenFile) -> Overlap:
    """What of ``tokens`` is in ``training`` too; both are of one tokenizer and layout."""
    if tokens.header.sha256 == training.header.sha256:
        return Overlap(1.0, 1.0)
    window = 1 << max(0, math.ceil(math.log2(CHARACTERS / max(training.characters_per_token, 1e-9))))
    wanted = np.concatenate(list(_hashes(tokens, window)))
    wanted = wanted[np.linspace(0, len(wanted) - 1, min(len(wanted), LOOKED_FOR)).astype(np.int64)]
    ordered = np.unique(wanted)
    times = np.zeros(len(ordered), dtype=np.int64)  # each is in the training data
    shift = np.uint64(64 - TABLE)
    possible = np.zeros(1 << TABLE, dtype=bool)
    possible[ordered >> shift] = True
    for hashes in _hashes(training, window):
        candidates = hashes[possible[hashes >> shift]]
        places = np.minimum(np.searchsorted(ordered, candidates), len(ordered) - 1)
        np.add.at(times, places[ordered[places] == candidates], 1)
    of_wanted = times[np.searchsorted(ordered, wanted)]
    found = of_wanted > 0
    copied = found if tokens.header.layout == "rows" else found & (of_wanted <= COPIES)
    return Overlap(float(copied.mean()), float(found.mean()))


def _hashes(file: TokenFile, window: int) -> Iterator[Hashes]:
    """Hashes of all rows, or of all windows of the stream, block by block."""
    rows = max(1, BLOCK // file.length)
    rest = np.empty(0, dtype=np.uint64)
    framed = file.tokenizer.eos_id is not None
    for start in range(0, len(file), rows):
        block = file.sequences(np.arange(start, min(start + rows, len(file)))).numpy().astype(np.uint64)
        if file.header.layout == "rows":
            yield _mixed(block, file.length)[:, 0]
            continue
        stream = np.concatenate([rest, (block[:, 1:-1] if framed else block).reshape(-1)])
        if len(stream) >= window:
            yield _mixed(stream[None], window)[0]
            rest = stream[len(stream) - window + 1 :]
        else:
            rest = stream
    if file.header.layout != "rows" and len(rest) < window - 1:  # less than a window in all
        yield _mixed(rest[None], len(rest))[0]


def _mixed(tokens: Hashes, width: int) -> Hashes:
    """Hashes [B, L - width + 1] of the windows of so many tokens: polynomials modulo 2^64, by doubling."""
    factor = np.uint64(streams.word("overlap") | 1)
    with np.errstate(over="ignore"):
        power = (tokens + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)  # of windows of 1, 2, 4, ... tokens
        power ^= power >> np.uint64(29)
        made: Hashes | None = None
        size = 1  # of a window in ``power``
        done = 0  # of a window in ``made``
        while width:
            if width & 1:
                if made is None:
                    made = power
                else:  # the windows of ``done`` tokens, each followed by one of ``size``
                    later = power[:, done:]
                    made = made[:, : later.shape[1]] * factor + later
                done += size
            width >>= 1
            if width:
                longer = power[:, size:]
                power = power[:, : longer.shape[1]] * (factor + np.uint64(2 * size)) + longer
                power ^= power >> np.uint64(31)
                size *= 2
    assert made is not None
    return made
