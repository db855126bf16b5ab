"""The likelihood of a continuation given its prompt: the bound of Eq. 7 with only the continuation masked.

A canvas holds the prompt and the continuation; positions after it are masked and stay so. The bound is of the law that
fills the continuation first, in a random order, and what follows afterwards: of -log p(continuation | prompt) under it,
like a left-to-right model's sum over the continuation. Sampling fills all positions in a random order, which is another
law for a network whose conditionals belong to no one joint, and its probability may be below what the bound allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unmask import objective, timing
from unmask.bound import Bound
from unmask.devices import upload, widest
from unmask.forward import masked_by_count
from unmask.likelihood import per_position
from unmask.masking import Masking, joined, of_subset
from unmask.network import device_of, inference, logits_where, takes
from unmask.objective import per_sequence
from unmask.processes import process_of
from unmask.protocol import Denoiser
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

    canvas: int64 [B, L], with mask_id where nothing is known. asked: bool [B, L], the continuation. For a continuation
    of m tokens with 2^m - 1 <= passes all subsets are evaluated, so the bound has no error, if the network's output
    depends only on the canvas. For a network that reads the time, or (for m > 2) the order in which tokens became
    visible, the bound also averages over these: ``passes`` subsets are drawn with the times of Eq. 8, as for a longer
    continuation. Their sizes are spread evenly, and each canvas has its own generator. The reported error assumes
    independent subsets and is therefore somewhat too large. batch: canvases per network call.
    """
    _check(model, canvas, asked, passes, batch)
    if len(generators) != len(canvas):
        raise ValueError(f"generators must be one per canvas: {len(canvas)} canvases, {len(generators)} generators")
    device, asked, beyond = device_of(model), asked.cpu(), (canvas == model.mask_id).sum(1).tolist()
    canvas, m = canvas.to(device), asked.sum(1)
    nats, squares, passed = torch.zeros(3, len(canvas), dtype=torch.float64)
    with inference(model):
        longest = 0 if _reads_time(model, canvas, asked) else 2 if process_of(model).reads_order else math.inf
        every = (m <= longest) & (2.0 ** m.double() - 1 <= passes)
        one_by_one = _passes(asked, beyond, every, passes, generators, schedule)
        while part := list(islice(one_by_one, batch)):
            which, masking = torch.tensor([b for b, _ in part]), joined([one for _, one in part])
            cross_entropy = objective.cross_entropy(model, canvas[which], masking.to(device))
            estimate = masking.weight * cross_entropy.cpu().double()
            nats.index_add_(0, which, estimate)
            squares.index_add_(0, which, estimate.square())
            passed.index_add_(0, which, torch.ones_like(estimate))
    # A sum of P weighted passes is their mean times P; its error is sqrt(P) times their standard deviation.
    variance = (squares - nats.square() / passed.clamp(min=1)).clamp(min=0) * passed / (passed - 1).clamp(min=1)
    errors = torch.where(every, 0.0, torch.where(passed > 1, variance.sqrt(), math.inf))
    return Bound(nats, errors, m)


def subsets(m: int, passes: int, generator: torch.Generator, *, every: bool) -> tuple[Tensor, Tensor]:
    """Equation 7's masked subsets of m tokens, bool [P, m], and the weight of each in the average, float64 [P].

    Each n has weight 1/m, divided evenly among subsets of size n: all of them, or ``passes`` drawn ones with n = ceil(m
    t) and t stratified.
    """
    if every:
        hidden = torch.arange(1, 2**m).unsqueeze(1) >> torch.arange(m) & 1 == 1
        sizes = hidden.sum(1).tolist()
        return hidden, 1 / torch.tensor([m * math.comb(m, n) for n in sizes], dtype=torch.float64)
    n = timing.count(timing.stratified(passes, generator), m)
    keys = torch.rand(passes, m, dtype=torch.float64, generator=generator)
    return masked_by_count(n, keys), torch.full((passes,), 1 / passes, dtype=torch.float64)


