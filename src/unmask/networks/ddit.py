"""The paper's network: a bidirectional transformer with rotary positions and adaLN conditioning (DDiT).

Parameter names and shapes are those of the published SEDD and MDLM checkpoints. Trained with the score entropy it is
SEDD's network (``unmask.objective.score_entropy``). This file is for reading and training; sampling calls the result of
``for_sampling()``, which gives the same logits faster (``unmask.networks.cache``).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unmask.devices import widest
from unmask.networks.attention import inside
from unmask.networks.config import PRESETS, DDiTConfig, preset
from unmask.networks.masked import MaskedNetwork

__all__ = ["PRESETS", "DDiT", "DDiTConfig", "preset"]


class DDiT(MaskedNetwork):
    """The paper's denoiser: logits = model(tokens, time, rows).

    Another conditioning of the same weights is another config: ``model.config = replace(model.config,
    conditioning="time")`` feeds the time to a checkpoint that was trained without it.
    """

    architecture = "ddit"
    config_class = DDiTConfig
    config: DDiTConfig

    @property
    def conditioned(self) -> bool:
        return self.config.conditioning != "none"

    @property
    def reads_position_alone(self) -> bool:
        return not self.conditioned

    def conditioning(self, tokens: Tensor, time: Tensor | None, lengths: Tensor | None = None) -> Tensor | None:
        """c [B, cond_dim] from the time or the masked ratio, or [1, cond_dim] if it is constant."""
        if not self.conditioned or self.sigma_map is None:
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


def masked_ratio(masked: Tensor, lengths: Tensor | None) -> Tensor:
    """The masked fraction of each sequence: float64 [B]."""
    if lengths is None:
        return masked.to(widest(masked.device)).mean(1)
    return (masked & inside(lengths, masked.shape[1])).sum(1).to(widest(masked.device)) / lengths
