"""The report at the end of a run: its bound next to a baseline's, samples, a figure, a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.data.tokens import TokenFile
from unmask.model import Model
from unmask.network import device_of, logits_at
from unmask.networks.ngram import kneser_ney
from unmask.processes import process_of
from unmask.sampling import sample
from unmask.training import curve

SAMPLES, PREVIEW_STEPS = 3, 64
LARGEST = 20_000_000  # training tokens of the trigram: about a minute, and as many gigabytes as a laptop has
BY_HEART = 0.1  # fraction that may be left of the way from the tokens' entropy to the smallest possible loss
FALLING = 0.1  # fraction of the rest by which the loss must fall between two validations for a run to be improving
ORDER = 3


def trigram(train: TokenFile, valid: TokenFile, sequences: int) -> float:
    """Nats per token of a Kneser-Ney trigram on this many evenly spaced held-out sequences, as in validation."""
    rows = min(len(train), max(1, LARGEST // train.length))
    fitted = kneser_ney(train.sequences(np.arange(rows)).numpy(), ORDER, train.vocab_size)
    num = min(sequences, len(valid))
    return float(-fitted.log_prob(valid.sequences(np.arange(num) * len(valid) // num).numpy()).mean())


def samples_of(
    model: Model, seed: int, *, num: int = SAMPLES, stop: Callable[[], object] = lambda: False
) -> tuple[str, ...]:
    """A few texts of the model, always from the same seed; none if ``stop`` says so after a network call.

    One token per call where the process takes no steps or goes by blocks. Otherwise PREVIEW_STEPS.
    """
    network, length = model.denoiser, model.length
    process = process_of(network)
    in_steps = "steps" not in process.refused and not process.continues
    steps = None if length is None or not in_steps else min(length, PREVIEW_STEPS)

    def check(step: object) -> None:
        if stop():
            raise _Stopped

    try:
        samples = sample(
            network, num=num, length=length, steps=steps, seed=seed, schedule=model.schedule, callback=check
        )
    except _Stopped:
        return ()
    return tuple(model.rows.texts(samples.tokens.tolist()))


class Plain:
    """A denoiser that is called directly, without ``for_sampling``."""

    def __init__(self, network: Any) -> None:
        self.network, self.vocab_size, self.mask_id = network, network.vocab_size, network.mask_id
        self.device = device_of(network)
        self.process = process_of(network)

    def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        return logits_at(self.network, tokens, time, rows)


class _Stopped(Exception):
    """Ends a preview."""


def draw_curve(metrics: Path, path: Path) -> Path | None:
    """The curve of a run, if matplotlib is installed."""
    with suppress(ImportError):
        curve.draw(metrics, path)
        return path
    return None


def by_heart(tokens: TokenFile, validations: Sequence[float]) -> str:
    """Whether a few sequences were memorised, from the bounds of the run's validations in nats per token.

    The scale is that of the data: counting tokens gives their entropy, and which of the sequences it is cannot be
    known: log(sequences) / length. Memorised: at most BY_HEART of that way is left. Not memorised: more is left, and
    the last validation was hardly better than the one before. Otherwise the run was only too short.
    """
    rows = tokens.sequences(range(len(tokens))).numpy()
    different = len(np.unique(rows, axis=0))
    least = math.log(different) / tokens.length
    count = np.unique(rows, return_counts=True)[1] / rows.size
    entropy = max(float(-(count * np.log(count)).sum()), least)
    left = [max(0.0, nats - least) / max(entropy - least, 1e-9) for nats in validations]
    evidence = (
        f"{validations[-1]:.3f} nats per token on its {len(tokens)} sequences, where counting tokens gives "
        f"{entropy:.3f} and {least:.3f} is the least possible"
    )
    if left[-1] <= BY_HEART:
        return f"learned by heart: {evidence}"
    if len(left) < 2 or left[-1] < (1 - FALLING) * left[-2]:
        return f"not yet learned by heart, but still falling: {evidence}. Give it more --steps"
    return (
        f"not learned by heart: {evidence}, and it has stopped falling. A network that cannot learn so little will not "
        "learn the data: look for an error in it, or try another --learning-rate"
    )
