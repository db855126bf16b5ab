"""Draws: from a distribution and the noise of a position to a token id, at a stated precision.

A draw is any callable ``(logits [R, V], noise) -> ids [R]``, in which a row's id depends only on its logits and its row
of the noise. The default, ``exponential_race``, and ``inverse_cdf`` are exact to float64. ``gumbel(dtype)`` and
``truncated(M)`` reproduce published code for comparison; they are never a default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import update_wrapper
from typing import Any

import torch
from torch import Tensor

from unmask.devices import upload
from unmask.errors import check_number
from unmask.noise import Noise

Draw = Callable[[Tensor, Noise], Tensor]


class NamedDraw:
    """A draw that is shown by its name, as in ``help(unmask.sample)``, where a function is shown by its address."""

    def __init__(self, draw: Draw) -> None:
        update_wrapper(self, draw)
        self._draw = draw

    def __call__(self, logits: Tensor, noise: Noise) -> Tensor:
        return self._draw(logits, noise)

    def __repr__(self) -> str:
        return f"{self.__module__}.{self.__reduce__()}"

    def __reduce__(self) -> str:
        """Its name in its module, by which it is copied and pickled."""
        return self._draw.__name__


@NamedDraw
def exponential_race(logits: Tensor, noise: Noise) -> Tensor:
    """The first of V exponential clocks with rates pi to ring: argmax_i log pi_i - log E_i, in float64.

    With the same noise, two distributions that hardly differ give the same id, except with a probability of the order
    of their total variation distance. This makes sampling insensitive to rounding.
    """
    _check_rows(logits)
    kernel = _kernel(logits.device)
    ids, values = race(logits, noise) if kernel is None else kernel(logits, upload(noise.keys, logits.device))
    _refuse_unless(values.isfinite().all())  # NaN and +inf win, and so does -inf if there is nothing else
    return ids


def race(logits: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """The winner of each row [R, V], and its value log pi - log E in float64."""
    ids, winners, start = [], [], 0
    for log_clocks in noise.log_clocks(logits.shape[-1], device=logits.device):
        values = logits[start : start + len(log_clocks)] - log_clocks
        start += len(log_clocks)
        ids.append(values.argmax(-1))
        winners.append(values.gather(-1, ids[-1].unsqueeze(-1)))
    if not ids:
        return torch.empty(0, dtype=torch.int64, device=logits.device), torch.empty(0, device=logits.device)
    return torch.cat(ids), torch.cat(winners).squeeze(-1)


def _kernel(device: torch.device) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """The fused race, on CUDA where Triton is installed and draws what torch draws."""
    if device.type != "cuda":
        return None
    try:
        from unmask import fused
    except ImportError:
        return None
    return fused.race if fused.sound(device, race) else None


@NamedDraw
def inverse_cdf(logits: Tensor, noise: Noise) -> Tensor:
    """The first id whose cumulative probability exceeds u ~ U(0, 1): one uniform per row, exact to float64."""
    cumulative = _weights(logits).cumsum(-1)
    u = noise.uniform(device=logits.device).unsqueeze(-1)
    # u < 1, so u * total < total in float64 too; `right` passes over ids of probability zero.
    ids = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True).squeeze(-1)
    return ids.clamp(max=logits.shape[-1] - 1)  # V itself results only from NaN, which is refused later


def gumbel(dtype: torch.dtype) -> Draw:
    """The Gumbel-max trick with its uniforms in ``dtype``: argmax_i log pi_i - log(-log u_i).

    In float32 u is at most 1 - 2^-24, so no Gumbel exceeds 16.6355: this is the truncation of Sec. 5.
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"gumbel(dtype) takes a floating-point torch dtype, for example torch.float64, got {dtype!r}")

    def gumbel_max(logits: Tensor, noise: Noise) -> Tensor:
        _weights(logits)  # refuses rows that are not a distribution
        u = noise.uniform(logits.shape[-1], dtype=dtype, device=logits.device)
        u = u.clamp(min=torch.finfo(dtype).tiny)  # g = -inf would tie with an id of probability zero
        return (logits.double() - torch.log(-torch.log(u)).double()).argmax(-1)

    gumbel_max.__name__ = f"gumbel_{str(dtype).removeprefix('torch.')}"
    return gumbel_max


