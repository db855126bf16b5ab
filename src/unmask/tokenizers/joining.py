"""SentencePiece's BPE: of all neighbours whose union is a piece, the one with the best rank is merged first."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import pairwise


def joined(symbols: Sequence[str | None], rank: Mapping[str, float]) -> list[tuple[int, int]]:
    """Which runs of symbols become one piece: (start, stop) of each, in order. None, a bare byte, is never merged.

    rank: of each piece, the lowest first; among equals the leftmost is merged first.
    """
    texts = list(symbols)
    after = [*range(1, len(texts)), -1]
    before = list(range(-1, len(texts) - 1))
    gone = [False] * len(texts)
    waiting: list[tuple[float, int, int, str]] = []

    def offer(left: int, right: int) -> None:
        a, b = (None if i < 0 else texts[i] for i in (left, right))
        if a is not None and b is not None and (place := rank.get(a + b)) is not None:
            heapq.heappush(waiting, (place, left, right, a + b))

    for left in range(len(texts) - 1):
        offer(left, left + 1)
    while waiting:
        _, left, right, union = heapq.heappop(waiting)
        if gone[left] or gone[right] or after[left] != right:
            continue
        # A candidate is stale if one of its halves has grown since.
        if (texts[left] or "") + (texts[right] or "") != union:
            continue
        texts[left] = union
        gone[right], after[left] = True, after[right]
        if after[left] >= 0:
            before[after[left]] = left
        offer(before[left], left)
        offer(left, after[left])
    starts = [i for i, left_out in enumerate(gone) if not left_out]
    return list(pairwise([*starts, len(texts)]))
