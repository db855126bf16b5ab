"""SEDD's scores and the mean parameterisation are two readings of one output."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import unmask
from unmask.networks.ddit import DDiT, preset
from unmask.schedule import LogLinear

V, B, L = 8, 3, 5


def log_score(f: Tensor, tokens: Tensor, alpha: Tensor, mask_id: int) -> Tensor:
    """SEDD's reading of the outputs f: log s = f - log(e^sigma - 1) - log D, and 0 at the input token."""
    sigma = -alpha.log().view(*alpha.shape, *[1] * (f.ndim - alpha.ndim))
    score = f - torch.log(torch.expm1(sigma)) - math.log(V - (mask_id < V))
    return score.masked_fill(torch.arange(V) == tokens.unsqueeze(-1), 0.0)


def mean_from_score(score: Tensor, mask_id: int) -> Tensor:
    """mu = s / sum s over the data tokens, from log-scores [..., V]: s = alpha/(1 - alpha) mu, whatever alpha is."""
    score = score.double()
    if mask_id < V:
        score[..., mask_id] = -torch.inf
    return torch.softmax(score, -1)


@pytest.mark.parametrize("mask_id", [V - 1, 2, V])
def test_score_is_the_odds_times_the_mean(mask_id: int) -> None:
    """s = alpha/(1 - alpha) mu at masked positions (Sec. 2), for outputs that are normalised: f = log mu + log D."""
    torch.manual_seed(0)
    data = [i for i in range(V) if i != mask_id]
    mu = torch.zeros(B, L, V, dtype=torch.float64)
    mu[..., data] = torch.softmax(torch.randn(B, L, len(data), dtype=torch.float64), -1)
    tokens = torch.full((B, L), mask_id)
    alpha = torch.tensor([0.001, 0.5, 0.999], dtype=torch.float64)
    score = log_score(mu.log() + math.log(len(data)), tokens, alpha, mask_id)
    odds = (alpha / (1 - alpha))[:, None, None]
    torch.testing.assert_close(score.exp()[..., data], (odds * mu)[..., data], rtol=1e-12, atol=0)
    if mask_id < V:
        assert (score[..., mask_id] == 0).all()
    torch.testing.assert_close(mean_from_score(score, mask_id), mu, rtol=1e-12, atol=1e-15)


def test_unnormalised_outputs_have_the_softmax_as_their_mean_whatever_alpha_is() -> None:
    torch.manual_seed(1)
    logits, tokens = 3 * torch.randn(B, L, V), torch.full((B, L), 5)
    suppressed = logits.clone()
    suppressed[..., 5] = -torch.inf
    expected = torch.softmax(suppressed.double(), -1)
    for alpha in (torch.tensor([0.1, 0.2, 0.3]), torch.full((B, L), 0.9)):
        for f in (logits, suppressed):
            mu = mean_from_score(log_score(f, tokens, alpha, 5), 5)
            torch.testing.assert_close(mu, expected, rtol=1e-5, atol=1e-6)


def test_the_ddit_trained_by_score_entropy_is_sampled_through_its_mean() -> None:
    """Sequences of one repeated token; after 150 steps of score entropy the plain call fills a canvas by its hint."""
    torch.manual_seed(0)
    config = preset("tiny", V, L, mask_id=V - 1, conditioning="time", dropout=0.0)
    model, generator = DDiT(config), torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        x0 = torch.randint(V - 1, (32, 1), generator=generator).expand(-1, L)
        t = torch.rand(32, dtype=torch.float64, generator=generator)
        loss = unmask.objective.score_entropy(model, x0, t, generator=generator, schedule=LogLinear()).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    canvas = torch.full((V - 1, L), V - 1)
    canvas[:, 2] = torch.arange(V - 1)
    tokens = unmask.sample(model, canvas=canvas, seed=0, temperature=0.5).tokens
    assert (tokens == canvas[:, 2:3]).double().mean() > 0.95
    time = torch.full((V - 1,), 0.8, dtype=torch.float64)
    with torch.no_grad():
        f = model.eval()(canvas, time)
    mu = mean_from_score(log_score(f, canvas, LogLinear().alpha(time), V - 1), V - 1)
    torch.testing.assert_close(mu[:, 0], torch.softmax(f[:, 0].double(), -1), rtol=1e-5, atol=1e-7)
