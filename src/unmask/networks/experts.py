"""Mixtures of experts: each token goes through a few of many small MLPs, and perhaps through one that all tokens share.

A router scores the experts by a softmax or by sigmoids. The tokens of an expert are computed together, and no expert
computes a token that was not routed to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Experts:
    """The experts of a block, and how a token's are chosen and weighted."""

    count: int
    used: int  # by each token
    hidden: int  # the width inside an expert
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalised: bool = False  # the weights of a token's experts sum to ``scale``
    scale: float = 1.0
    biased: bool = False  # a bias for each expert is added to choose, and not to weigh
    groups: int = 1  # a token's experts come from the best ``groups_used`` of so many groups
    groups_used: int = 1
    shared: int = 0  # the width inside the MLP that all tokens share; 0 for none
    dense: tuple[int, ...] = ()  # the blocks without experts

    def __post_init__(self) -> None:
        for name in ("count", "used", "hidden", "groups", "groups_used"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} of the experts must be a positive number, got {value!r}")
        if type(self.shared) is not int or self.shared < 0:
            raise ValueError(f"shared of the experts must be at least 0, got {self.shared!r}")
        each, rest = divmod(self.count, self.groups)
        limited = self.groups_used < self.groups
        if rest or self.groups_used > self.groups or self.used > each * self.groups_used or (limited and each < 2):
            raise ValueError(
                f"{self.used} of {self.count} experts cannot be chosen from {self.groups_used} of {self.groups} groups"
            )


class GatedFeedForward(nn.Module):
    """down(silu(gate x) * up x)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        fed: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return fed


class Mixture(nn.Module):
    """sum_e w_e expert_e(x) over the experts e of each token, and what all tokens share."""

    bias: Tensor | None

    def __init__(self, width: int, config: Experts) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(width, config.count, bias=False)
        # A buffer: training balances it by counts and not by gradients.
        self.register_buffer("bias", torch.zeros(config.count) if config.biased else None)
        self.experts = nn.ModuleList(GatedFeedForward(width, config.hidden) for _ in range(config.count))
        self.shared = GatedFeedForward(width, config.shared) if config.shared else None

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        chosen, weights = self.route(flat)
        mixed = torch.zeros_like(flat)
        for e in sorted({*chosen.flatten().tolist()}):
            token, place = (chosen == e).nonzero(as_tuple=True)
            mixed = mixed.index_add(0, token, self.experts[e](flat[token]) * weights[token, place].unsqueeze(1))
        mixed = mixed.view_as(x)
        return mixed if self.shared is None else mixed + self.shared(x)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of tokens [N, width], int64 [N, used], and their weights."""
        config, logits = self.config, self.router(x).float()
        scores = logits.softmax(-1) if config.scores == "softmax" else logits.sigmoid()
        rank = scores if self.bias is None else scores + self.bias.float()
        chosen = self._allowed(rank).topk(config.used, -1).indices
        weights = scores.gather(-1, chosen)
        if config.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        return chosen, (weights * config.scale).to(x.dtype)

    def _allowed(self, rank: Tensor) -> Tensor:
        """-inf outside of a token's best groups, which are those whose two best experts have the largest sum."""
        config = self.config
        if config.groups == config.groups_used:
            return rank
        grouped = rank.view(len(rank), config.groups, -1)
        best = grouped.topk(2, -1).values.sum(-1).topk(config.groups_used, -1).indices
        outside = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best, False)
        return grouped.masked_fill(outside.unsqueeze(-1), -torch.inf).flatten(1)
