"""Any order by two streams: the DDiT's attention in the order of unmasking, one stream of tokens and one of masks.

A visible token sees itself and those that became visible before it; a masked position sees these and itself. So keys
and values never change once a token is visible, but the chain rule costs 2 L entries. ``any_order.py`` does it with L:
it is the network that ``unmask train --attention order`` makes. This one remains for checkpoints of earlier versions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.networks.attention import Entries, by_levels, ranks, visible_alone
from unmask.networks.cache.packing import packed
from unmask.networks.cache.rows import private_copy
from unmask.networks.cache.two_streams import TwoStreamsCached
from unmask.networks.layers import by_rows
from unmask.networks.masked import MaskedNetwork
from unmask.processes import AnyOrder


class TwoStreamDDiT(MaskedNetwork):
    """logits = model(tokens, time, rows, when). The time is not read: a visible token must not change.

    ``when`` [B, L] says when each visible token became visible (``unmask.networks.attention``).
    """

    architecture = "two-streams"
    attention = "order"
    process = AnyOrder()

    def forward(
        self,
        tokens: Tensor,
        time: Tensor | None = None,
        rows: Tensor | None = None,
        lengths: Tensor | None = None,
        when: Tensor | None = None,
    ) -> Tensor:
        at = None if rows is None else by_rows(rows)
        return self.logits(self.states(tokens, time, at, lengths, when))

    def packed(
        self,
        tokens: Tensor,
        time: Tensor | None,
        where: Tensor,
        lengths: Tensor | None = None,
        when: Tensor | None = None,
    ) -> Tensor:
        return self.logits(self.states(tokens, time, where.nonzero(as_tuple=True), lengths, when))

    def states(
        self,
        tokens: Tensor,
        time: Tensor | None = None,
        at: tuple[Tensor, ...] | None = None,
        lengths: Tensor | None = None,
        when: Tensor | None = None,
    ) -> Tensor:
        self.check(tokens)
        entries = self.entries(tokens, lengths, when)
        return self.through(self.read(entries.tokens, entries.positions), entries, self.constant_conditioning(), at)

    def entries(self, tokens: Tensor, lengths: Tensor | None = None, when: Tensor | None = None) -> Entries:
        taps = self.config.convolution
        return visible_alone(tokens, self.mask_id, taps, lengths, ranks(tokens, when, lengths))

    def two_streams(self, tokens: Tensor, when: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """The final states [B, R, width] of the rows, each as if masked and given the tokens before it in the order.

        For complete tokens. One pass of L + R entries gives, with all rows, every conditional of the chain rule.
        """
        self.check(tokens)
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        entries = both_streams(tokens, self.mask_id, self.config.convolution, when, rows)
        assert entries.rows is not None
        x = self.read(entries.tokens, entries.positions)
        return self.through(x, entries, self.constant_conditioning(), by_rows(entries.rows))

    def chain(self, tokens: Tensor, when: Tensor | None = None) -> Tensor:
        """The final states [B, L, width] of all rows: as ``OneStream.chain``, at twice the entries."""
        return self.two_streams(tokens, when)

    def answers(self, logits: Tensor, rows: Tensor) -> Tensor:
        return logits

    def for_sampling(self) -> nn.Module:
        """The network to call in sampling: the same function with an exact cache, for one run."""
        return TwoStreamsCached(packed(private_copy(self)))


def both_streams(tokens: Tensor, mask_id: int, taps: int, when: Tensor | None, rows: Tensor) -> Entries:
    """Complete tokens as one stream, and the rows [B, R] again, masked: each sees the tokens before it in the order."""
    (batch, length), more = tokens.shape, (0, rows.shape[1])
    every = torch.arange(length, device=tokens.device).expand_as(tokens)  # [B, L]
    rank = ranks(tokens, when)  # [B, L]
    entries = by_levels(
        functional.pad(tokens, more, value=mask_id),  # [B, L + R], as all that follow
        torch.cat((every, rows), 1),
        functional.pad(torch.ones_like(tokens, dtype=torch.bool), more),
        torch.cat((rank, rank.gather(1, rows) - 1), 1),
        every,
        taps,
    )
    return entries._replace(rows=length + torch.arange(rows.shape[1], device=rows.device).expand(batch, -1))
