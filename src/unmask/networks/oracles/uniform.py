"""The optimal network of uniform-state diffusion for a known joint distribution.

It returns log nu(v) = log p(x0^l = v | the other positions of the state x), the minimiser of the bound of
``unmask.uniform``. A noisy token x^k says alpha [v = x^k] + (1 - alpha)/V about its clean one, so nu is the
posterior of a masked oracle with soft evidence everywhere but at l. It reads the time, through alpha.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unmask.networks.oracles.baum_welch import forward_backward
from unmask.networks.oracles.enumerated import EnumeratedOracle
from unmask.networks.oracles.hidden_markov import HiddenMarkovOracle
from unmask.networks.oracles.tables import check_complete, check_rows
from unmask.processes.uniform import Uniform
from unmask.schedule import Linear, Schedule
from unmask.uniform import SMALLEST

LINEAR = Linear()


@dataclass(frozen=True)
class UniformOracle:
    """nu of an enumerated joint or a (hidden) Markov chain, as a denoiser."""

    joint: EnumeratedOracle | HiddenMarkovOracle
    schedule: Schedule = LINEAR

    process: ClassVar[Uniform] = Uniform()

    @property
    def vocab_size(self) -> int:
        return self.joint.vocab_size

    @property
    def mask_id(self) -> int:
        """V: no token, where a canvas has none yet."""
        return self.joint.vocab_size

    def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """log nu, float64 [B, R, V], at states int64 [B, L] and times [B]."""
        if time is None:
            raise ValueError(f"time is needed: a float tensor [{len(tokens)}], got None")
        tokens = check_complete(tokens, self.vocab_size, self.mask_id)
        alpha = self.schedule.alpha(time).clamp(SMALLEST, 1 - SMALLEST)[:, None]
        joint = self.joint
        nu = enumerated(joint, tokens, alpha) if isinstance(joint, EnumeratedOracle) else chain(joint, tokens, alpha)
        return nu[torch.arange(len(tokens)).unsqueeze(1), check_rows(rows, tokens)].log()

    def log_likelihood(self, tokens: Tensor) -> Tensor:
        """log p(tokens) in nats, [B]."""
        return self.joint.log_likelihood(tokens)


def enumerated(oracle: EnumeratedOracle, x: Tensor, alpha: Tensor) -> Tensor:
    """nu [B, L, V] as a sum over all sequences; x is [B, L] and alpha [B, 1]."""
    size, length = oracle.vocab_size, oracle.length
    every = torch.cartesian_prod(*[torch.arange(size)] * length).view(-1, length)
    q = alpha.unsqueeze(2) * (x.unsqueeze(1) == every) + ((1 - alpha) / size).unsqueeze(2)  # [B, S, L]
    nu = torch.zeros(*x.shape, size, dtype=torch.float64)
    for at in range(length):
        others = torch.cat((q[..., :at], q[..., at + 1 :]), 2).prod(2) * oracle.joint.flatten()
        nu[:, at].index_add_(1, every[:, at], others)
    return nu / nu.sum(2, keepdim=True)


def chain(oracle: HiddenMarkovOracle, x: Tensor, alpha: Tensor) -> Tensor:
    """nu [B, L, V] by forward-backward with soft evidence [L, B, S]."""
    soft = alpha.T.unsqueeze(2) * oracle.emission.T[x.T] + ((1 - alpha) / oracle.vocab_size).T.unsqueeze(2)
    forward, _, backward = forward_backward(x, soft, oracle.initial, oracle.transition)
    posterior = (forward * backward).transpose(0, 1)
    return (posterior / posterior.sum(2, keepdim=True)) @ oracle.emission
