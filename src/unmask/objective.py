"""The training objectives. Each takes any denoiser and gives one unbiased estimate per sequence, in nats.

Cross-entropies are computed at masked rows alone, in float32 at least, and every objective is a weighted sum of them:
what differs is how the tokens are masked and what the weight is. A network whose attention follows an order (its
``any_order`` is true) is given its visible tokens in a random one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unmask.forward import mask_by_count, mask_by_time
from unmask.protocol import Denoiser, follows_order, logits_where, suppress_mask
from unmask.schedule import Linear, Schedule

LOGITS = 1 << 24  # at a time, where there may be as many as L V for each sequence


def cross_entropy(
    model: Denoiser, x: Tensor, x0: Tensor, time: Tensor | None, order: Tensor | None = None
) -> Tensor:
    """Sum over the masked positions of -log mu(x)[x0], per sequence: [B].

    order: [B, L], when each visible token became visible, for a network whose attention follows it.
    """
    masked = x == model.mask_id
    logits = _logits(model, x, time, masked, order)
    losses = functional.cross_entropy(_at_least_float32(logits), x0[masked], reduction="none")
    return _per_sequence(losses, masked)


def nelbo_by_time(
    model: Denoiser,
    x0: Tensor,
    t: Tensor,
    *,
    generator: torch.Generator,
    schedule: Schedule | None = None,
    where: Tensor | None = None,
) -> Tensor:
    """Equation 6: the NELBO as an integral over time, at one t ~ U(0, 1) and one x_t per sequence."""
    schedule = schedule or Linear()
    t = t.clamp(min=2.0**-53)  # the weight is infinite at t = 0, which U(0, 1) reaches once in 2^53 draws
    xt = mask_by_time(x0, t, schedule=schedule, mask_id=model.mask_id, generator=generator, where=where)
    weight = -schedule.weight(t).to(x0.device)
    order = random_order(model, x0, generator)
    return _weighted(weight, cross_entropy(model, xt, x0, t.to(x0.device), order))


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

    A network that reads the time gets one draw of Eq. 8's mixture: alpha_n ~ Beta(L - n + 1, n).
    """
    length = x0.shape[1] if where is None else where.sum(1)
    return weighted_cross_entropy(
        model, x0, n, weight=length / n.to(x0.device).double(), generator=generator, schedule=schedule, where=where
    )


def weighted_cross_entropy(
    model: Denoiser,
    x0: Tensor,
    n: Tensor,
    *,
    weight: Tensor | float,
    generator: torch.Generator,
    schedule: Schedule | None = None,
    where: Tensor | None = None,
) -> Tensor:
    """The general loss L_w of Sec. 3.2: ``weight`` times the summed cross-entropy at n masked tokens.

    n ~ p(n) with this weight has w_n = p(n) weight. L/n with n uniform is the NELBO (Eq. 7); 1 with n uniform is
    Mask-Predict; 1 with ``maskgit_count`` is MaskGIT. All have the same minimiser (Prop. 3.2).
    """
    schedule = schedule or Linear()
    xn = mask_by_count(x0, n, mask_id=model.mask_id, generator=generator, where=where)
    holes = torch.full_like(n, x0.shape[1]) if where is None else where.sum(1).to(n.device)
    time = schedule.inverse(beta_alpha(n, x0.shape[1], generator, holes=holes)).to(x0.device)
    order = random_order(model, x0, generator)
    return _weighted(torch.as_tensor(weight), cross_entropy(model, xn, x0, time, order))


def beta_alpha(n: Tensor, length: int, generator: torch.Generator, *, holes: Tensor | None = None) -> Tensor:
    """Equation 8: alpha_n ~ Beta(L - n + 1, n), as 1 minus the n-th smallest of L uniforms.

    Where only ``holes`` of the L positions may be masked, the process starts at alpha = 1 - holes/L, and the uniforms
    are as many and as much smaller.
    """
    u = torch.rand(len(n), length, dtype=torch.float64, generator=generator, device=generator.device)
    if holes is not None:
        holes = holes.to(u.device).unsqueeze(1)
        u = torch.where(torch.arange(length, device=u.device) < holes, u * holes / length, 2.0)
    return 1 - u.sort(1).values.gather(1, n.to(u.device).unsqueeze(1) - 1).squeeze(1)