def truncated(maximum: float) -> Draw:
    """Gumbel-max with float64 Gumbels conditioned on g <= M (Prop. 5.2): the effect of truncation alone.

    ``truncated(theory.maximum_gumbel("float32"))`` is the paper's "64-bit + trunc".
    """
    if not math.isfinite(maximum):
        raise ValueError(f"truncated(maximum) takes a finite largest Gumbel, got {maximum}")
    ceiling = math.exp(-math.exp(-maximum))  # F(M): scaled uniforms never pass it

    def truncated_gumbel_max(logits: Tensor, noise: Noise) -> Tensor:
        _weights(logits)
        u = noise.uniform(logits.shape[-1], device=logits.device).clamp(min=2.0**-54) * ceiling
        return (logits.double() - torch.log(-torch.log(u))).argmax(-1)

    return truncated_gumbel_max


def gumbel_softmax(
    logits: Tensor, *, temperature: float, generator: torch.Generator, dtype: torch.dtype = torch.float64
) -> Tensor:
    """The Gumbel-softmax distribution (App. on Gumbel tricks): softmax((log pi + g)/T), with gradients."""
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    u = torch.rand(logits.shape, dtype=dtype, generator=generator, device=generator.device).to(logits.device)
    g = -torch.log(-torch.log(u.clamp(min=torch.finfo(dtype).tiny)))
    return torch.softmax((logits.to(dtype) + g) / temperature, dim=-1)


def bounded(default: Any, *, whole: bool = False, **bounds: float) -> Any:
    """A field for a number with bounds (ge, gt, le), which are checked here and declared by the HTTP API."""
    return field(default=default, metadata={"whole": whole, **bounds})


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """How a distribution is changed before a token is drawn from it."""

    temperature: float = bounded(1.0, ge=0)
    """The softmax temperature. 0 takes the most likely token."""
    top_k: int | None = bounded(None, whole=True, ge=1)
    """Draw from the k most likely tokens."""
    top_p: float | None = bounded(None, gt=0, le=1)
    """Draw from the smallest set of tokens whose total probability is at least p."""
    min_p: float | None = bounded(None, ge=0, le=1)
    """Drop tokens that are less than this times as likely as the most likely one."""
    logit_bias: Mapping[int, float] | None = None
    """Token ids, and what is added to their logits."""
    presence_penalty: float = bounded(0.0)
    """Subtracted from the logit of every token that was drawn before. It needs one token per call."""
    frequency_penalty: float = bounded(0.0)
    """The same, for each time that a token was drawn."""

    def __post_init__(self) -> None:
        check_bounds(self)
        for key, value in (self.logit_bias or {}).items():
            check_number("logit_bias", key, whole=True, ge=0)
            check_number("logit_bias", value)

    @property
    def penalises(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty)

    def penalty(self, counts: Tensor) -> Tensor:
        """The amount subtracted from the log-weights of ids that were drawn this often."""
        return self.presence_penalty * (counts > 0) + self.frequency_penalty * counts

    def shaped(self, logits: Tensor) -> Tensor:
        """Add the biases, apply the temperature, and drop unlikely ids: float64 log-weights.

        First the k most likely ids are kept, then the smallest set of probability p, then the ids at least min_p times
        as likely as the most likely one. Temperature 0 keeps only the most likely id (the first, among ties).
        """
        temperature, top_k, top_p = self.temperature, self.top_k, self.top_p
        logits = logits.double()
        if self.logit_bias:
            index = upload(torch.tensor([*self.logit_bias]), logits.device)
            added = upload(torch.tensor([*self.logit_bias.values()], dtype=logits.dtype), logits.device)
            logits = logits.index_add(-1, index, added.expand(*logits.shape[:-1], -1))
        if temperature == 0:
            best = logits.argmax(-1, keepdim=True)
            return torch.full_like(logits, -torch.inf).scatter(-1, best, 0.0)
        if temperature != 1:
            # Relative to the most likely id, so that nothing overflows at any temperature.
            logits = (logits - logits.amax(-1, keepdim=True)) / temperature
        if top_k is not None and top_k < logits.shape[-1]:
            kept = logits.topk(top_k, dim=-1)
            logits = torch.full_like(logits, -torch.inf).scatter(-1, kept.indices, kept.values)
        if top_p is not None and top_p < 1:
            order = logits.argsort(dim=-1, descending=True, stable=True)
            probabilities = torch.softmax(logits, -1).gather(-1, order)
            before = probabilities.cumsum(-1) - probabilities
            dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= top_p)
            logits = logits.masked_fill(dropped, -torch.inf)
        if self.min_p:
            logits = logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(self.min_p), -torch.inf)
        return logits


