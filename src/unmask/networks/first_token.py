"""The token that begins every sequence, for networks that were trained on texts with one: it is never predicted."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from unmask.forward import check_begins


def begun(tokens: Tensor, mask_id: int, first: int | None) -> Tensor:
    """The canvas [B, L] with the token that begins every sequence in its place, if one does."""
    if first is None or not tokens.shape[1]:
        return tokens
    if tokens.device.type == "cpu":  # elsewhere it would make every call wait, and the process checks a run's canvas
        check_begins(tokens, mask_id, first)
    return functional.pad(tokens[:, 1:], (1, 0), value=first)


def first_known(logits: Tensor, positions: Tensor, first: int | None) -> Tensor:
    """Logits [..., V] whose rows at position 0 say that the token is the first one, if there is one."""
    if first is None:
        return logits
    known = logits.new_full(logits.shape[-1:], -torch.inf)
    known[first] = 0.0
    return torch.where((positions == 0).unsqueeze(-1), known, logits)
