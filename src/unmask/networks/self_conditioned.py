"""Self-conditioning: a network that also reads its own last prediction, and the same as a plain denoiser."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.devices import upload
from unmask.networks.cache.rows import constants_folded
from unmask.networks.cache.seats import Seated
from unmask.networks.config import DDiTConfig
from unmask.networks.ddit import DDiT
from unmask.networks.layers import by_rows, take


class SelfConditionedDDiT(DDiT):
    """The paper's network F(x, t, F_{theta^-}), whose input is joined by its own prediction.

    The prediction is given as final states: the logits are a linear map of them, so nothing is lost and no [B, L, V]
    tensor is made.
    """

    architecture = "self-conditioned"

    def __init__(self, config: DDiTConfig) -> None:
        super().__init__(config)
        self.self_condition = nn.Linear(2 * config.width, config.width, bias=False)
        with torch.no_grad():  # [identity, 0]: it starts as the network without self-conditioning
            self.self_condition.weight.zero_().fill_diagonal_(1.0)

    def forward(
        self,
        tokens: Tensor,
        time: Tensor | None = None,
        rows: Tensor | None = None,
        lengths: Tensor | None = None,
        previous: Tensor | None = None,
    ) -> Tensor:
        """As the DDiT's; ``previous`` [B, L, width] is an earlier result of ``states``, a blank by default."""
        at = None if rows is None else by_rows(rows)
        return self.logits(self.states(tokens, time, at, lengths, previous))

    def packed(
        self,
        tokens: Tensor,
        time: Tensor | None,
        where: Tensor,
        lengths: Tensor | None = None,
        previous: Tensor | None = None,
    ) -> Tensor:
        """Logits [M, V] at the M positions where the boolean [B, L] is true, in row-major order."""
        return self.logits(self.states(tokens, time, where.nonzero(as_tuple=True), lengths, previous))

    def states(
        self,
        tokens: Tensor,
        time: Tensor | None = None,
        at: tuple[Tensor, ...] | None = None,
        lengths: Tensor | None = None,
        previous: Tensor | None = None,
    ) -> Tensor:
        """The final states [B, L, width], or those at some indices.

        Without ``previous`` a training step has a blank half of the time, and otherwise a pass without gradients.
        """
        self.check(tokens)
        entries = self.entries(tokens, lengths)
        x = self.read(entries.tokens, entries.positions)  # [B, L, width]
        if previous is None:
            previous = torch.zeros_like(x)
            if self.training and float(torch.rand(())) < 0.5:
                with torch.no_grad():
                    previous = self.states(entries.tokens, time, previous=previous)
        x = self.self_condition(torch.cat((x, previous.detach()), -1))
        return self.through(x, entries, self.conditioning(tokens, time, lengths), at)

    def for_sampling(self) -> nn.Module:
        """The network to call in sampling, for one run: it remembers its predictions."""
        return SelfConditioned(constants_folded(self))

    def for_bound(self) -> nn.Module:
        """The network to call for a bound: mu(x, t) = F(x, t, F(x, t))."""
        return SelfConditioned(self, remember=False)


class SelfConditioned(Seated):
    """A self-conditioned network as a plain denoiser, for one run of sampling.

    Each call gets the last call's prediction for the same sequence; the first gets a blank, and so does any sequence
    whose canvas is still empty. ``remember=False`` caches nothing and calls the network twice, which is the paper's
    mu(x, t) = F(x, t, F(x, t)), for bounds.
    """

    suppresses_mask = True  # the network does

    def __init__(self, network: SelfConditionedDDiT, remember: bool = True) -> None:
        super().__init__()
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
            return network(tokens, time, rows, previous=network.states(tokens, time, previous=blank))  # type: ignore[no-any-return]
        here = self.here(tokens, seats)
        started = (tokens != self.mask_id).any(1)[:, None, None]
        previous = torch.where(started, self.kept["previous"][here, : tokens.shape[1]], 0.0)
        lengths = upload(torch.tensor(self.lengths[here]), tokens.device)
        padded = lengths if min(self.lengths[here]) < tokens.shape[1] else None
        states = network.states(tokens, time, previous=previous, lengths=padded)
        with torch.inference_mode():
            self.kept["previous"][here, : tokens.shape[1]] = states.detach()
        return network.logits(states if rows is None else take(states, rows))
