"""SEDD's score parameterisation on the same network.

The network's outputs f give the concrete score of the absorbing process at a masked position,
s_y = alpha/(1 - alpha) e^{f_y} / D, with D data tokens; e^sigma - 1 = (1 - alpha)/alpha. The mean parameterisation is
its normalisation, mu = softmax(f) over the data tokens, because both factors cancel: a network trained with the score
entropy (``unmask.objective.score_entropy``) is sampled by its plain call.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_score(logits: Tensor, tokens: Tensor, alpha: Tensor, mask_id: int) -> Tensor:
    """log s = f - log(e^sigma - 1) - log D, and 0 at the input token (SEDD).

    logits [..., V] for tokens [...]; alpha in (0, 1) has the tokens' leading dimensions, [B] for [B, L]. The score is
    that of moving away from ``tokens``; where the mask has no column (mask_id = V) masked positions have no zero.
    """
    alpha = alpha.to(logits.device).double()
    if not bool(((alpha > 0) & (alpha < 1)).all()):
        raise ValueError(f"alpha must be in (0, 1), where the score is finite, got {alpha.min()} .. {alpha.max()}")
    columns = logits.shape[-1]
    log_odds = (alpha.log() - torch.log1p(-alpha)).to(logits.dtype)
    log_odds = log_odds.reshape(*alpha.shape, *[1] * (logits.ndim - alpha.ndim))
    score = logits + log_odds - math.log(_data_tokens(columns, mask_id))
    own = torch.arange(columns, device=tokens.device) == tokens.unsqueeze(-1)
    return score.masked_fill(own, 0.0)


def mean_from_score(score: Tensor, mask_id: int) -> Tensor:
    """mu = s / sum s over the data tokens, at masked positions: from log-scores [..., V], in float64.

    Inverts s = alpha/(1 - alpha) mu without knowing alpha.
    """
    score = score.double()
    if mask_id < score.shape[-1]:
        score = score.index_fill(-1, torch.tensor([mask_id], device=score.device), -torch.inf)
    return torch.softmax(score, -1)


def _data_tokens(columns: int, mask_id: int) -> int:
    return columns - (mask_id < columns)