def left_to_right_nats(model: Any, canvas: Tensor, asked: Tensor, *, batch: int = 64) -> tuple[Tensor, Tensor]:
    """-log p(continuation | prompt) of a left-to-right model, exact, [B]; and whether each token is the most likely."""
    _check(model, canvas, asked, 1, batch)
    device = device_of(model)
    canvas, asked = canvas.to(device), asked.to(device)
    nats, greedy = [], []
    with inference(model):
        for x, where in zip(torch.split(canvas, batch), torch.split(asked, batch), strict=True):
            logits = logits_where(model, x, None, where).to(widest(device))
            nats.append(
                per_sequence(functional.cross_entropy(logits, x[where], reduction="none"), where).cpu().double()
            )
            greedy.append(per_sequence((logits.argmax(-1) != x[where]).float(), where).cpu() == 0)
    return torch.cat(nats), torch.cat(greedy)


def in_turn_nats(model: Any, canvas: Tensor, asked: Tensor, *, batch: int = 64) -> Tensor:
    """-log p(continuation | prompt) by the chain rule from left to right, a call for each position: exact for it."""
    _check(model, canvas, asked, 1, batch)
    every = torch.split(torch.arange(len(canvas)), batch)
    with inference(model):
        return torch.cat([per_position(model, canvas[some], some, asked[some]).sum(1) for some in every])


def is_greedy(
    model: Denoiser, canvas: Tensor, asked: Tensor, *, schedule: Schedule | None = None, batch: int = 64
) -> Tensor:
    """Whether greedy decoding from left to right of the asked positions gives the canvas.

    bool [B], for a masked model. One call per position, and none after the first difference, each at the time
    alpha^-1(1 - masked/L).
    """
    _check(model, canvas, asked, 1, batch)
    schedule, device = schedule or Linear(), device_of(model)
    canvas, asked = canvas.to(device), asked.to(device)
    place, m = asked.cumsum(1) - 1, asked.sum(1)
    greedy = torch.ones(len(canvas), dtype=torch.bool, device=device)
    with inference(model):
        for i in range(int(m.max()) if len(m) else 0):
            live = (greedy & (m > i)).nonzero().squeeze(1)
            for part in torch.split(live, batch) if len(live) else ():
                x = canvas[part].masked_fill(asked[part] & (place[part] >= i), model.mask_id)
                here = asked[part] & (place[part] == i)
                hidden = (x == model.mask_id).sum(1).cpu().double() / x.shape[1]
                time = upload(schedule.inverse(1 - hidden), device)
                logits = logits_where(model, x, time, here)
                greedy[part] = logits.argmax(-1) == canvas[part][here]
    return greedy.cpu()


def _passes(
    asked: Tensor,
    beyond: list[int],
    every: Tensor,
    passes: int,
    generators: Sequence[torch.Generator],
    schedule: Schedule | None,
) -> Iterator[tuple[int, Masking]]:
    """The passes of each canvas, whose estimates are to be added: (canvas, masking of one sequence)."""
    for b, (where, generator) in enumerate(zip(asked, generators, strict=True)):
        chosen, part = subsets(int(where.sum()), passes, generator, every=bool(every[b]))
        masked = torch.zeros(len(part), len(where), dtype=torch.bool)
        masked[:, where] = chosen
        hits, when = torch.rand(2, *masked.shape, dtype=torch.float64, generator=generator)
        holes = where.expand_as(masked)
        masking = of_subset(masked, hits, schedule=schedule, where=holes, when=when, beyond=beyond[b])
        masking = replace(masking, weight=part * masking.weight)
        yield from ((b, masking.rows(slice(k, k + 1))) for k in range(len(part)))


def _reads_time(model: Denoiser, canvas: Tensor, asked: Tensor) -> bool:
    """Whether the network's output for a canvas depends on the time."""
    if not takes(model, "time") or not bool(asked.any()):
        return False
    row = asked.any(1).nonzero()[0]
    where = asked[row].to(canvas.device)
    x = canvas[row].masked_fill(where, model.mask_id)
    early, late = (logits_where(model, x, torch.full((1,), t, device=x.device), where) for t in (0.25, 0.75))
    return not torch.equal(early, late)


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
