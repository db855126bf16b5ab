"""The paper's network: a bidirectional transformer with rotary positions and adaLN conditioning (DDiT).

Parameter names and shapes are those of the published SEDD and MDLM checkpoints. Trained with the score entropy it is
SEDD's network (``unmask.objective.score_entropy``). This file is for reading and training; sampling calls the result of
``for_sampling()``, which gives the same logits faster (``unmask.networks.cache``).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from unmask.devices import widest
from unmask.networks import anyorder
from unmask.networks.adapters import begun, first_known
from unmask.networks.anyorder import Entries
from unmask.networks.cache.cached import AnyOrderCached
from unmask.networks.cache.in_turn import BlockCached
from unmask.networks.cache.packing import packed
from unmask.networks.cache.rows import AskedRows, constants_folded, private_copy
from unmask.networks.config import PRESETS, DDiTConfig, preset
from unmask.networks.layers import Transformer, all_positions, by_rows
from unmask.networks.pretrained import Pretrained
from unmask.networks.self_conditioned import SelfConditioned
from unmask.processes import AnyOrder, BlockByBlock, Insertion, Masked, Process, Uniform

__all__ = ["PRESETS", "DDiT", "DDiTConfig", "preset"]


class DDiT(Transformer, Pretrained):
    """The paper's denoiser: logits = model(tokens, time, rows).

    Another conditioning of the same weights is another config: ``model.config = replace(model.config,
    conditioning="time")`` feeds the time to a checkpoint that was trained without it.
    """

    architecture = "ddit"
    causal = False
    takes_lengths = True

    @property
    def first_token(self) -> int | None:
        """The id that begins every sequence, if one does."""
        return self.config.first_token

    @property
    def process(self) -> Process:
        """What it is: masked, any order, blocks, insertion or uniform state."""
        config = self.config
        how: dict[str, Any] = {"from_left": config.adapters > 0, "first_token": config.first_token}
        if config.insertion:
            return Insertion()
        if config.uniform:
            return Uniform(reads_time=config.conditioning == "time")
        if config.attention == "order":
            return AnyOrder()
        return BlockByBlock(size=config.block, **how) if config.block else Masked(**how)

    def forward(
        self,
        tokens: Tensor,
        time: Tensor | None = None,
        rows: Tensor | None = None,
        previous: Tensor | None = None,
        when: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """tokens [B, L], time [B], rows [B, R] -> float32 logits [B, R, V], or [B, L, V] without rows.

        ``previous`` [B, L, width] is an earlier result of ``states``, for a self-conditioned network. ``when`` [B, L],
        with attention="order", says when each visible token became visible (``unmask.networks.anyorder``). ``lengths``
        [B]: sequences of several lengths, padded at their ends (``unmask.protocol.TakesLengths``).
        """
        at = None if rows is None else by_rows(rows)
        logits = self.logits(self.states(tokens, time, at, previous, when, lengths))
        if self.first_token is None:
            return logits
        positions = torch.arange(tokens.shape[1], device=tokens.device) if rows is None else rows
        return first_known(logits, positions, self.first_token)

    def packed(
        self,
        tokens: Tensor,
        time: Tensor | None,
        where: Tensor,
        previous: Tensor | None = None,
        when: Tensor | None = None,
        lengths: Tensor | None = None,
        clean: Tensor | None = None,
    ) -> Tensor:
        """Logits [M, V] at the M positions where the boolean [B, L] is true, in row-major order.

        clean [B, L], for attention="block": the true tokens of the blocks before a position.
        """
        at = where.nonzero(as_tuple=True)
        logits = self.logits(self.states(tokens, time, at, previous, when, lengths, clean))
        return logits if self.first_token is None else first_known(logits, at[1], self.first_token)

    def states(
        self,
        tokens: Tensor,
        time: Tensor | None = None,
        at: tuple[Tensor, ...] | None = None,
        previous: Tensor | None = None,
        when: Tensor | None = None,
        lengths: Tensor | None = None,
        clean: Tensor | None = None,
    ) -> Tensor:
        """The final states [B, L, width], or those at some indices; other arguments as in ``packed``."""
        self.check(tokens)
        if self.first_token is not None:
            tokens = begun(tokens, self.mask_id, self.first_token)
        rule, taps, block = self.config.attention, self.config.convolution, self.config.block
        if clean is None and lengths is None and rule == "bidirectional":
            entries = all_positions(tokens)
        elif clean is None:
            entries = anyorder.everywhere(tokens, self.mask_id, rule, taps, when, lengths, block)
        elif not block or lengths is not None:
            raise ValueError(f"clean is for attention='block' and sequences of one length, got {rule!r}")
        else:
            entries = anyorder.noised_blocks(tokens, clean, self.mask_id, taps, block)
        if self.config.adapters:
            entries = anyorder.in_turn(entries, tokens, clean, lengths, self.config)
        c = self.conditioning(tokens, time, lengths)
        return self.through(self.embedded(entries, time, previous), entries, c, at)

    def two_streams(self, tokens: Tensor, when: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """The final states [B, R, width] of the rows, each as if masked and given the tokens before it in the order.

        For a network with attention="order" and complete tokens. One pass of length L + R gives, with all rows, every
        conditional of the chain rule along the order.
        """
        self.check(tokens)
        if self.config.attention != "order":
            raise ValueError(f"two streams need attention='order', got {self.config.attention!r}")
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        entries = anyorder.two_streams(tokens, self.mask_id, self.config.convolution, when, rows)
        assert entries.rows is not None
        x = self.read(entries.tokens, entries.positions)
        return self.through(x, entries, self.constant_conditioning(), by_rows(entries.rows))

    def chain(self, tokens: Tensor, when: Tensor | None = None) -> Tensor:
        """The final states [B, L, width] of all rows: as ``OneStream.chain``, at twice the entries."""
        return self.two_streams(tokens, when)

    def answers(self, logits: Tensor, rows: Tensor) -> Tensor:
        return logits

    def conditioning(self, tokens: Tensor, time: Tensor | None, lengths: Tensor | None = None) -> Tensor | None:
        """c [B, cond_dim] from the time or the masked ratio, or [1, cond_dim] if it is constant."""
        if self.config.conditioning == "none" or self.sigma_map is None:
            return self.constant_conditioning()
        if self.config.conditioning == "ratio":
            level = masked_ratio(tokens == self.mask_id, lengths)
        elif time is None:
            raise ValueError("this network is conditioned on the time: call it with time, float [batch]")
        else:
            level = time.to(tokens.device, widest(tokens.device)).expand(len(tokens))
        conditioning: Tensor = self.sigma_map(self.sigma(level))
        return conditioning

    def sigma(self, t: Tensor) -> Tensor:
        """The embedded function of the time t: -log(1 - t) up to sigma_max, the log-linear noise, or t."""
        smallest = math.exp(-self.config.sigma_max)
        if self.config.time_embedding == "sigma":
            return -torch.log((1 - t).clamp(min=smallest))
        if self.config.time_embedding == "log-linear":
            return -torch.log1p(-(1 - smallest) * t)
        return 1000 * t  # at this scale the frequencies 1 .. 1e-4 resolve the times in [0, 1]

    def embedded(self, entries: Entries, time: Tensor | None = None, previous: Tensor | None = None) -> Tensor:
        """Embedded tokens, joined by the network's own prediction F_{theta^-} if it is self-conditioned.

        The prediction is given as final states: the logits are a linear map of them, so nothing is lost and no [B, L,
        V] tensor is made. In training it is blank half of the time and otherwise comes from a pass without gradients;
        otherwise it is ``previous``, or blank.
        """
        x = self.read(entries.tokens, entries.positions, entries.left, entries.turned)
        if not self.config.self_conditioning:
            if previous is not None:
                raise ValueError("previous is for a network with self_conditioning=True")
            return x
        if previous is None:
            previous = torch.zeros_like(x)
            if self.training and float(torch.rand(())) < 0.5:
                with torch.no_grad():
                    previous = self.states(entries.tokens, time, previous=previous)
        projected: Tensor = self.self_condition(torch.cat((x, previous.detach()), -1))
        return projected

    def for_sampling(self) -> nn.Module:
        """The network to call in sampling: the same function, faster; with a cache it is for one run only."""
        if self.config.self_conditioning:
            return SelfConditioned(constants_folded(self))
        if self.config.block or self.config.adapters:
            return BlockCached(packed(private_copy(self)), self.config.block or None)
        return AnyOrderCached(packed(private_copy(self))) if self.config.attention == "order" else AskedRows(self)

    def for_bound(self) -> nn.Module:
        """The network to call for a bound: a self-conditioned network as mu(x, t) = F(x, t, F(x, t))."""
        return SelfConditioned(self, remember=False) if self.config.self_conditioning else self


def masked_ratio(masked: Tensor, lengths: Tensor | None) -> Tensor:
    """The masked fraction of each sequence: float64 [B]."""
    if lengths is None:
        return masked.to(widest(masked.device)).mean(1)
    return (masked & anyorder.inside(lengths, masked.shape[1])).sum(1).to(widest(masked.device)) / lengths
