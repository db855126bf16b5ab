"""Uniform state: tokens are replaced by random ones, not by a mask.

At time t a token is still the one of the data with probability alpha, and otherwise uniform over the V ids, so

    q(z | x0) = alpha [z = x0] + (1 - alpha) / V

The network sees such a state x, never a mask. ``mask_id`` is V: on a canvas it marks a position without a token, to
which the sampler gives a random one before the first call.

What the network predicts is nu(v) = p(x0^l = v | the other positions of x). The token of l itself adds its likelihood,

    mu(v) = p(x0^l = v | x) ~ nu(v) q(x^l | v)        p(x^l = y | the others) = q(y | nu) = sum_v nu(v) q(y | v)

so the ratios p(x with y at l) / p(x), on which every reverse process and the bound depend, are q(y | nu) / q(x^l | nu).
This is the parameterisation of UDLM and DUO: substituting the network for x0 in the posterior of one token is exact for
nu, and not for E[x0^l | x] = mu. A network that ``scores`` predicts q(. | nu) instead: SEDD's log-ratios.

In the forward process tokens are replaced again and again, at the rate -alpha'/alpha. With the ratios
r(y) = q(y | x0) / q(x^l | x0) and s(y) = q(y | nu) / q(x^l | nu), and phi(u) = e^u - 1 - u, its paths give

    -log p(x0) <= int -alpha'/alpha E_x [ sum_l 1/V sum_y r(y) phi(log s(y) - log r(y)) ] dt

in which the expectation over the next jump y is computed and not drawn, for tokens that were replaced and for those
that were not. No term is negative, and for the true nu it is -log p(x0). It is the bound of SEDD, UDLM and DUO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from unmask.errors import OptionError
from unmask.masking import Masking, Uniforms
from unmask.network import logits_where
from unmask.options import Options
from unmask.processes.process import By, Process, at_least_float32
from unmask.protocol import Denoiser
from unmask.sampler import Sampler
from unmask.schedule import Linear, Schedule

SMALLEST = 2.0**-53  # of alpha and 1 - alpha: at the ends the rate is infinite, and its integrand 0 / 0
WHOLE = "a uniform-state model cannot tell given tokens from random ones"
REDRAWS = "a uniform-state model redraws random positions: it takes no {it}"


@dataclass(frozen=True)
class Uniform(Process):
    """Every position holds a token at any time, and may change more than once."""

    name = "uniform"
    phrase = "a uniform-state model"
    chooses = False
    orders = "with the fewest jumps"
    in_steps = "uniform-ancestral"
    objectives = ("time",)
    settings: ClassVar[Mapping[str, Any]] = {"uniform": True}
    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("plan", "predict", "predictor", "decoding", "ahead", "draft", "guide", "stop", "allowed"), REDRAWS
        ),
        **dict.fromkeys(("presence_penalty", "frequency_penalty", "adaptive", "n"), REDRAWS),
        **dict.fromkeys(("prompt", "text"), WHOLE + ": it draws whole texts and takes no {it}"),
        **dict.fromkeys(("fill_blanks", "score_continuations", "be_measured_by_steps"), WHOLE + ": it cannot {it}"),
        **dict.fromkeys(
            ("by=count", "by=order", "by=mixture", "by=left-to-right"),
            "a uniform-state model has no masked tokens to count and no order: its bound takes by='time' alone",
        ),
        "where": WHOLE + ": its bound takes no where",
        "orders": "a uniform-state model has no order of positions: unmask.nelbo bounds its likelihood",
        "profile": "a uniform-state model has no order of positions, and no profile over them",
    }

    reads_time: bool = True  # whether the network's output depends on the time
    scores: bool = False  # whether it predicts the noisy token q(. | nu), and not nu

    def check_sampler(self, sampler: Sampler | None) -> None:
        if sampler is not None and getattr(sampler, "process", None) != self.name:
            name = type(sampler).__name__
            raise OptionError("sampler", f"{self.phrase} takes a sampler of unmask.samplers.uniform, not {name}")

    def check(self, model: Denoiser, canvas: Tensor, options: Options) -> None:
        super().check(model, canvas, options)
        if model.mask_id != model.vocab_size:
            says = f"a uniform-state model has no mask: its mask_id must be {model.vocab_size}, got {model.mask_id}"
            raise ValueError(says)
        if bool((canvas != model.mask_id).any()):
            raise OptionError("canvas", f"{WHOLE}: every position of its canvas must be {model.mask_id}")

    @property
    def order(self) -> str:
        return "uniformised"

    @property
    def default_by(self) -> By:
        return "time"

    def law(self, by: By) -> str:
        """The bound is of the reverse of the forward process; the default sampler takes the jumps that are needed."""
        return f"by jumps back and forth (by default, sampling draws {self.orders})"

    def sampler(self, options: Options) -> Sampler:
        from unmask.samplers.uniform import Ancestral, Uniformised

        if isinstance(options.sampler, Ancestral):
            return replace(options.sampler, scores=self.scores)
        if options.steps is None:
            chosen = options.sampler if isinstance(options.sampler, Uniformised) else Uniformised()
            return replace(chosen, scores=self.scores, reads_time=self.reads_time)
        if options.sampler is not None:
            raise OptionError("steps", "the uniformised sampler draws its number of steps: leave steps out")
        return Ancestral(scores=self.scores)

    def masking(
        self, objective: str, u: Uniforms, *, schedule: Schedule | None = None, where: Tensor | None = None, **how: Any
    ) -> Masking:
        """A time for each sequence; ``when`` holds each position's replacement in 0..1, -1 if it has none, and alpha.

        One uniform number is enough for a position: below alpha its token is kept, and what remains of it is uniform.
        """
        if where is not None and not bool(where.all()):
            raise OptionError("where", self.refused["where"])
        keys, schedule = u.keys, schedule or Linear()
        alpha, slope = stretched(schedule, u.t.to(keys.device))
        level = alpha.unsqueeze(1)
        replaced = torch.where(keys < level, -1.0, (keys - level) / (1 - level))
        when = torch.stack((replaced, level.expand_as(keys)), 2)
        return Masking(torch.ones_like(keys, dtype=torch.bool), schedule.inverse(alpha), -slope / alpha, when)

    def terms(self, model: Any, x0: Tensor, masking: Masking, objective: str = "time") -> Tensor:
        assert masking.when is not None
        replaced, alpha = masking.when.unbind(2)
        x = noised(x0, replaced, model.vocab_size)
        logits = at_least_float32(logits_where(model, x, masking.time, masking.masked))
        now, target, level = x[masking.at], x0[masking.at], alpha[masking.at]
        return masking.summed(score_entropies(logits, now, target, level, scores=self.scores))

    def states(self, network: Any, x0: Tensor, masking: Masking, objective: str) -> Tensor | None:
        return None

    def validated(self, objective: str) -> str:
        return "time"

    def along_order(self, model: Any, x0: Tensor, order: Tensor, *, time: Tensor | None = None) -> Tensor:
        raise OptionError("orders", self.refused["orders"])

    def per_position(self, model: Denoiser, x0: Tensor, where: Tensor) -> Tensor:
        raise OptionError("orders", self.refused["orders"])


def stretched(schedule: Schedule, t: Tensor) -> tuple[Tensor, Tensor]:
    """alpha at times t and its slope, stretched so that it runs from 1 at t = 0 to 0 at t = 1 under every schedule.

    The process starts from noise without a trace of the data and ends with data, and a bound over less is none.
    """
    ends = schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64)).to(t.device)
    span = ends[0] - ends[1]
    alpha = ((schedule.alpha(t).to(t.device) - ends[1]) / span).clamp(SMALLEST, 1 - SMALLEST)
    return alpha, schedule.alpha_prime(t).to(t.device) / span


def noised(x0: Tensor, replaced: Tensor, vocab_size: int) -> Tensor:
    """The state [B, L]: each token replaced by the id at ``replaced`` in 0..1, or kept where that is negative."""
    ids = (replaced * vocab_size).long().clamp(0, vocab_size - 1)  # in float32 a number just below 1 may become 1
    return torch.where(replaced < 0, x0, ids)


def noisy(nu: Tensor, alpha: Tensor) -> Tensor:
    """q(y | nu) [M, V], the distribution of the state at a position, from that of its clean token and alpha [M]."""
    alpha = alpha.unsqueeze(1)
    return alpha.to(nu) * nu + ((1 - alpha) / nu.shape[1]).to(nu)


def log_noisy(logits: Tensor, alpha: Tensor, *, scores: bool) -> Tensor:
    """log q(y | nu) [M, V] of a network's logits."""
    return logits.log_softmax(1) if scores else noisy(logits.softmax(1), alpha).log()


