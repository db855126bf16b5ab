"""Probability tables in float64: what the models with a known answer check, draw and return alike."""

from __future__ import annotations

import torch
from torch import Tensor


def distribution(name: str, table: Tensor, shape: tuple[int, ...] | None = None, dims: int = 1) -> Tensor:
    """The table in float64 on the CPU, checked to sum to 1 over its last `dims` dimensions."""
    table = torch.as_tensor(table).detach().to("cpu", torch.float64)
    if shape is not None and tuple(table.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(table.shape)}")
    if table.numel() == 0 or not bool(torch.isfinite(table).all()) or bool((table < 0).any()):
        raise ValueError(f"{name} must hold finite, non-negative probabilities, got {table}")
    total = table.sum(dim=tuple(range(-dims, 0)), keepdim=True)
    if bool(((total - 1).abs() > 1e-6).any()):
        raise ValueError(f"{name} must sum to 1, got sums from {total.min():.9g} to {total.max():.9g}")
    # A float32 table sums to 1 to seven digits only; one in float64 is kept to the bit.
    return table / total if bool(((total - 1).abs() > 1e-12).any()) else table


def normalise(counts: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Each row of counts as a distribution; a row that was never counted is uniform over the allowed ids."""
    if allowed is None:
        allowed = torch.ones(counts.shape[-1], dtype=torch.bool)
    total = counts.sum(-1, keepdim=True)
    return torch.where(total > 0, counts / total.clamp_min(torch.finfo(total.dtype).tiny), allowed / allowed.sum())


def resolve_mask(mask_id: int | None, vocab_size: int) -> int:
    """The mask id, which is V unless another is asked for."""
    if mask_id is None:
        return vocab_size
    if not 0 <= mask_id <= vocab_size:
        raise ValueError(f"mask_id must be in 0..vocab_size={vocab_size}, got {mask_id}")
    return int(mask_id)


def allowed_ids(vocab_size: int, mask_id: int | None) -> Tensor:
    """Which of the ids 0..V-1 may be tokens: all but the mask, where it lies below V."""
    if vocab_size < 1:
        raise ValueError(f"vocab_size must be at least 1, got {vocab_size}")
    return torch.arange(vocab_size) != resolve_mask(mask_id, vocab_size)


def check_tokens(tokens: Tensor, vocab_size: int, mask_id: int) -> Tensor:
    """Refuse what is not [B, L] of token ids and masks."""
    if tokens.dim() != 2 or tokens.shape[1] == 0 or tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise ValueError(f"tokens must be integer ids of shape [B, L], got {tokens.dtype} {tuple(tokens.shape)}")
    wrong = ((tokens < 0) | (tokens >= vocab_size)) & (tokens != mask_id)
    if bool(wrong.any()):
        raise ValueError(f"tokens must be in 0..{vocab_size - 1} or the mask {mask_id}, got {int(tokens[wrong][0])}")
    return tokens.long()


def check_complete(tokens: Tensor, vocab_size: int, mask_id: int | None) -> Tensor:
    """Refuse what is not [N, L] of visible tokens."""
    mask = resolve_mask(mask_id, vocab_size)
    tokens = check_tokens(tokens, vocab_size, mask)
    if tokens.numel() == 0 or bool((tokens == mask).any()):
        raise ValueError(f"tokens must be at least one sequence without the mask {mask}, got {tuple(tokens.shape)}")
    return tokens


def check_rows(rows: Tensor | None, tokens: Tensor) -> Tensor:
    """The asked rows [B, R]; all of them if none were named."""
    batch, length = tokens.shape
    if rows is None:
        return torch.arange(length).expand(batch, length)
    if rows.dim() != 2 or rows.shape[0] != batch or rows.is_floating_point() or rows.dtype == torch.bool:
        raise ValueError(f"rows must be integers of shape [{batch}, R], got {rows.dtype} {tuple(rows.shape)}")
    if bool(((rows < 0) | (rows >= length)).any()):
        raise ValueError(f"rows must be in 0..{length - 1}, got {int(rows.min())}..{int(rows.max())}")
    return rows.long()


def reveal(logits: Tensor, asked: Tensor, mask_id: int) -> Tensor:
    """Carry over (Eq. 4): where the asked token [B, R] is visible, all the probability is on it. In place."""
    visible = asked != mask_id
    logits[visible] = -torch.inf
    logits[visible, asked[visible]] = 0.0
    return logits


def impossible(possible: Tensor, tokens: Tensor) -> ValueError:
    """The error for the first context [L] of the batch that is not possible ([B])."""
    index = int((~possible).nonzero()[0])
    shown = ", ".join(map(str, tokens[index, :16].tolist())) + (", ..." if tokens.shape[1] > 16 else "")
    return ValueError(f"tokens[{index}] is impossible, its visible tokens have probability zero: [{shown}]")


def cdf(table: Tensor) -> Tensor:
    """Cumulative sums of each row, ending in exactly 1 so that u < 1 never falls behind the last possible outcome."""
    cumulative = table.cumsum(-1)
    return cumulative / cumulative[..., -1:]


def inverse_cdf(cumulative: Tensor, which: Tensor, generator: torch.Generator) -> Tensor:
    """One exact draw for each entry of which [n], from that row of the cumulative table [K, V]."""
    u = torch.rand(len(which), dtype=torch.float64, generator=generator)
    drawn = torch.empty_like(which)
    # By row of the table, not by draw: a copy of a row for each draw would be n x V.
    places_of = torch.split(which.argsort(), torch.bincount(which, minlength=len(cumulative)).tolist())
    for row, places in zip(cumulative, places_of, strict=True):
        if len(places):
            drawn[places] = torch.searchsorted(row, u[places], right=True)
    return drawn


def check_num(num: int, length: int | None, own: int) -> None:
    """Refuse to draw a negative number of sequences, or sequences of another length than a joint's own."""
    if length not in (None, own) or num < 0:
        raise ValueError(f"num must be >= 0 and length {own} or None, got num={num}, length={length}")
