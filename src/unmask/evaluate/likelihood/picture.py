"""An evaluation as a figure: the profile, and the distribution over sequences."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from unmask.evaluate import picture
from unmask.evaluate.likelihood.evaluation import Evaluation


def draw(evaluation: Evaluation, path: Path) -> None:
    """Write a PNG: the profile, whose mean is the result, with a band of two standard errors, and a histogram."""
    bits = 1 / math.log(2)
    figure = picture.sheet(9, 3.6)
    left, right = figure.subplots(1, 2)
    if evaluation.profile is not None:
        nats, errors = np.array(evaluation.profile.nats) * bits, np.array(evaluation.profile.errors) * bits
        middle = (np.arange(len(nats)) + 0.5) / len(nats)
        left.fill_between(middle, nats - 2 * errors, nats + 2 * errors, color="#762a83", alpha=0.25, lw=0)
        left.plot(middle, nats, color="#762a83", lw=2)
        left.axhline(evaluation.bound.bits_per_token, color="0.5", lw=1, ls="--")
        left.set(xlabel=evaluation.profile.over, ylabel="bits per token", xlim=(0, 1), ylim=(0, None))
        left.set_title("the mean of the curve is the result", fontsize="medium")
    else:
        left.set_axis_off()
    each = (evaluation.bound.nats / evaluation.bound.tokens).numpy() * bits
    right.hist(each[np.isfinite(each)], bins=min(40, max(5, len(each) // 10)), color="0.65")
    right.axvline(evaluation.bound.bits_per_token, color="#762a83", lw=2)
    value, _, over = evaluation.bound.units()["bits per token"]
    right.set(xlabel="bits per token of a sequence", ylabel="sequences")
    right.set_title(f"{value:.3f} ± {over:.3f} bits per token: {evaluation.how}", fontsize="medium")
    picture.write(figure, path)
