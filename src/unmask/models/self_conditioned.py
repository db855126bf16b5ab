"""Self-conditioning while sampling and evaluating: a network that is fed its own prediction, as a plain denoiser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from unmask.models.layers import take

if TYPE_CHECKING:
    from unmask.models.ddit import DDiT


class SelfConditioned(nn.Module):
    """A self-conditioned DDiT as a plain denoiser, for one run of sampling.

    Each call is fed the last call's prediction for the same row; the first is fed a blank, and so is any row whose
    canvas is still empty. The batch may lose rows at its end, as ``sample`` does, but not gain or reorder them: make a
    new one for each run. ``remember=False`` keeps nothing and calls the network twice, which is the paper's
    mu(x, t) = F(x, t, F(x, t)): the one to evaluate a bound with.
    """

    suppresses_mask = True  # the network does

    def __init__(self, network: DDiT, remember: bool = True) -> None:
        super().__init__()
        if not network.config.self_conditioning:
            raise ValueError("SelfConditioned needs a network with self_conditioning=True")
        self.network, self.remember = network, remember
        self.vocab_size, self.mask_id, self.length = network.vocab_size, network.mask_id, network.length
        self.previous: Tensor | None = None
        self.train(network.training)  # wrapping is no change of mode

    def for_sampling(self) -> SelfConditioned:
        """The same with nothing remembered."""
        return SelfConditioned(self.network, self.remember)

    def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        blank = self.network.vocab_embed.embedding.new_zeros(*tokens.shape, self.network.config.width)
        if not self.remember:
            blank = self.network.states(tokens, time, previous=blank)
            return self.network.logits(self.network.states(tokens, time, rows, blank))
        before = self.previous
        if before is None:
            before = blank
        elif len(before) < len(tokens) or before.shape[1] != tokens.shape[1]:
            raise ValueError(
                f"the last call was for {tuple(before.shape[:2])} tokens and this one is for {tuple(tokens.shape)}: "
                "a self-conditioned run may only lose rows; make a new SelfConditioned for each run"
            )
        started = (tokens != self.mask_id).any(1)
        before = torch.where(started[:, None, None], before[: len(tokens)], blank)
        states = self.network.states(tokens, time, previous=before)
        self.previous = states.detach()
        return self.network.logits(states if rows is None else take(states, rows))
