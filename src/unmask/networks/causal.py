"""The left-to-right twin: the DDiT's blocks with causal attention.

Inputs are shifted by one and the mask id is the start token, so the logits at position l depend only on the tokens
before l. As a denoiser it is correct at the first masked row of a canvas with a visible prefix and a masked rest.
``for_sampling()`` gives it an exact KV cache.
"""

from __future__ import annotations

from functools import cache
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.networks.attention import Entries
from unmask.networks.cache.in_turn import LeftToRightCached
from unmask.networks.cache.packing import packed
from unmask.networks.cache.rows import private_copy
from unmask.networks.config import TransformerConfig, blocks_of
from unmask.networks.layers import by_rows
from unmask.networks.transformer import Transformer
from unmask.processes import LeftToRight


def twin(config: TransformerConfig) -> TransformerConfig:
    """The left-to-right baseline of the same size: no conditioning and no adaLN, as in MDLM."""
    return blocks_of(config, TransformerConfig, adaln=False)


class Causal(Transformer):
    """logits = model(tokens, rows=...): position l from the tokens before it. ``time`` is accepted and not used.

    With ``adaln=True`` in the config its adaLN vectors are constants and it has as many parameters as the DDiT;
    ``twin(config)`` leaves them out.
    """

    architecture = "causal"
    causal = True
    process = LeftToRight()
    lag: ClassVar[int] = 0  # position l is predicted by input l - lag

    def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """tokens [B, L], rows [B, R] -> float32 logits [B, R, V], or [B, L, V] without rows."""
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
        return self.answers(self.next_logits(self.inputs(tokens), (rows - self.lag).clamp(min=0)), rows)

    def next_logits(self, inputs: Tensor, rows: Tensor | None = None) -> Tensor:
        """The logits of what follows each input, or those in rows, without a start token."""
        return self.logits(self.next_states(inputs, None if rows is None else by_rows(rows)))

    def packed(self, tokens: Tensor, time: Tensor | None, where: Tensor) -> Tensor:
        """Logits [M, V] at the M positions where the boolean [B, L] is true, in row-major order."""
        return self.logits(self.states(tokens, time, where.nonzero(as_tuple=True)))

    def states(self, tokens: Tensor, time: Tensor | None = None, at: tuple[Tensor, ...] | None = None) -> Tensor:
        """The final states [B, L, width] that predict each position, or those at some indices."""
        return self.next_states(self.inputs(tokens), at)

    def inputs(self, tokens: Tensor) -> Tensor:
        """The network's inputs for tokens [B, L]: the start token and all but the last."""
        self.check(tokens)
        return functional.pad(tokens, (1, 0), value=self.mask_id)[:, :-1]

    def answers(self, logits: Tensor, rows: Tensor) -> Tensor:
        """The outputs at rows [B, R], from the network's logits there."""
        return logits

    def for_sampling(self) -> nn.Module:
        """The network to call in sampling: the same function with an exact KV cache."""
        alone = private_copy(self)
        return LeftToRightCached(alone, cache(lambda: packed(alone)))

    def next_states(self, inputs: Tensor, at: tuple[Tensor, ...] | None = None) -> Tensor:
        """The final states after each input [B, S, width], or those at some indices."""
        entries = Entries(inputs, torch.arange(inputs.shape[1], device=inputs.device))
        return self.through(self.read(inputs, entries.positions), entries, self.constant_conditioning(), at)
