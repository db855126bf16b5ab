"""4 x 4 Sudoku by the optimal network, exactly: what every decoding order does to validity and to the law.

    python -m benchmarks.sudoku [--output docs/results/sudoku4.json]

The 288 grids are the data, so the optimal network (Prop. 3.2) is known, and there is no error but the order's. Nothing
is sampled. Where the order looks at the visible cells alone, a grid x is reached along one path, and its probability is
the product of mu(x_l | visible) along it. Where it looks at the tokens that were drawn (low confidence), all 2^16 sets
of visible cells are passed through, level by level. The probabilities of the 288 grids add up to the validity; what
is missing are the grids that are none.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from recipes.corpora import sudoku
from recipes.corpora.listed import ListedOracle
from torch import Tensor

from unmask.samplers.decoding import gap, negative_entropy
from unmask.samplers.ranked import Look, Score, within

FOUR = sudoku.Shape(2, 2)
CELLS = FOUR.cells
Choose = Callable[[Tensor, Tensor], Tensor]
"""(log_mu [B, L, V], masked [B, L]) -> which masked cells are drawn now, bool [B, L]."""


def oracle() -> ListedOracle:
    return ListedOracle(torch.from_numpy(sudoku.everything(FOUR)).long(), FOUR.size)


def ranked(score: Score, count: int) -> Choose:
    """The ``count`` masked cells that score highest, the first among equals, as ``Ranked`` takes them."""

    def choose(log_mu: Tensor, masked: Tensor) -> Tensor:
        rank = _scores(score, log_mu, masked).argsort(dim=1, descending=True, stable=True).argsort(1)
        return masked & (rank < count)

    return choose


def bounded(gamma: float) -> Choose:
    """Entropy-bounded: as many of the lowest entropies as keep the bound."""

    def choose(log_mu: Tensor, masked: Tensor) -> Tensor:
        score = _scores(negative_entropy, log_mu, masked)
        rank = score.argsort(dim=1, descending=True, stable=True).argsort(1)
        return masked & (rank < within(gamma, -score).unsqueeze(1))

    return choose


def fixed(order: Tensor, count: int) -> Choose:
    """A given order [L] of the cells, ``count`` at a time."""
    place = order.argsort().double()

    def choose(log_mu: Tensor, masked: Tensor) -> Tensor:
        rank = torch.where(masked, place, torch.inf).argsort(dim=1, stable=True).argsort(1)
        return masked & (rank < count)

    return choose


def _scores(score: Score, log_mu: Tensor, masked: Tensor) -> Tensor:
    made = torch.full(masked.shape, -torch.inf, dtype=torch.float64)
    made[masked] = score(Look(log_mu[masked], torch.zeros(int(masked.sum()), dtype=torch.int64)))
    return made


def by_path(model: ListedOracle, choose: Choose) -> tuple[Tensor, Tensor]:
    """The probability of each grid, and the calls on its path, where the choice depends on what is visible alone."""
    grids = model.sequences
    tokens = torch.full_like(grids, model.mask_id)
    log_p, calls = torch.zeros(len(grids), dtype=torch.float64), torch.zeros(len(grids))
    while bool((masked := tokens == model.mask_id).any()):
        log_mu = model(tokens)
        now = choose(log_mu, masked)
        said = log_mu.gather(2, grids.unsqueeze(-1)).squeeze(-1)
        log_p += torch.where(now, said, 0.0).sum(1)
        calls += now.any(1)
        tokens = torch.where(now, grids, tokens)
    return log_p.exp(), calls


def by_subsets(model: ListedOracle, grid: Tensor) -> float:
    """The probability of one grid where all masked cells are drawn and the likeliest of the draws stays.

    The leftmost one of several, which is the authors' rule (``decoding.leftmost``).
    """
    reached = torch.zeros(2**CELLS, dtype=torch.float64)
    reached[0] = 1.0
    bits = 1 << torch.arange(CELLS)
    sizes = ((torch.arange(2**CELLS).unsqueeze(1) & bits) > 0).sum(1)
    earlier = torch.arange(CELLS) < torch.arange(CELLS).unsqueeze(1)  # [l, l']: l' comes before l
    for size in range(CELLS):
        for subsets in ((sizes == size) & (reached > 0)).nonzero().squeeze(1).split(1024):
            visible = (subsets.unsqueeze(1) & bits) > 0
            mu = model(torch.where(visible, grid, model.mask_id)).exp()
            own = mu.gather(2, grid.expand(len(mu), -1).unsqueeze(-1)).squeeze(-1)  # of the token that x has
            theirs, mine = mu[:, None], own[:, :, None, None]
            below, upto = (torch.where(seen, theirs, 0.0).sum(-1) for seen in (theirs < mine, theirs <= mine))
            beaten = torch.where(earlier, below, upto)  # P(cell l' does not win over cell l)
            beaten = torch.where(visible[:, None] | torch.eye(CELLS, dtype=torch.bool), 1.0, beaten).prod(-1)
            step = torch.where(visible, 0.0, own * beaten) * reached[subsets].unsqueeze(1)
            reached.index_add_(0, (subsets.unsqueeze(1) | bits).flatten(), step.flatten())
    return float(reached[-1])


def described(name: str, p: Tensor, calls: Tensor | float) -> dict[str, Any]:
    """Validity, distance of the law from the uniform one (invalid grids included), and mean calls on valid paths."""
    valid = float(p.sum())
    distance = 0.5 * float((p - 1 / len(p)).abs().sum()) + 0.5 * (1 - valid)
    mean = float((p * calls).sum()) / valid
    return {"order": name, "valid": valid, "total_variation": distance, "calls": mean}


def results() -> list[dict[str, Any]]:
    model = oracle()
    shuffled = torch.randperm(CELLS, generator=torch.Generator().manual_seed(0))
    found = []
    for count in (1, 2, 4, 8, 16):
        orders: dict[str, Choose] = {
            "left to right": fixed(torch.arange(CELLS), count),
            "one random order": fixed(shuffled, count),
            "margin": ranked(gap, count),
            "entropy": ranked(negative_entropy, count),
        }
        found += [described(f"{name}, {count} a call", *by_path(model, choose)) for name, choose in orders.items()]
    for gamma in (0.0, 0.1, 0.5, 1.0):
        found.append(described(f"entropy-bounded, gamma {gamma}", *by_path(model, bounded(gamma))))
    # Renaming the values changes nothing in this order, so reduced grids stand for all.
    reduced = torch.from_numpy(sudoku.reduced(FOUR)).long()
    p = torch.tensor([by_subsets(model, grid) for grid in reduced], dtype=torch.float64)
    found.append(described("low confidence, 1 a call", p.repeat(24), float(CELLS)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    found = results()
    print("| order | valid | total variation | calls |\n|---|---|---|---|")
    for row in found:
        print(f"| {row['order']} | {row['valid']:.6f} | {row['total_variation']:.6f} | {row['calls']:.2f} |")
    if chosen.output is not None:
        chosen.output.write_text(json.dumps({"grids": 288, "orders": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
