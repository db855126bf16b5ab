"""The likelihood of a continuation given its prompt: the bound of Eq. 7 with nothing but the continuation masked.

A canvas holds the prompt and the continuation; what may follow is masked and stays so. The orders that the bound
averages over reveal the continuation first, so it bounds -log p(continuation | prompt), whatever comes after, which is
what a left-to-right model's sum over the continuation is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unmask import timing
from unmask.bound import Bound
from unmask.protocol import Denoiser, device_of, inference, logits_where
from unmask.schedule import Linear, Schedule


def conditional_nelbo(
    model: Denoiser,
    canvas: Tensor,
    asked: Tensor,
    *,
    generators: Sequence[torch.Generator],
    passes: int = 32,
    schedule: Schedule | None = None,
    batch: int = 64,
) -> Bound:
    """Equation 7 over the ``asked`` positions of each canvas, given all other visible ones.

    canvas: int64 [B, L], with mask_id where nothing is known. asked: bool [B, L], the continuation. A continuation of m
    tokens with 2^m - 1 <= passes has all its subsets taken, so that the bound has no error; of a longer one ``passes``
    subsets are drawn, their sizes spread evenly, from the canvas's own generator; the stated error is that of
    independent ones, which is somewhat larger. A network that reads the time is
    called at alpha^-1(1 - masked/L). batch: canvases per network call.
    """
    _check(model, canvas, asked, passes, batch)
    if len(generators) != len(canvas):
        raise ValueError(f"generators must be one per canvas: {len(canvas)} canvases, {len(generators)} generators")
    schedule, device = schedule or Linear(), device_of(model)
    canvas, asked = canvas.to(device), asked.cpu()
    nats, squares, passed = torch.zeros(3, len(canvas), dtype=torch.float64)
    terms = _all_subsets(asked, passes, generators)
    with inference(model):
        while part := list(islice(terms, batch)):
            which = torch.tensor([b for b, _, _ in part])
            hidden, weight = torch.stack([h for _, h, _ in part]), torch.stack([w for _, _, w in part])
            estimate = weight * _hidden_nats(model, canvas[which], hidden.to(device), schedule)
            nats.index_add_(0, which, estimate)
            squares.index_add_(0, which, estimate.square())
            passed.index_add_(0, which, torch.ones_like(estimate))
    # A sum of P weighted passes is their mean times P; its error is sqrt(P) times their standard deviation.
    variance = (squares - nats.square() / passed.clamp(min=1)).clamp(min=0) * passed / (passed - 1).clamp(min=1)
    drawn = 2.0 ** asked.sum(1).double() - 1 > passes
    errors = torch.where(drawn, torch.where(passed > 1, variance.sqrt(), math.inf), 0.0)
    return Bound(nats, errors, asked.sum(1))


def subsets(m: int, passes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Equation 7's sum over n and the masked subsets of m tokens: bool [P, m], and weights float64 [P].

    Each n has weight 1/m, each subset of size n shares it evenly, and its terms are multiplied by m/n. All of them if
    there are no more than ``passes``, else ``passes`` drawn ones with n = ceil(m t) and t stratified.
    """
    if 2**m - 1 <= passes:
        hidden = torch.arange(1, 2**m).unsqueeze(1) >> torch.arange(m) & 1 == 1
        n = hidden.sum(1)
        return hidden, 1 / torch.tensor([k * math.comb(m, k) for k in n.tolist()], dtype=torch.float64)
    n = timing.count(timing.stratified(passes, generator), m)
    keys = torch.rand(passes, m, dtype=torch.float64, generator=generator)
    return keys.argsort(1).argsort(1) < n.unsqueeze(1), m / (n.double() * passes)


