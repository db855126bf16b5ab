"""What is said of a run when it has ended: its number beside a yardstick, samples, a picture, a verdict."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

import numpy as np

from unmask.data.tokens import TokenFile
from unmask.models.ngram import kneser_ney
from unmask.sampling import sample
from unmask.text.model import Model
from unmask.training import curve

SAMPLES = 3
LARGEST = 20_000_000  # training tokens of the trigram: about a minute, and as many gigabytes as a laptop has
BY_HEART = 0.1  # nats per token above the least that is possible
ORDER = 3


def trigram(train: TokenFile, valid: TokenFile, sequences: int) -> float:
    """Nats per token of a Kneser-Ney trigram on so many evenly spaced held-out sequences, as validation takes them."""
    rows = min(len(train), max(1, LARGEST // train.length))
    fitted = kneser_ney(train.sequences(np.arange(rows)).numpy(), ORDER, train.vocab_size)
    num = min(sequences, len(valid))
    return float(-fitted.log_prob(valid.sequences(np.arange(num) * len(valid) // num).numpy()).mean())


def samples_of(model: Model, seed: int, steps: int | None) -> tuple[str, ...]:
    """A few texts of the finished model, always from the same seed."""
    made = sample(model.denoiser, num=SAMPLES, length=model.length, steps=steps, seed=seed, schedule=model.schedule)
    return tuple(model.texts(made.tokens.tolist()))


def draw_curve(metrics: Path, path: Path) -> Path | None:
    """The curve of a run, where matplotlib is there to draw it."""
    with suppress(ImportError):
        curve.draw(metrics, path)
        return path
    return None


def by_heart(nats_per_token: float, sequences: int, length: int) -> str:
    """Whether a few sequences were learned: which of the sequences it is, log(sequences) / length, nobody can know."""
    least = math.log(sequences) / length
    told = f"{nats_per_token:.3f} nats per token on its {sequences} sequences, where {least:.3f} is the least possible"
    if nats_per_token < least + BY_HEART:
        return f"learned by heart: {told}"
    return (
        f"not learned by heart: {told}. A network that cannot learn so little will not learn the data: look for an "
        "error in it, or give it more --steps or another --learning-rate"
    )
