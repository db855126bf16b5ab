"""The paper's network: a bidirectional transformer with rotary positions and adaLN conditioning (DDiT).

Parameter names and shapes are those of the published SEDD and MDLM checkpoints. The network serves SEDD as well: read
its outputs through ``unmask.models.score``. Its attention may be over visible tokens alone, or causal in the order in
which they became visible: see ``unmask.models.anyorder``.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from unmask.models import anyorder
from unmask.models.anyorder import Cached, View, take_rows
from unmask.models.config import PRESETS, DDiTConfig, preset
from unmask.models.first_layer import FirstProjections
from unmask.models.kernels import Table, plain
from unmask.models.layers import Sight
from unmask.models.packed import pack
from unmask.models.pretrained import Pretrained
from unmask.models.self_conditioned import SelfConditioned
from unmask.models.transformer import Transformer

__all__ = ["PRESETS", "DDiT", "DDiTConfig", "preset"]

SMALLEST_ALPHA = 1e-3  # where sigma = -log(alpha) stops growing, as in the published log-linear noise


class DDiT(Transformer, Pretrained):
    """The paper's denoiser: logits = model(tokens, time, rows).

    Another conditioning of the same weights is another config: ``model.config = replace(model.config,
    conditioning="time")`` feeds the time to a checkpoint that was trained without it.
    """

    architecture = "ddit"
    causal = False
    first: FirstProjections | None = None  # of a network that was made for sampling

    @property
    def any_order(self) -> bool:
        """Whether the answer depends on the order in which tokens became visible, and a cache is exact."""
        return self.config.attention == "order"

    def forward(
        self,
        tokens: Tensor,
        time: Tensor | None = None,
        rows: Tensor | None = None,
        previous: Tensor | None = None,
        order: Tensor | None = None,
    ) -> Tensor:
        """tokens [B, L], time [B], rows [B, R] -> float32 logits [B, R, V], or [B, L, V] without rows.

        With rows, the last block's queries and MLP and the head are computed for those rows alone. ``previous``
        [B, L, width] is an earlier answer of ``states``, for a self-conditioned network. ``order`` [B, L], for one with
        attention="order", says when each visible token became visible, smaller numbers first; without it they are in
        ``anyorder.usual_order``.
        """
        return self.logits(self.states(tokens, time, rows, previous, order))

    def states(
        self,
        tokens: Tensor,
        time: Tensor | None = None,
        rows: Tensor | None = None,
        previous: Tensor | None = None,
        order: Tensor | None = None,
    ) -> Tensor:
        """The final states [B, R, width], of which the logits are a linear map: arguments as in ``forward``."""
        self._check(tokens)
        rule, mask_id = self.config.attention, self.mask_id
        if rule == "bidirectional":
            return self.last_states(*self._before_last(tokens, time, previous)[:3], rows)
        if rows is None:
            return self._seen(anyorder.everywhere(tokens, mask_id, rule, order), tokens, time)
        return self._seen(anyorder.asked(tokens, mask_id, rule, rows, order), tokens, time)

    def two_streams(self, tokens: Tensor, order: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """The final states [B, R, width] of the rows, each as if masked and given the tokens before it in the order.

        For a network with attention="order" and complete tokens. order is [B, L] as in ``forward``. One pass of length
        L + R gives, with all rows, every conditional of the chain rule along the order.
        """
        self._check(tokens)
        if not self.any_order:
            raise ValueError(f"two streams need attention='order', got {self.config.attention!r}")
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        return self._seen(anyorder.two_streams(tokens, self.mask_id, order, rows), tokens, None)

    def ragged(self, tokens: Tensor, time: Tensor | None, rows: Tensor, real: Tensor) -> Tensor:
        """Logits [M, V] at the rows [B, R] where the boolean [B, R] holds, in row-major order: no head for pads."""
        return self.logits(self.states(tokens, time, rows)[real])

    def packed(
        self, tokens: Tensor, time: Tensor | None, where: Tensor, previous: Tensor | None = None,
        order: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Logits [M, V] at the M positions where the boolean [B, L] holds, in row-major order."""
        return self.logits(self.states_where(tokens, time, where, previous, order))

    def states_where(
        self, tokens: Tensor, time: Tensor | None, where: Tensor, previous: Tensor | None = None,
        order: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The final states [M, width] of ``packed``."""
        self._check(tokens)
        view = None
        if self.config.attention != "bidirectional":
            view = anyorder.everywhere(tokens, self.mask_id, self.config.attention, order)
        x, c, table, sight = self._before_last(tokens, time, previous, view)
        return self.packed_states(x, c, table, where, sight)

    def for_sampling(self) -> nn.Module:
        """What a run of sampling should call; one with a memory, or a cache, needs its own for each run."""
        network = cast("DDiT", super().for_sampling())
        if self.config.self_conditioning:
            return SelfConditioned(network)
        remembers = self.config.conditioning == "none" and self.config.attention == "bidirectional"
        if network is self and (self.any_order or (remembers and self.first is None)):
            # The copy keeps what these weights gave, so they must not change under it.
            state = {name: tensor.clone() for name, tensor in self.state_dict().items()}
            network = self.built(self.config, state).eval().requires_grad_(False)
        if self.any_order:
            pack(network)
            return Cached(network)
        if remembers and self.first is None:
            network.first = FirstProjections()
        return network

    def for_bound(self) -> nn.Module:
        """A self-conditioned network is mu(x, t) = F(x, t, F(x, t)) in a bound, with nothing remembered."""
        return SelfConditioned(self, remember=False) if self.config.self_conditioning else self

    def _check(self, tokens: Tensor) -> None:
        if tokens.ndim != 2 or tokens.dtype != torch.int64:
            raise ValueError(f"tokens must be int64 [batch, length], got {tokens.dtype} {tuple(tokens.shape)}")

    def _seen(self, view: View, tokens: Tensor, time: Tensor | None) -> Tensor:
        """The final states of a view's rows."""
        x, c, table, sight = self._before_last(tokens, time, None, view)
        assert sight is not None
        return self.last_states(x, c, table, view.rows, take_rows(sight.mask, view.rows), sight.neighbours)

    def _before_last(
        self, tokens: Tensor, time: Tensor | None, previous: Tensor | None, view: View | None = None
    ) -> tuple[Tensor, Tensor | None, Table, Sight | None]:
        """The last block's input, the conditioning, the rotary table and who sees whom."""
        c = self._conditioning(tokens, time)
        first = self.first if torch.is_inference_mode_enabled() and not plain(self.vocab_embed.embedding) else None
        if first is not None and len(self.blocks) > 1 and tokens.numel():
            x = self._embedded(tokens, time, previous)
            table, projected = first(self.blocks[0], tokens, x, self.rotary_emb)
            return self.body(x, c, table, first=projected), c, table, None
        table = self.rotary_emb(0, tokens.shape[1])
        if view is None:
            return self.body(self._embedded(tokens, time, previous), c, table), c, table, None
        table, sight = (table[0][view.positions], table[1][view.positions]), view.sight(self.config.convolution)
        return self.body(self._embedded(view.tokens, time, previous), c, table, sight), c, table, sight

    def _conditioning(self, tokens: Tensor, time: Tensor | None) -> Tensor | None:
        """c [B, cond_dim] from the time or the masked ratio, or [1, cond_dim] where it is a constant."""
        if self.config.conditioning == "none" or self.sigma_map is None:
            return self.constant_conditioning()
        if self.config.conditioning == "ratio":
            level = (tokens == self.mask_id).double().mean(1)
        elif time is None:
            raise ValueError("this network is conditioned on the time: call it with time, float [batch]")
        else:
            level = time.to(tokens.device).double().expand(len(tokens))
        if self.config.time_embedding == "sigma":
            level = -torch.log((1 - level).clamp(min=SMALLEST_ALPHA))
        else:
            level = 1000 * level  # where the frequencies 1 .. 1e-4 tell the times in [0, 1] apart
        conditioning: Tensor = self.sigma_map(level)
        return conditioning

    def _embedded(self, tokens: Tensor, time: Tensor | None, previous: Tensor | None) -> Tensor:
        """Embedded tokens, joined by the network's own prediction F_{theta^-} if it is self-conditioned.

        The prediction is given as the final states: the logits are a linear map of them, so nothing is lost and no
        [B, L, V] tensor is made. In training it is blank half of the time and otherwise comes from a pass without
        gradients; otherwise it is ``previous``, or blank.
        """
        x: Tensor = self.vocab_embed(tokens)
        if not self.config.self_conditioning:
            if previous is not None:
                raise ValueError("previous is for a network with self_conditioning=True")
            return x
        if previous is None:
            previous = torch.zeros_like(x)
            if self.training and float(torch.rand(())) < 0.5:
                with torch.no_grad():
                    previous = self.states(tokens, time, previous=previous)
        projected: Tensor = self.self_condition(torch.cat((x, previous.detach()), -1))
        return projected
