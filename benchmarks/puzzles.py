"""Puzzles by a trained network: what each decoding order solves, beside the truth.

    python -m benchmarks.puzzles sudoku6 sudoku [--number 100] [--output docs/results/sudoku6.json]
    python -m benchmarks.puzzles sudoku9 sudoku9 [--output docs/results/sudoku9.json]
    python -m benchmarks.puzzles nae-sat MODEL --latents 12 --observations 60 [--output docs/results/nae-sat.json]
    python -m benchmarks.puzzles nae-sat truth --latents 12 --observations 60       the optimal network, by listing

Sudoku: puzzles with one solution, for several numbers of clues, made from grids that are drawn independently of the
training part. A puzzle is solved if every cell is right. The posterior of a puzzle with one solution is certain, so an
exact network solves all of them in any order, one cell per call. NAE-SAT: whole sequences, and latents for given
observations of sequences that were drawn; *right* is the part of the observations that are what the latents say, which
is 1 by the truth. Intervals are Wilson's, at 0.95.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recipes.corpora import sudoku
from recipes.corpora.listed import ListedOracle
from recipes.corpora.nae_sat import NaeSat
from scipy import stats
from torch import Tensor

import unmask
from unmask.loading import load
from unmask.names import decoding

CLUES = {"sudoku6": (10, 14, 18), "sudoku9": (26, 32, 40)}
BATCH = 64
FEW = 8  # calls of the orders that unmask several cells at once


def orders(several: bool = True) -> dict[str, dict[str, Any]]:
    """Options of ``unmask.sample`` by the order's name: one token per call, and if ``several`` fewer calls too."""
    ranked = ("llada", "margin", "entropy")
    each: dict[str, dict[str, Any]] = {
        "random": {"plan": unmask.plan.first_hitting},
        "left to right": {"plan": unmask.plan.left_to_right},
    }
    each |= {name: decoding(name) for name in ranked}
    if not several:
        return each
    each |= {"random, several tokens ahead": each["random"] | {"ahead": 8}}
    each |= {"entropy-bounded, gamma 0.1": decoding("entropy-bounded", gamma=0.1)}
    each |= {f"random, {FEW} calls": {"plan": unmask.plan.parallel, "steps": FEW}}
    each |= {f"{name}, {FEW} calls": decoding(name) | {"steps": FEW} for name in ranked}
    return each


@cache
def puzzles(corpus: str, clues: int, number: int) -> tuple[Tensor, Tensor]:
    """Canvases with -1 in the empty cells, and their only solutions, [number, n * n] each."""
    shape, found = sudoku.SHAPES[corpus], []
    for i in range(20 * number):
        [grid] = sudoku.draw(shape, 1, first=i, part="puzzles")
        made = sudoku.puzzle(grid, clues, shape, seed=i)
        if made is not None:
            found.append((made, grid))
        if len(found) == number:
            canvas, solution = (torch.from_numpy(np.stack(part)).long() for part in zip(*found, strict=True))
            return canvas, solution
    raise ValueError(f"clues={clues}: of {20 * number} grids only {len(found)} have a puzzle with so few")


def solved(model: Any, corpus: str, clues: int, number: int, options: dict[str, Any]) -> dict[str, Any]:
    canvas, solution = puzzles(corpus, clues, number)
    holes = torch.where(canvas < 0, model.mask_id, canvas)
    made = unmask.sample(model, canvas=holes, seed=0, batch=BATCH, **options)
    right = (made.tokens == solution).all(1)
    return {"clues": clues, **counted(int(right.sum()), number), "calls": float(made.nfe.double().mean())}


def counted(successes: int, number: int) -> dict[str, Any]:
    interval = stats.binomtest(successes, number).proportion_ci(method="wilson")
    return {"number": number, "part": successes / number, "interval": [interval.low, interval.high]}


def of_sudoku(model: Any, corpus: str, number: int) -> Iterator[dict[str, Any]]:
    for clues in CLUES[corpus]:
        for name, options in orders().items():
            for temperature in (1.0, 0.0):
                if temperature == 0 and "ahead" in options:
                    continue
                found = solved(model, corpus, clues, number, options | {"temperature": temperature})
                yield {"order": name, "temperature": temperature, **found}


def of_nae_sat(model: Any, law: NaeSat, number: int) -> Iterator[dict[str, Any]]:
    nothing = torch.full((number, law.length), model.mask_id)
    observed = torch.from_numpy(law.draw(number, part="puzzles")).long()
    observed[:, : law.latents] = model.mask_id
    for given, canvas in (("nothing", nothing), ("the observations", observed)):
        # Several tokens or guesses per call can contradict each other, and the truth says nothing after that.
        for name, options in orders(several=not isinstance(model, ListedOracle)).items():
            made = unmask.sample(model, canvas=canvas, seed=0, batch=BATCH, **options)
            right = law.right(made.tokens.numpy())
            each = right.mean(1)
            yield {
                "given": given,
                "order": name,
                "right": float(each.mean()),
                "error": float(each.std(ddof=1)) / number**0.5,
                "all_right": counted(int(right.all(1).sum()), number),
                "calls": float(made.nfe.double().mean()),
            }


def truth(law: NaeSat) -> ListedOracle:
    """The optimal network: the posterior of the law itself."""
    return ListedOracle(torch.from_numpy(law.everything()).long(), 2)


def shown(row: dict[str, Any]) -> str:
    if "clues" in row:
        low, high = row["interval"]
        first = f"| {row['clues']} | {row['order']} | {row['temperature']:g} "
        return f"{first}| {row['part']:.3f} [{low:.3f}, {high:.3f}] | {row['calls']:.1f} |"
    whole = row["all_right"]
    text = f"| {row['given']} | {row['order']} | {row['right']:.4f} ± {row['error']:.2g} "
    return (
        text + f"| {whole['part']:.3f} [{whole['interval'][0]:.3f}, {whole['interval'][1]:.3f}] | {row['calls']:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("puzzle", choices=(*CLUES, "nae-sat"))
    parser.add_argument("model")
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--latents", type=int, default=12)
    parser.add_argument("--observations", type=int, default=60)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    law = None if chosen.puzzle in CLUES else NaeSat(chosen.latents, chosen.observations)
    if law is None and chosen.model == "truth":
        parser.error("truth is for nae-sat: the grids of these Sudokus cannot be listed")
    model: Any = truth(law) if law is not None and chosen.model == "truth" else load(chosen.model).denoiser
    shape = sudoku.SHAPES[chosen.puzzle] if law is None else None
    wanted = (shape.cells, shape.size) if shape is not None else (law.length, 2)
    if (model.length, model.vocab_size) != wanted:
        has = f"{model.length} tokens and {model.vocab_size} ids"
        parser.error(f"{chosen.model} has {has}, the puzzle {wanted[0]} and {wanted[1]}")
    columns = ("clues", "order", "temperature", "solved") if law is None else ("given", "order", "right", "all right")
    print(f"| {' | '.join(columns)} | calls |\n|{'---|' * 5}")
    rows = []
    for row in of_sudoku(model, chosen.puzzle, chosen.number) if law is None else of_nae_sat(model, law, chosen.number):
        rows.append(row)
        print(shown(row), flush=True)
    if chosen.output is not None:
        about = {} if law is None else {"latents": chosen.latents, "observations": chosen.observations}
        found = {"puzzle": chosen.puzzle, "model": chosen.model, **about, "orders": rows}
        chosen.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
