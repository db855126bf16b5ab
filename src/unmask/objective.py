"""The objectives, all with one estimator: draw a masking (``unmask.masking``), then compute its terms.

A term is the network's loss at the masked positions: the cross-entropy, or SEDD's score entropy. Weight times term is
an unbiased estimate per sequence, in nats. Training, bounds and conditional bounds differ only in where the uniforms of
their maskings come from.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unmask import checks
from unmask.forward import uniforms
from unmask.masking import Masking
from unmask.processes import Process, process_of
from unmask.processes.process import at_least_float32
from unmask.protocol import Denoiser
from unmask.schedule import Schedule


def cross_entropy(model: Denoiser, x0: Tensor, masking: Masking) -> Tensor:
    """Sum over the masked positions of -log mu(x)[x0], per sequence: [B], or [B, N] per block."""
    return process_of(model).terms(model, x0, masking)


def score_terms(model: Denoiser, x0: Tensor, masking: Masking) -> Tensor:
    """Sum over the masked positions of sum_x e^f_x - f_x0 - 1, per sequence: [B] (``processes.score_entropies``)."""
    return process_of(model).terms(model, x0, masking, "score-entropy")


def nelbo_by_time(
    model: Denoiser,
    x0: Tensor,
    t: Tensor,
    *,
    generator: torch.Generator,
    schedule: Schedule | None = None,
    where: Tensor | None = None,
) -> Tensor:
    """Equation 6: the NELBO as an integral over time, at one t ~ U(0, 1) and one x_t per sequence.

    With ``where``: the NELBO of these positions given the others, at t_start times t.
    """
    x0 = checks.complete(model, x0, "x0")
    masking = _drawn_by_time(model, x0, checks.times(t, x0), checks.generator(generator), schedule, where)
    return masking.weighted(cross_entropy(model, x0, masking))


def score_entropy(
    model: Denoiser,
    x0: Tensor,
    t: Tensor,
    *,
    generator: torch.Generator,
    schedule: Schedule | None = None,
    where: Tensor | None = None,
) -> Tensor:
    """SEDD's diffusion-weighted denoising score entropy (DWDSE) in the absorbing case, at one t ~ U(0, 1).

    sigma(t) sum_x I(s_x, r delta_{x,x0}) = sigma(t) r (sum_x e^f_x - f_x0 - 1) with r = alpha/(1 - alpha) and
    s = r e^f; and sigma(t) r = -alpha'/(1 - alpha), the weight of Eq. 6.
    """
    x0 = checks.complete(model, x0, "x0")
    masking = _drawn_by_time(model, x0, checks.times(t, x0), checks.generator(generator), schedule, where)
    return masking.weighted(score_terms(model, x0, masking))


def nelbo_by_count(
    model: Denoiser,
    x0: Tensor,
    n: Tensor,
    *,
    generator: torch.Generator,
    schedule: Schedule | None = None,
    where: Tensor | None = None,
) -> Tensor:
    """Equation 7: the NELBO as a sum over the number of masked tokens, at one n ~ U{1..L} per sequence.

    A network that reads the time gets one draw of Eq. 8's mixture: alpha_n ~ Beta(L - n + 1, n). With ``where``: the
    NELBO of these H positions given the others, at one n ~ U{1..H}.
    """
    return weighted_cross_entropy(model, x0, n, weight=None, generator=generator, schedule=schedule, where=where)


def weighted_cross_entropy(
    model: Denoiser,
    x0: Tensor,
    n: Tensor,
    *,
    weight: Tensor | float | None,
    generator: torch.Generator,
    schedule: Schedule | None = None,
    where: Tensor | None = None,
) -> Tensor:
    """The general loss L_w of Sec. 3.2: ``weight`` times the summed cross-entropy at n masked tokens.

    Drawing n ~ p(n) with this weight gives w_n = p(n) weight. None is L/n, the NELBO if n is uniform (Eq. 7); 1 with
    uniform n is Mask-Predict; 1 with ``maskgit_count`` is MaskGIT. All have the same minimiser (Prop. 3.2).
    """
    x0 = checks.complete(model, x0, "x0")
    n, generator = checks.counts(n, x0), checks.generator(generator)
    process = process_of(model)
    process.require("n")
    keys, hits = uniforms(x0, generator), uniforms(x0, generator)
    u = process.pass_uniforms(n, torch.stack((keys, hits, _order(process, keys, generator)), 1))
    batch, length = x0.shape
    how: dict[str, Any] = {"schedule": schedule, "where": where, "count": (n, weight)}
    masking = process.masking("count", u, batch=batch, length=length, **how)
    return masking.weighted(cross_entropy(model, x0, masking))


def _drawn_by_time(
    model: Denoiser, x0: Tensor, t: Tensor, generator: torch.Generator, schedule: Schedule | None, where: Tensor | None
) -> Masking:
    """The masking of Eq. 6 for each sequence, or for each of its blocks."""
    process, keys = process_of(model), uniforms(x0, generator)
    u = process.pass_uniforms(t, torch.stack((keys, keys, _order(process, keys, generator)), 1))
    batch, length = x0.shape
    return process.masking("time", u, batch=batch, length=length, schedule=schedule, where=where)


def _order(process: Process, keys: Tensor, generator: torch.Generator) -> Tensor:
    """The order in which tokens became visible, [B, L]: drawn for a network that depends on it."""
    return uniforms(keys, generator) if process.reads_order else keys


def left_to_right(model: Denoiser, x0: Tensor) -> Tensor:
    """-log p(x0) of a left-to-right model, whose logits at l depend only on the tokens before l. [B] nats."""
    x0 = checks.ids(x0, "x0")
    logits: Tensor = at_least_float32(model(x0))
    losses = functional.cross_entropy(logits.flatten(0, 1), x0.flatten(), reduction="none")
    return losses.view_as(x0).sum(1)


def along_order(model: Denoiser, x0: Tensor, order: Tensor, *, time: Tensor | None = None) -> Tensor:
    """-sum_n log p(x^sigma(n) | x^sigma(<n)), the chain rule along the order sigma: [B] nats.

    order is int64 [B, K], positions in the order they become visible; positions outside it are visible throughout.
    One call of the network per position of the order, or one in all if its attention follows the order. time is [B, K]
    for a network that reads it.
    """
    return process_of(model).along_order(model, x0, order, time=time)


def per_sequence(values: Tensor, masked: Tensor) -> Tensor:
    """Sum packed values [M] at masked positions into their sequences [B]."""
    return values.new_zeros(len(masked)).index_add(0, masked.nonzero()[:, 0], values)
