"""Predictors: from the network outputs of this call, and perhaps of the last one, to one distribution per row.

``first_order`` uses the prediction of the network. ``extrapolate`` and ``correct`` are the paper's two second-order
variants; neither costs a network call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from unmask.devices import home
from unmask.draw import refuse
from unmask.noise import Streams, rows_at_once
from unmask.plan import Plan
from unmask.protocol import Batched


@dataclass(frozen=True)
class Prediction(Batched):
    """log mu at some rows, [M, V] in float64, and the time [M] at which the network was called for it."""

    log_mu: Tensor
    time: Tensor


def _as_planned(plan: Plan, streams: Streams) -> Plan:
    return plan


def _as_predicted(now: Prediction, before: Prediction | None, tau: Tensor) -> Tensor:
    return now.log_mu


@dataclass(frozen=True)
class Predictor:
    """How predictions become a distribution, and what that requires of the plan.

    ``combine(now, before, tau)`` gives log-weights [M, V] for rows hit at tau [M]; ``before`` is the last call's
    prediction at the same rows, if ``lookahead`` requested them one call ahead. ``prepare`` makes the further random
    choices that the plan needs.
    """

    combine: Callable[[Prediction, Prediction | None, Tensor], Tensor] = _as_predicted
    lookahead: bool = False
    prepare: Callable[[Plan, Streams], Plan] = _as_planned

    def __repr__(self) -> str:
        """Its name in this module, or the names of what it is made of: a function is shown by its address."""
        known = [name for name, one in globals().items() if isinstance(one, Predictor) and one == self]
        if known:
            return f"{__name__}.{known[0]}"
        combine, prepare = (getattr(one, "__name__", repr(one)) for one in (self.combine, self.prepare))
        return f"Predictor(combine={combine}, lookahead={self.lookahead}, prepare={prepare})"

    @property
    def plain(self) -> bool:
        """Whether it is of first order: tokens are drawn from this call's prediction, once."""
        return not (self.combines or self.corrects or self.lookahead)

    @property
    def combines(self) -> bool:
        """Whether the distribution differs from this call's prediction, so that it must be normalised again."""
        return self.combine is not _as_predicted

    @property
    def corrects(self) -> bool:
        """Whether positions are chosen again, so that a filled token may change."""
        return self.prepare is not _as_planned


@torch.no_grad()
def log_mean(logits: Tensor) -> Tensor:
    """Equation 4 at masked rows [M, V]: log mu = log softmax(f), normalised in float64 and nowhere else.

    On the logits' device, or on the CPU if that has no float64.
    """
    logits = logits.to(home(logits.device))
    log_mu, rows = torch.empty_like(logits, dtype=torch.float64), rows_at_once(logits.shape[-1], logits.device)
    for part, into in zip(torch.split(logits, rows), torch.split(log_mu, rows), strict=True):
        torch.log_softmax(part.double(), -1, out=into)
    check_normalised(log_mu)
    return log_mu


def check_normalised(log_mu: Tensor) -> None:
    """Refuse rows that came from no distribution. One NaN makes the whole row NaN: the first column shows it."""
    refuse(
        log_mu[..., :1].isnan().any(),
        "the model returned logits that are no distribution at a masked position: NaN, +inf, or -inf for every id",
    )


def lagrange(now: Prediction, before: Prediction | None, tau: Tensor) -> Tensor:
    """Algorithm 3: the line through the last two predictions, extrapolated to the row's hitting time.

    mu^ = (tau - tau~)/(tau_c - tau~) mu + (tau - tau_c)/(tau~ - tau_c) mu~, with tau_c and tau~ the times of this call
    and of the last. Values below 0 are set to 0, and the draw renormalises the rest.
    """
    if before is None:
        return now.log_mu
    span = before.time - now.time
    # Two calls at the same time (where a schedule is flat) define no line: the newer prediction is used.
    ahead = torch.where(span > 0, (now.time - tau) / span, 0.0).unsqueeze(-1)
    mu = (1 + ahead) * now.log_mu.exp() - ahead * before.log_mu.exp()
    return mu.clamp(min=0).log()


def rechoose(plan: Plan, streams: Streams) -> Plan:
    """Algorithm 4's two choices: ``order`` is the corrected one, ``tentative`` holds each step's first choice.

    A step's tentative positions are uniform among those that the corrected steps before it leave masked. The last step
    is not corrected: both choices are what is left.
    """
    u = streams.at("tentative choice", plan.order.shape[1]).uniform().tolist()
    tentative = plan.order.clone()
    for row, (starts, calls, holes) in enumerate(
        zip(plan.starts.tolist(), plan.calls.tolist(), plan.holes.tolist(), strict=True)
    ):
        for first, end in pairwise(starts[:calls]):  # every step but the last
            chosen = _subset(holes - first, u[row][first:end])
            tentative[row, first:end] = plan.order[row, first:holes][chosen]
    return replace(plan, tentative=tentative)


def _subset(size: int, u: list[float]) -> list[int]:
    """Distinct indices below size, uniform over subsets, from one uniform each: Fisher and Yates, cut short."""
    moved: dict[int, int] = {}
    chosen = []
    for i, value in enumerate(u):
        j = i + int(value * (size - i))
        chosen.append(moved.get(j, j))
        moved[j] = moved.get(i, i)
    return chosen


first_order = Predictor()
"""Algorithms 1 and 2: draw from this call's prediction."""

extrapolate = Predictor(combine=lagrange, lookahead=True)
"""Algorithm 3: extrapolate the last two predictions to each row's own hitting time."""

correct = Predictor(prepare=rechoose)
"""Algorithm 4: choose and draw each group again with the prediction that followed it."""


def auto(steps: int) -> Predictor:
    """The paper's rule for the second order: extrapolate up to 128 steps, correct beyond."""
    return extrapolate if steps <= 128 else correct