def clean(log_p: Tensor, alpha: Tensor, *, scores: bool) -> Tensor:
    """nu [M, V] from a network's normalised output. A score that no clean token explains counts as probability 0."""
    if not scores:
        return log_p.exp()
    alpha = alpha.unsqueeze(1).to(log_p)
    nu = ((log_p.exp() - (1 - alpha) / log_p.shape[1]) / alpha).clamp(min=0)
    return nu / nu.sum(1, keepdim=True)


def posterior(nu: Tensor, x: Tensor, alpha_s: Tensor, alpha_t: Tensor) -> Tensor:
    """p(x_s = y | x_t) [M, V] of each position, up to a factor, from nu [M, V], x_t [M], alpha_s and alpha_t [M].

    It is q(y | nu) at s times the probability that y becomes x_t; at alpha_s = 1 it is mu.
    """
    kept = (alpha_t / alpha_s).unsqueeze(1).to(nu)
    at_s, index = noisy(nu, alpha_s), x.unsqueeze(1)
    return (at_s * (1 - kept) / nu.shape[1]).scatter_add(1, index, at_s.gather(1, index) * kept)


def score_entropies(logits: Tensor, x: Tensor, x0: Tensor, alpha: Tensor, *, scores: bool = False) -> Tensor:
    """1/V sum_y r(y) phi(log s(y) - log r(y)) of each position, [M], from logits [M, V], x, x0 and alpha [M]."""
    here, vocab_size = x.unsqueeze(1), logits.shape[1]
    log_s = log_noisy(logits, alpha, scores=scores)
    log_s = log_s - log_s.gather(1, here)
    kept, other = (alpha + (1 - alpha) / vocab_size).log(), ((1 - alpha) / vocab_size).log()
    log_q = other.unsqueeze(1).to(log_s).expand_as(log_s).scatter(1, x0.unsqueeze(1), kept.unsqueeze(1).to(log_s))
    log_r = log_q - log_q.gather(1, here)
    u = log_s - log_r
    return (log_r.exp() * (u.expm1() - u)).sum(1) / vocab_size
