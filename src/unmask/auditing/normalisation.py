"""The other source of error in a coupled step: do the network's probabilities sum to one?

Logits that are normalised in low precision and cast later may not. The step of Eq. 10 draws from [(alpha_s - alpha_t)
mu, 1 - alpha_s]: with sum mu = S it unmasks about S times as often as it should, in every step, and probabilities below
the smallest number of the precision are lost. (unmask normalises in one place, in float64.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.network import inference
from unmask.protocol import Denoiser, length_of

TOLERANCE = 1e-4  # on the sum; float32 gives 1e-6 over 50,000 classes, float16 and bfloat16 more than 1e-3
RAW = 0.5  # an output whose sums are this far from 1 was not normalised


@dataclass(frozen=True)
class NormalisationReport:
    """The result for sums over classes. ``exact`` is the verdict: every sum within 1e-4 of one, or raw logits."""

    exact: bool
    verdict: str
    worst: float  # the largest |sum - 1|
    low: float  # the smallest sum: the smallest factor on the probability of unmasking
    high: float  # the largest
    lost: float  # the largest total true probability, over rows, of classes that became 0; nan if unknown
    dtype: str  # of the values


def audit_normalisation(
    subject: Callable[..., Any] | Tensor, *, vocab: int = 50_257, rows: int = 16, seed: int = 0
) -> NormalisationReport:
    """Sum, in float64, what a model or a function returns as probabilities or log-probabilities.

    subject: a function from logits [rows, vocab] to probabilities or log-probabilities; a masked model (with
    ``vocab_size`` and ``mask_id``), whose output at masked positions is used; or such an output.
    """
    lost = math.nan
    if isinstance(subject, Tensor):
        values = subject
    elif isinstance(subject, Denoiser):
        values = _output(subject, rows)
    elif callable(subject):
        logits = _logits(vocab, rows, seed)
        with torch.inference_mode():
            values = torch.as_tensor(subject(logits.clone()))
        if values.shape != logits.shape:
            raise ValueError(f"subject must return the shape of its logits, {tuple(logits.shape)}, not {values.shape}")
        gone = (values == 0) if bool((values >= 0).all()) else values == -torch.inf
        lost = float(torch.softmax(logits.double(), -1).where(gone, 0.0).sum(-1).max())
    else:
        raise ValueError(f"subject must be a function of logits, a masked model, or a tensor, got {subject!r}")
    if not values.is_floating_point() or bool(values.isnan().any()):
        raise ValueError(f"probabilities or their logarithms were expected, got {values.dtype} with NaN or of integers")
    exact = values.double()
    sums = exact.sum(-1) if bool((exact >= 0).all()) else exact.logsumexp(-1).exp()
    low, high = float(sums.min()), float(sums.max())
    worst = max(abs(low - 1), abs(high - 1))
    dtype = str(values.dtype).removeprefix("torch.")
    raw = worst > RAW and math.isnan(lost)
    verdict = _verdict(raw, worst, low, high, dtype)
    return NormalisationReport(raw or worst <= TOLERANCE, verdict, worst, low, high, lost, dtype)


def _verdict(raw: bool, worst: float, low: float, high: float, dtype: str) -> str:
    if raw:
        return "raw logits: nothing was normalised, so nothing went wrong; normalise them in float64"
    if worst > TOLERANCE:
        return f"FAULT: probabilities sum to {low:.5f} to {high:.5f}: normalised in a low precision ({dtype} came back)"
    return f"exact: every sum is within {worst:.1e} of one"


def _logits(vocab: int, rows: int, seed: int) -> Tensor:
    """Logits from flat to nearly certain, with the large values that networks produce."""
    noise = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))
    return noise * torch.linspace(0, 6, rows).unsqueeze(1) + torch.linspace(-20, 20, rows).unsqueeze(1)


def _output(model: Any, rows: int) -> Tensor:
    """The model's output on empty canvases."""
    tokens = torch.full((rows, length_of(model) or 8), model.mask_id)
    if isinstance(model, torch.nn.Module):
        tokens = tokens.to(next(iter(model.parameters())).device)
    with inference(model):
        output: Tensor = model(tokens)
    return output