def check_bounds(options: Any) -> None:
    """Refuse numbers of a dataclass that are outside the bounds of their fields."""
    for one in fields(options):
        value = getattr(options, one.name)
        if "whole" in one.metadata and value is not None:
            check_number(one.name, value, **one.metadata)


def shaped(logits: Tensor, **shape: Any) -> Tensor:
    """``Shaping(...).shaped(logits)``: float64 log-weights."""
    return Shaping(**shape).shaped(logits)


@dataclass(frozen=True)
class Pick(Shaping):
    """How tokens are drawn: shape the distribution, draw an id, and report its probability."""

    draw: Draw = exponential_race

    def __hash__(self) -> int:
        bias = None if self.logit_bias is None else tuple(sorted(self.logit_bias.items()))
        return hash((*(getattr(self, one.name) for one in fields(self) if one.name != "logit_bias"), bias))

    def __call__(self, log_weights: Tensor, noise: Noise, *, normalised: bool = False) -> tuple[Tensor, Tensor]:
        """An id for each row [M, V], and its probability under the distribution it was drawn from.

        normalised: the log-weights are log-probabilities already.
        """
        logits = self.shaped(log_weights)
        ids = self.draw(logits, noise)
        chosen = logits.gather(1, ids.unsqueeze(1)).squeeze(1)
        if not (normalised and logits is log_weights):
            chosen = chosen - logits.logsumexp(1)
        return ids, chosen.exp()


def _weights(logits: Tensor) -> Tensor:
    """exp(logits - max) in float64, refusing rows that are not a distribution."""
    _check_rows(logits)
    logits = logits.double()
    weights = torch.exp(logits - logits.amax(-1, keepdim=True))
    _refuse_unless(weights.sum(-1).isfinite().all())
    return weights


def _check_rows(logits: Tensor) -> None:
    if logits.ndim != 2 or logits.shape[-1] < 1 or not logits.is_floating_point():
        raise ValueError(f"logits must be floating-point [rows, classes], got {logits.dtype} {tuple(logits.shape)}")


def _refuse_unless(finite: Tensor) -> None:
    refuse(~finite, "logits must have no NaN and no +inf, and at least one id per row that is not -inf")


class Faults:
    """Errors found during a run, kept on the device, because reading them there would make the host wait."""

    def __init__(self) -> None:
        self.found: dict[str, Tensor] = {}

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Inside, ``refuse`` records an error and continues."""
        token = _collector.set(self)
        try:
            yield
        finally:
            _collector.reset(token)

    def check(self) -> None:
        """Raise the ValueError of the first recorded error, if any. The host waits once."""
        if not self.found:
            return
        for message, wrong in zip(self.found, torch.stack([*self.found.values()]).cpu().tolist(), strict=True):
            if wrong:
                raise ValueError(message)


_collector: ContextVar[Faults | None] = ContextVar("_collector", default=None)


def refuse(wrong: Tensor, message: str) -> None:
    """ValueError(message) if the boolean is true: now, or when the ``Faults`` being collected are checked."""
    faults = _collector.get()
    if faults is not None:
        before = faults.found.get(message)
        faults.found[message] = wrong if before is None else before | wrong
    elif bool(wrong):
        raise ValueError(message)
