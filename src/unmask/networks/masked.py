"""What all networks of masked canvases share: they see both sides of a position, or as much of them as they say."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.networks.attention import Entries, inside
from unmask.networks.cache.rows import AskedRows
from unmask.networks.layers import by_rows
from unmask.networks.transformer import Transformer
from unmask.processes import Masked, Process


class MaskedNetwork(Transformer):
    """A denoiser: logits = model(tokens, time, rows)."""

    causal = False
    takes_lengths = True

    @property
    def process(self) -> Process:
        """What kind of network it is."""
        return Masked()

    @property
    def reads_position_alone(self) -> bool:
        """Whether the first block's input at a position depends on its token alone (``cache.rows``)."""
        return True

    def forward(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        """tokens [B, L], time [B], rows [B, R] -> float32 logits [B, R, V], or [B, L, V] without rows.

        ``lengths`` [B]: sequences of several lengths, padded at their ends (``unmask.protocol.TakesLengths``).
        """
        return self.logits(self.states(tokens, time, None if rows is None else by_rows(rows), lengths))

    def packed(self, tokens: Tensor, time: Tensor | None, where: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Logits [M, V] at the M positions where the boolean [B, L] is true, in row-major order."""
        return self.logits(self.states(tokens, time, where.nonzero(as_tuple=True), lengths))

    def states(
        self,
        tokens: Tensor,
        time: Tensor | None = None,
        at: tuple[Tensor, ...] | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """The final states [B, L, width], or those at some indices."""
        self.check(tokens)
        entries, c = self.entries(tokens, lengths), self.conditioning(tokens, time, lengths)
        return self.through(self.read(entries.tokens, entries.positions), entries, c, at)

    def entries(self, tokens: Tensor, lengths: Tensor | None = None) -> Entries:
        """Every position of a canvas [B, L], and which of them it sees: all."""
        return all_positions(tokens, lengths)

    def asked(self, tokens: Tensor, rows: Tensor, lengths: Tensor | None = None) -> Entries:
        """The entries that the requested rows [B, R] need."""
        return self.entries(tokens, lengths)._replace(rows=rows)

    def conditioning(self, tokens: Tensor, time: Tensor | None, lengths: Tensor | None = None) -> Tensor | None:
        """c [B, cond_dim], or [1, cond_dim] if it is constant."""
        return self.constant_conditioning()

    def for_sampling(self) -> nn.Module:
        """The network to call in sampling: the same function, faster; with a cache it is for one run only."""
        return AskedRows(self)


def all_positions(tokens: Tensor, lengths: Tensor | None = None) -> Entries:
    """Every position is an entry and sees every position: a bidirectional pass.

    lengths [B]: positions after a sequence's end are neither keys nor neighbours, whatever they hold.
    """
    every = torch.arange(tokens.shape[1], device=tokens.device)
    if lengths is None:
        return Entries(tokens, every)
    real = inside(lengths, tokens.shape[1])  # [B, L]
    mask = real[:, None, None].expand(-1, -1, tokens.shape[1], -1)  # [B, 1, L, L]
    # A CPU gains nothing from attending all at once, and computes padding in vain.
    ends = lengths.tolist() if tokens.device.type == "cpu" else None
    return Entries(tokens, every, mask, real=real.unsqueeze(-1), ends=ends)
