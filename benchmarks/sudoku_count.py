"""Counts all 9 x 9 Sudoku grids by their crosses, and finds the cross with the most completions.

    python -m benchmarks.sudoku_count        a minute and a half

``recipes.corpora.sudoku.crosses`` accepts a cross c with probability N(c) / max N. Here N is computed for every cross.
It depends on four partitions of the nine values into triples: the columns P, P' of the band's later boxes, and the
lines Q, Q' of the stack's. Renaming the values turns P into the first of the 280 partitions and P' into one of five,
and those renamings that change neither connect many of the pairs (Q, Q').

The number of grids is the sum of N over all crosses. A first box has lines R and columns C, where each line has one
value of each column; there are 3! 3! boxes for such a pair. W(R, P, P') is the number of ways to fill the rest of a
band beside lines R with columns P and P', and the same function counts stacks, so the number is

    36 sum_(R, C) sum_(P, P') sum_(Q, Q') W(R, P, P') W(C, Q, Q') N(P, P', Q, Q').
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from recipes.corpora import sudoku
from recipes.corpora.sudoku import crosses

NINE = sudoku.SHAPES["sudoku9"]
Partition = frozenset[frozenset[int]]


def partitions() -> list[Partition]:
    """All 280, in the order of their rows of values; the first is {0, 1, 2}, {3, 4, 5}, {6, 7, 8}."""
    triples = [frozenset(triple) for triple in itertools.combinations(range(9), 3)]
    return [
        frozenset((a, b, c))
        for a, b, c in itertools.combinations(triples, 3)
        if len(a | b | c) == 9
    ]  # fmt: skip


EVERY = partitions()
INDEX = {partition: i for i, partition in enumerate(EVERY)}


def moved(renaming: Iterable[int]) -> list[int]:
    """Where a renaming of the values takes each partition."""
    to = list(renaming)
    return [INDEX[frozenset(frozenset(to[value] for value in triple) for triple in each)] for each in EVERY]


def flat(partition: Partition) -> list[int]:
    """Its values, triple after triple: the renaming that takes the first partition to this one."""
    return [value for triple in sorted(partition, key=min) for value in sorted(triple)]


def kept_first() -> NDArray[np.int64]:
    """What the 1,296 renamings that keep the first partition do with all: [1296, 280]."""
    orders = list(itertools.permutations(range(3)))
    return np.array(
        [
            moved(3 * triples[i] + inside[i][j] for i in range(3) for j in range(3))
            for triples in orders
            for inside in itertools.product(orders, repeat=3)
        ]
    )


def completions(of: Iterable[int]) -> int:
    """N for the partitions P, P', Q, Q'."""
    p, p_, q, q_ = (np.array(flat(EVERY[i])).reshape(3, 3) for i in of)
    cross = np.full((9, 9), sudoku.EMPTY)
    cross[:3, 3:6], cross[:3, 6:], cross[3:6, :3], cross[6:, :3] = p.T, p_.T, q, q_
    return len(crosses.completions(cross, NINE))


def ways() -> NDArray[np.int64]:
    """W(first partition, P, P'): [280, 280]."""
    found = np.zeros((280, 280), np.int64)
    for band in crosses.bands(NINE):
        boxes = []
        for box in (band[:, 3:6], band[:, 6:]):
            lines = itertools.product(*(itertools.permutations(line) for line in box.tolist()))
            columns = [INDEX[frozenset(map(frozenset, zip(*each, strict=True)))] for each in lines]
            boxes.append(np.bincount(columns, minlength=280))
        found += np.outer(*boxes)
    return found


def main() -> None:
    fixed, first_ways = kept_first(), ways()
    to = np.array([moved(flat(partition)) for partition in EVERY])  # [280, 280]: row i takes the first partition to i
    back = to.argsort(1)
    crossing = np.array([[all(len(a & b) == 1 for a in r for b in c) for c in EVERY] for r in EVERY])
    total, seen = 0, set[int]()
    print("| P' | such P' | cases | least N | most N |\n|---|---|---|---|---|")
    for second in range(280):
        if second in seen:
            continue
        alike = set(fixed[:, second].tolist())
        seen |= alike
        pairs = np.full((280, 280), 280**2)
        for renaming in fixed[fixed[:, second] == second]:
            pair = renaming[:, None] * 280 + renaming
            pairs = np.minimum(pairs, np.minimum(pair, pair.T))
        cases, case = np.unique(pairs, return_inverse=True)
        number = [completions((0, second, *divmod(int(pair), 280))) for pair in cases]
        print(f"| {second} | {len(alike)} | {len(cases):,} | {min(number):,} | {max(number):,} |", flush=True)
        lines = first_ways[back[:, 0], back[:, second]]  # W(R, P, P') for every R
        stacks = sum(weight * first_ways[np.ix_(back[c], back[c])] for c, weight in enumerate(lines @ crossing))
        weights = np.bincount(case.ravel(), np.asarray(stacks).ravel().astype(float))
        exact = [int(weight) for weight in weights]
        assert sum(exact) == int(np.sum(stacks)), "more than a float64 can hold"
        total += 280 * len(alike) * sum(a * b for a, b in zip(exact, number, strict=True))
    print(f"\n{36 * total:,} grids; known: {sudoku.count(NINE):,}")


if __name__ == "__main__":
    main()
