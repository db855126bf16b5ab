"""A judgement as a figure: each sequence's perplexity against its entropy, since neither means much alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from unmask.evaluate import picture
from unmask.evaluate.judge.judge import Judgement


def draw(judgement: Judgement, path: Path) -> None:
    """Write a PNG: one dot per sequence, histograms of both at the sides, the corpus perplexity with its interval."""
    entropy, perplexity = judgement.entropies.numpy(), judgement.perplexities.numpy()
    shown = np.isfinite(perplexity)
    figure = picture.sheet(6.5, 6)
    grid = figure.add_gridspec(2, 2, width_ratios=(4, 1), height_ratios=(1, 4))
    main = figure.add_subplot(grid[1, 0])
    above = figure.add_subplot(grid[0, 0], sharex=main)
    beside = figure.add_subplot(grid[1, 1], sharey=main)
    main.scatter(entropy[shown], perplexity[shown], s=14, color="#762a83", alpha=0.6, lw=0)
    main.set(xlabel=f"entropy, nats, {judgement.entropy_of}", ylabel=f"perplexity under {Path(judgement.judge).name}")
    bins = min(40, max(5, judgement.num // 5))
    above.hist(entropy, bins=bins, color="0.65")
    if shown.any():
        main.set_yscale("log")
        low, high = perplexity[shown].min(), perplexity[shown].max()
        edges = np.geomspace(low, high, bins + 1) if high > low else np.array([low * 0.9, low * 1.1])
        beside.hist(perplexity[shown], bins=list(edges), orientation="horizontal", color="0.65")
    if np.isfinite([judgement.perplexity.low, judgement.perplexity.high]).all():
        main.axhspan(judgement.perplexity.low, judgement.perplexity.high, color="#1b7837", alpha=0.25, lw=0)
        main.axhline(judgement.perplexity.value, color="#1b7837", lw=1)
    above.tick_params(labelbottom=False)
    beside.tick_params(labelleft=False)
    hidden = judgement.num - int(shown.sum())
    figure.suptitle(
        f"perplexity {judgement.perplexity} (corpus), {judgement.mean_perplexity} (mean)\n"
        f"entropy {judgement.entropy}; {judgement.num:,} samples; {judgement.draw}"
        + (f"\n{hidden:,} without a finite perplexity are not drawn" if hidden else ""),
        fontsize="medium",
    )
    picture.write(figure, path)