def maskgit_count(t: Tensor, length: int) -> Tensor:
    """MaskGIT's mask scheduling function: n = ceil(gamma(t) L), gamma(t) = cos(pi t / 2), in 1..L."""
    return (torch.cos(math.pi / 2 * t) * length).ceil().long().clamp(1, length)


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
    schedule = schedule or Linear()
    t = t.clamp(min=2.0**-53)
    xt = mask_by_time(x0, t, schedule=schedule, mask_id=model.mask_id, generator=generator, where=where)
    order = random_order(model, x0, generator)
    return _weighted(-schedule.weight(t).to(x0.device), score_terms(model, xt, x0, t.to(x0.device), order))


def score_terms(model: Denoiser, x: Tensor, x0: Tensor, time: Tensor | None, order: Tensor | None = None) -> Tensor:
    """Sum over the masked positions of sum_x e^f_x - f_x0 - 1, per sequence: [B].

    The network's outputs are log-scores, f plus log D for D data tokens, and need not be normalised. Where they are, a
    term is the cross-entropy.
    """
    masked = x == model.mask_id
    f = _at_least_float32(_logits(model, x, time, masked, order)) - math.log(data_tokens(model))
    terms = f.exp().sum(-1) - f.gather(-1, x0[masked].unsqueeze(-1)).squeeze(-1) - 1
    return _per_sequence(terms, masked)


def data_tokens(model: Denoiser) -> int:
    """How many ids are data: the mask is not one, wherever its id lies."""
    return model.vocab_size - (model.mask_id < model.vocab_size)


def left_to_right(model: Any, x0: Tensor) -> Tensor:
    """-log p(x0) of a left-to-right model: its logits at l depend on the tokens before l alone. [B] nats."""
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
        logits = logits_where(model, x, None if time is None else time[:, k], _at(position, x0.shape))
        token = x0.gather(1, position)
        total = total + functional.cross_entropy(logits.double(), token.squeeze(1), reduction="none")
        x = x.scatter(1, position, token)
    return total


def _in_one_pass(model: Any, x0: Tensor, order: Tensor) -> Tensor:
    """``along_order`` by the two streams of an any-order network: a pass of length L + K."""
    # What is visible throughout comes before the order.
    became = torch.full_like(x0, -1).scatter(1, order, torch.arange(order.shape[1], device=x0.device).expand_as(order))
    states, targets = model.two_streams(x0, became, order), x0.gather(1, order)
    total = torch.zeros(len(x0), dtype=torch.float64, device=x0.device)
    size = max(1, LOGITS // max(1, len(x0) * model.vocab_size))
    for some, target in zip(torch.split(states, size, 1), torch.split(targets, size, 1), strict=True):
        losses = functional.cross_entropy(model.logits(some).double().mT, target, reduction="none")
        total = total + losses.sum(1)
    return total


def random_order(model: Any, x0: Tensor, generator: torch.Generator) -> Tensor | None:
    """A uniform order of the positions, as numbers to be sorted [B, L], for a network whose attention follows one."""
    if not follows_order(model):
        return None
    return torch.rand(x0.shape, dtype=torch.float64, generator=generator, device=generator.device).to(x0.device)


def _logits(model: Any, x: Tensor, time: Tensor | None, masked: Tensor, order: Tensor | None) -> Tensor:
    """Raw logits [M, V] at masked positions."""
    if order is None:
        return logits_where(model, x, time, masked)
    return suppress_mask(model, model.packed(x, time, masked, when=order))


def _at(position: Tensor, shape: torch.Size) -> Tensor:
    where = torch.zeros(shape, dtype=torch.bool, device=position.device)
    return where.scatter(1, position, True)


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _per_sequence(values: Tensor, masked: Tensor) -> Tensor:
    """Sum packed values [M] into their sequences [B]."""
    row = masked.nonzero()[:, 0]
    return values.new_zeros(len(masked)).index_add(0, row, values)


def _weighted(weight: Tensor, losses: Tensor) -> Tensor:
    return weight.to(device=losses.device, dtype=losses.dtype) * losses
