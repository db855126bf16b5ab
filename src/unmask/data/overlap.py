"""How much of some data stands in other data: a number measured on training text is no held-out number.

Wrapped text is a stream again once its frame is taken off, and is compared in windows of 32 tokens, however it was cut
into sequences. Rows are compared whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from unmask import noise as streams
from unmask.data.tokens import TokenFile

WINDOW = 32  # tokens; a power of two. Two texts that share so many in a row share them for a reason
LOOKED_FOR = 4096  # windows or rows, evenly spaced
BLOCK = 1 << 22  # tokens read at a time
TABLE = 20  # bits of a hash that decide at once about nearly every window

Hashes = NDArray[np.uint64]


def overlap(tokens: TokenFile, training: TokenFile) -> float:
    """The part of ``tokens`` that ``training`` holds too, from 0 to 1; both are of one tokenizer and layout."""
    if tokens.header.sha256 == training.header.sha256:
        return 1.0
    wanted = np.concatenate(list(_hashes(tokens)))
    wanted = wanted[np.linspace(0, len(wanted) - 1, min(len(wanted), LOOKED_FOR)).astype(np.int64)]
    ordered = np.unique(wanted)
    shift = np.uint64(64 - TABLE)
    possible = np.zeros(1 << TABLE, dtype=bool)
    possible[ordered >> shift] = True
    there: set[int] = set()
    for hashes in _hashes(training):
        candidates = hashes[possible[hashes >> shift]]
        there.update(np.intersect1d(candidates, ordered).tolist())
    return float(np.isin(wanted, np.array(sorted(there), dtype=np.uint64)).mean())


def _hashes(file: TokenFile) -> Iterator[Hashes]:
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
        if len(stream) >= WINDOW:
            yield _mixed(stream[None], WINDOW)[0]
            rest = stream[len(stream) - WINDOW + 1 :]
        else:
            rest = stream
    if file.header.layout != "rows" and len(rest) < WINDOW - 1:  # less than a window in all
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
