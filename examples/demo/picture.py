"""The demo's figure: digits that the model made, and the effect of float32 on one coupled step (Prop. 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask import theory

VOCABULARY = 50_257
Ids = Sequence[int]
COLOURS = ("#1b7837", "#e08214", "#762a83")


def draw(path: Path, completed: Sequence[Ids], sampled: Sequence[Ids], given: Ids) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(12, 3.8))
    pictures, left, right = figure.subplots(1, 3, width_ratios=(1.1, 1, 1))
    _digits(pictures, completed, sampled, given)
    _curves(left, right)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _digits(axes: Any, completed: Sequence[Ids], sampled: Sequence[Ids], given: Ids) -> None:
    """Three rows of four: the given half and its completions, then samples."""
    tiles = [given, *completed[:3], *sampled[:8]]
    canvas = np.full((3 * 9 + 1, 4 * 9 + 1, 3), 255, dtype=np.uint8)
    for i, ids in enumerate(tiles):
        tile = np.repeat((255 - np.asarray(ids).reshape(8, 8) * 15)[..., None], 3, axis=2)
        if i == 0:
            tile[4:] = (214, 228, 240)  # still masked
        row, column = divmod(i, 4)
        canvas[row * 9 + 1 : row * 9 + 9, column * 9 + 1 : column * 9 + 9] = tile
    axes.imshow(canvas, interpolation="nearest")
    axes.set_axis_off()
    axes.set_title("half a digit, completed; and eight new ones", fontsize=11)


def _curves(left: Any, right: Any) -> None:
    steps = np.unique(np.logspace(1.5, 4.7, 25).astype(int))
    rank = np.arange(1, VOCABULARY + 1)
    positions = {
        "sure (one token at 0.9)": np.r_[0.9, np.full(VOCABULARY - 1, 0.1 / (VOCABULARY - 1))],
        "typical of text (Zipf)": 1 / rank / (1 / rank).sum(),
        "unsure (flat)": np.full(VOCABULARY, 1 / VOCABULARY),
    }
    maximum = theory.maximum_gumbel("float32")
    for (name, mu), colour in zip(positions.items(), COLOURS, strict=True):
        ratio = [
            float(theory.unmasking_probability(mu, 0.5, 0.5 - 0.5 / n, maximum) / ((0.5 / n) / (0.5 + 0.5 / n)))
            for n in steps
        ]
        left.semilogx(steps, ratio, label=name, color=colour, lw=2)
    left.axhline(1, color="0.6", lw=1, ls="--", label="exact: all alike")
    left.set(xlabel="sampling steps N", ylabel="chance to be unmasked / exact", ylim=(0, 1.1))
    left.set_title("float32 unmasks sure positions first", fontsize=11)
    left.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.03))
    zipf = positions["typical of text (Zipf)"]
    temperature = []
    for n in steps:
        leaves = (0.5 / n) / (0.5 + 0.5 / n)  # from alpha = 0.5 - 0.5/n to 0.5
        shifted = theory.shifted_probabilities(np.r_[zipf * leaves, 1 - leaves], maximum)[:-1]
        temperature.append(float(theory.effective_temperature(zipf, shifted / shifted.sum())))
    right.semilogx(steps, temperature, color=COLOURS[1], lw=2, label="coupled step in float32")
    right.axhline(1, color="0.6", lw=1, ls="--", label="exact")
    right.set(xlabel="sampling steps N", ylabel="effective temperature", ylim=(0.5, 1.05))
    right.set_title("and draws its tokens at a lower temperature", fontsize=11)
    right.legend(frameon=False, fontsize=8)