def left_to_right_nats(model: Any, canvas: Tensor, asked: Tensor, *, batch: int = 64) -> tuple[Tensor, Tensor]:
    """-log p(continuation | prompt) of a left-to-right model, exact, [B]; and whether each token is its likeliest."""
    _check(model, canvas, asked, 1, batch)
    device = device_of(model)
    canvas, asked = canvas.to(device), asked.to(device)
    nats, greedy = [], []
    with inference(model):
        for x, where in zip(torch.split(canvas, batch), torch.split(asked, batch), strict=True):
            logits = logits_where(model, x, None, where).double()
            nats.append(_per_row(functional.cross_entropy(logits, x[where], reduction="none"), where))
            greedy.append(_per_row((logits.argmax(-1) != x[where]).double(), where) == 0)
    return torch.cat(nats), torch.cat(greedy)


def is_greedy(
    model: Denoiser, canvas: Tensor, asked: Tensor, *, schedule: Schedule | None = None, batch: int = 64
) -> Tensor:
    """Whether filling the asked positions from left to right, each with its likeliest token, gives the canvas.

    bool [B], for a masked model. One call per position, and none after the first that differs.
    """
    _check(model, canvas, asked, 1, batch)
    schedule, device = schedule or Linear(), device_of(model)
    canvas, asked = canvas.to(device), asked.to(device)
    place, m = asked.cumsum(1) - 1, asked.sum(1)
    greedy = torch.ones(len(canvas), dtype=torch.bool, device=device)
    with inference(model):
        for i in range(int(m.max()) if len(m) else 0):
            for part in torch.split((greedy & (m > i)).nonzero().squeeze(1), batch):
                x = canvas[part].masked_fill(asked[part] & (place[part] >= i), model.mask_id)
                here = asked[part] & (place[part] == i)
                logits = logits_where(model, x, _time(x, model.mask_id, schedule), here)
                greedy[part] = logits.argmax(-1) == canvas[part][here]
    return greedy.cpu()


def _all_subsets(
    asked: Tensor, passes: int, generators: Sequence[torch.Generator]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(canvas, hidden positions [L], weight) of every pass of every canvas, one after the other."""
    for b, (where, generator) in enumerate(zip(asked, generators, strict=True)):
        for chosen, weight in zip(*subsets(int(where.sum()), passes, generator), strict=True):
            yield b, torch.zeros_like(where).masked_scatter(where, chosen), weight


def _hidden_nats(model: Denoiser, x0: Tensor, hidden: Tensor, schedule: Schedule) -> Tensor:
    """The sum of -log mu(x)[x0] over the hidden positions of each row: float64 [B] on the CPU."""
    x = x0.masked_fill(hidden, model.mask_id)
    logits = logits_where(model, x, _time(x, model.mask_id, schedule), hidden).double()
    return _per_row(functional.cross_entropy(logits, x0[hidden], reduction="none"), hidden)


def _time(x: Tensor, mask_id: int, schedule: Schedule) -> Tensor:
    """When so many positions are masked on average: alpha^-1(1 - masked/L)."""
    return schedule.inverse(1 - (x == mask_id).double().mean(1))


def _per_row(values: Tensor, where: Tensor) -> Tensor:
    return values.new_zeros(len(where)).index_add(0, where.nonzero()[:, 0], values).cpu()


def _check(model: Denoiser, canvas: Tensor, asked: Tensor, passes: int, batch: int) -> None:
    if canvas.ndim != 2 or canvas.dtype != torch.int64 or asked.shape != canvas.shape or asked.dtype != torch.bool:
        raise ValueError(
            f"canvas must be int64 [B, L] and asked bool of the same shape, got {canvas.dtype} {tuple(canvas.shape)} "
            f"and {asked.dtype} {tuple(asked.shape)}"
        )
    if bool((canvas[asked] == model.mask_id).any()):
        raise ValueError(f"the asked positions must have their tokens: some hold the mask {model.mask_id}")
    if passes < 1 or batch < 1:
        raise ValueError(f"passes and batch must be at least 1, got passes={passes} and batch={batch}")
