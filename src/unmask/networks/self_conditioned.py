"""Self-conditioning in sampling and evaluation: a network that gets its own prediction, as a plain denoiser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unmask.devices import upload
from unmask.networks.cache.seats import Seated
from unmask.networks.layers import take

if TYPE_CHECKING:
    from unmask.networks.ddit import DDiT


class SelfConditioned(Seated):
    """A self-conditioned DDiT as a plain denoiser, for one run of sampling.

    Each call gets the last call's prediction for the same sequence; the first gets a blank, and so does any sequence
    whose canvas is still empty. ``remember=False`` caches nothing and calls the network twice, which is the paper's
    mu(x, t) = F(x, t, F(x, t)), for bounds.
    """

    suppresses_mask = True  # the network does

    def __init__(self, network: DDiT, remember: bool = True) -> None:
        super().__init__()
        if not network.config.self_conditioning:
            raise ValueError("SelfConditioned needs a network with self_conditioning=True")
        self.network, self.remember = network, remember
        self.vocab_size, self.mask_id, self.length = network.vocab_size, network.mask_id, network.length
        self.train(network.training)  # wrapping does not change the mode

    def for_sampling(self) -> SelfConditioned:
        """The same with an empty cache."""
        return SelfConditioned(self.network, self.remember)

    def blank(self, seats: int, length: int) -> dict[str, Tensor]:
        like, width = self.network.vocab_embed.embedding, self.network.config.width
        return {"previous": like.new_zeros(seats, length, width)}

    def forget(self, seats: slice, length: int) -> None:
        self.kept["previous"][seats] = 0

    def forward(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, *, seats: slice | None = None
    ) -> Tensor:
        network = self.network
        if not self.remember:
            blank = network.vocab_embed.embedding.new_zeros(*tokens.shape, network.config.width)
            return network(tokens, time, rows, network.states(tokens, time, previous=blank))  # type: ignore[no-any-return]
        here = self.here(tokens, seats)
        started = (tokens != self.mask_id).any(1)[:, None, None]
        previous = torch.where(started, self.kept["previous"][here, : tokens.shape[1]], 0.0)
        lengths = upload(torch.tensor(self.lengths[here]), tokens.device)
        padded = lengths if min(self.lengths[here]) < tokens.shape[1] else None
        states = network.states(tokens, time, previous=previous, lengths=padded)
        with torch.inference_mode():
            self.kept["previous"][here, : tokens.shape[1]] = states.detach()
        return network.logits(states if rows is None else take(states, rows))
