"""SEDD's score parameterisation on the same network.

The network's outputs f give the concrete score of the absorbing process at a masked position,
s_y = alpha/(1 - alpha) e^{f_y} / D, with D data tokens; e^sigma - 1 = (1 - alpha)/alpha. The mean parameterisation is
its normalisation, mu = softmax(f) over the data tokens, because both factors cancel: a network trained with the score
entropy (``unmask.objective.score_entropy``) is sampled by its plain call.
"""

from __future__ import annotations

import torch
from torch import Tensor


def mean_from_score(score: Tensor, mask_id: int) -> Tensor:
    """mu = s / sum s over the data tokens, at masked positions: from log-scores [..., V], in float64.

    Inverts s = alpha/(1 - alpha) mu without knowing alpha.
    """
    score = score.double()
    if mask_id < score.shape[-1]:
        score = score.index_fill(-1, torch.tensor([mask_id], device=score.device), -torch.inf)
    return torch.softmax(score, -1)
