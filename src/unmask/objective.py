"""The objectives, all with one estimator: draw a masking (``unmask.masking``), then compute its terms.

A term is the network's loss at the masked positions: the cross-entropy, or SEDD's score entropy. Weight times term is
an unbiased estimate per sequence, in nats. Training, bounds and conditional bounds differ only in where the uniforms of
their maskings come from.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unmask import checks
from unmask.forward import uniforms
from unmask.masking import Masking, by_count, by_time, holes_of_blocks, of_blocks, times_of_blocks
from unmask.network import logits_where, suppress_mask
from unmask.protocol import Denoiser, block_of, follows_order
from unmask.schedule import Schedule

LOGITS = 1 << 24  # per call; a sequence may need as many as L V


def cross_entropy(model: Denoiser, x0: Tensor, masking: Masking) -> Tensor:
    """Sum over the masked positions of -log mu(x)[x0], per sequence: [B], or [B, N] per block."""
    logits = masked_logits(model, x0, masking)
    losses = functional.cross_entropy(logits, x0[masking.masked], reduction="none")
    return summed(losses, masking, block_of(model))


def score_terms(model: Denoiser, x0: Tensor, masking: Masking) -> Tensor:
    """Sum over the masked positions of sum_x e^f_x - f_x0 - 1, per sequence: [B].

    The network's outputs are log-scores, f plus log D for D data tokens, and need not be normalised. Where they are, a
    term is the cross-entropy.
    """
    f = masked_logits(model, x0, masking) - math.log(data_tokens(model))
    terms = f.exp().sum(-1) - f.gather(-1, x0[masking.masked].unsqueeze(-1)).squeeze(-1) - 1
    return summed(terms, masking, block_of(model))


def data_tokens(model: Denoiser) -> int:
    """How many ids are data: the mask is not one, wherever its id lies."""
    return model.vocab_size - (model.mask_id < model.vocab_size)


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
    return weighted(masking, cross_entropy(model, x0, masking))


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
    return weighted(masking, score_terms(model, x0, masking))


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
    if block_of(model) is not None:
        raise ValueError("attention by blocks has a count for each block: see unmask.nelbo, or nelbo_by_time")
    keys, hits, when = uniforms(x0, generator), uniforms(x0, generator), _order(model, x0, generator)
    masking = by_count(n, keys, hits, weight=weight, schedule=schedule, where=where, when=when)
    return weighted(masking, cross_entropy(model, x0, masking))


def _drawn_by_time(
    model: Denoiser, x0: Tensor, t: Tensor, generator: torch.Generator, schedule: Schedule | None, where: Tensor | None
) -> Masking:
    """The masking of Eq. 6 for each sequence, or for each of its blocks."""
    keys, block = uniforms(x0, generator), block_of(model)
    if block is None:
        return by_time(t, keys, schedule=schedule, where=where, when=_order(model, x0, generator))
    where = holes_of_blocks(x0, where, block)
    keys = of_blocks(keys, block)
    times = times_of_blocks(t, len(keys) // len(x0))
    return by_time(times, keys, schedule=schedule, where=where).in_blocks(*x0.shape)


def left_to_right(model: Denoiser, x0: Tensor) -> Tensor:
    """-log p(x0) of a left-to-right model, whose logits at l depend only on the tokens before l. [B] nats."""
    x0 = checks.ids(x0, "x0")
    logits: Tensor = _at_least_float32(model(x0))
    losses = functional.cross_entropy(logits.flatten(0, 1), x0.flatten(), reduction="none")
    return losses.view_as(x0).sum(1)


def along_order(model: Denoiser, x0: Tensor, order: Tensor, *, time: Tensor | None = None) -> Tensor:
    """-sum_n log p(x^sigma(n) | x^sigma(<n)), the chain rule along the order sigma: [B] nats.

    order is int64 [B, K], positions in the order they become visible; positions outside it are visible throughout.
    One call of the network per position of the order, or one in all if its attention follows the order. time is [B, K]
    for a network that reads it.
    """
    if follows_order(model):
        return _in_one_pass(model, x0, order)
    x = x0.scatter(1, order, model.mask_id)
    total = torch.zeros(len(x0), dtype=torch.float64, device=x0.device)
    for k in range(order.shape[1]):
        position = order[:, k : k + 1]
        here = torch.zeros_like(x0, dtype=torch.bool).scatter(1, position, True)
        logits = logits_where(model, x, None if time is None else time[:, k], here)
        token = x0.gather(1, position)
        total = total + functional.cross_entropy(logits.double(), token.squeeze(1), reduction="none")
        x = x.scatter(1, position, token)
    return total


def _in_one_pass(model: Any, x0: Tensor, order: Tensor) -> Tensor:
    """``along_order`` by the two streams of an any-order network: a pass of length L + K."""
    places = torch.arange(order.shape[1], device=x0.device).expand_as(order)
    when = torch.full_like(x0, -1).scatter(1, order, places)  # positions outside the order come first
    states, targets = model.two_streams(x0, when, order), x0.gather(1, order)
    total = torch.zeros(len(x0), dtype=torch.float64, device=x0.device)
    size = max(1, LOGITS // max(1, len(x0) * model.vocab_size))
    for some, target in zip(torch.split(states, size, 1), torch.split(targets, size, 1), strict=True):
        losses = functional.cross_entropy(model.logits(some).double().mT, target, reduction="none")
        total = total + losses.sum(1)
    return total


def per_sequence(values: Tensor, masked: Tensor) -> Tensor:
    """Sum packed values [M] at masked positions into their sequences [B]."""
    return values.new_zeros(len(masked)).index_add(0, masked.nonzero()[:, 0], values)


def summed(values: Tensor, masking: Masking, block: int | None) -> Tensor:
    """Sum packed values [M] at masked positions by sequence [B], or by block [B, N]."""
    into = values.new_zeros(masking.weight.numel())
    return into.index_add(0, masking.parts(block), values).view_as(masking.weight)


def weighted(masking: Masking, terms: Tensor) -> Tensor:
    """Each sequence's estimate, [B]."""
    return (masking.weight.to(terms) * terms).view(len(terms), -1).sum(1)


def _order(model: Denoiser, x0: Tensor, generator: torch.Generator) -> Tensor | None:
    return uniforms(x0, generator) if follows_order(model) else None


def masked_logits(model: Any, x0: Tensor, masking: Masking) -> Tensor:
    """Raw logits [M, V] at the masked positions, in float32 at least."""
    x = masking.hide(x0, model.mask_id)
    if block_of(model) is not None:
        if masking.weight.ndim == 1:
            raise ValueError("attention by blocks has a masking for each block, not for the sequence: use unmask.nelbo")
        return _at_least_float32(suppress_mask(model, model.packed(x, masking.time, masking.masked, clean=x0)))
    if masking.when is None or not follows_order(model):
        return _at_least_float32(logits_where(model, x, masking.time, masking.masked))
    logits = model.packed(x, masking.time, masking.masked, when=masking.when)
    return _at_least_float32(suppress_mask(model, logits))


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
