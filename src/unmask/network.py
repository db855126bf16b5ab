"""One network call: the requested rows, from any denoiser, normalised to log mu.

A network computes no more than it must: one that takes ``rows`` gets them, one that can restrict its head gets the
positions, and from any other the requested rows are gathered.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from unmask.devices import CPU, upload
from unmask.predict import log_mean
from unmask.protocol import Allowed, Caches, ComputesWhere, Denoiser, LooksAhead, SuppressesMask, for_sampling
from unmask.sampler import Ask


def takes(model: object, argument: str) -> bool:
    """Whether the model's call has this keyword."""
    call = model.forward if isinstance(model, torch.nn.Module) else model
    if not hasattr(call, "__func__") and not inspect.isroutine(call):
        call = type(call).__call__  # an instance may not be hashable, and need not be kept alive
    return argument in (keywords := _keywords(getattr(call, "__func__", call))) or "**" in keywords


@lru_cache
def _keywords(call: Callable[..., object]) -> frozenset[str]:
    parameters = inspect.signature(call).parameters.values()
    return frozenset("**" if p.kind is p.VAR_KEYWORD else p.name for p in parameters)


def device_of(model: object) -> torch.device:
    """The model's device: that of its parameters, or its attribute ``device`` if it is no module; else the CPU."""
    if isinstance(model, torch.nn.Module):
        return next((tensor.device for tensor in chain(model.parameters(), model.buffers())), CPU)
    return torch.device(getattr(model, "device", None) or CPU)


@contextmanager
def inference(model: object) -> Iterator[None]:
    """No gradients and no dropout inside; the model's mode is restored afterwards."""
    training = model if isinstance(model, torch.nn.Module) and model.training else None
    if training is not None:
        training.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        if training is not None:
            training.train()


def logits_at(
    model: Denoiser,
    tokens: Tensor,
    time: Tensor | None,
    rows: Tensor,
    *,
    seats: slice | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Logits [B, R, V] at the requested rows, from any denoiser.

    seats: the rows of a cache to use. lengths: those of padded sequences, for a network that ``TakesLengths``.
    """
    arguments: dict[str, Any] = {"time": time} if takes(model, "time") else {}
    arguments |= {name: given for name, given in (("seats", seats), ("lengths", lengths)) if given is not None}
    if takes(model, "rows"):
        logits: Tensor = model(tokens, rows=rows, **arguments)
    else:
        logits = model(tokens, **arguments)
        _check_shape(model, logits, tokens.shape)
        logits = logits.gather(1, rows.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
    _check_shape(model, logits, rows.shape)
    return suppress_mask(model, logits)


def logits_of(
    model: Denoiser,
    tokens: Tensor,
    time: Tensor | None,
    rows: Tensor,
    real: Tensor,
    *,
    seats: slice | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Logits [M, V] at the rows [B, R] where the boolean [B, R] is true, in row-major order; the others are padding.

    real is on the CPU, whatever the device of the rows: an accelerator computes padding rather than wait.
    """
    if bool(real.all()) or not isinstance(model, ComputesWhere) or rows.device.type != "cpu":
        return where(logits_at(model, tokens, time, rows, seats=seats, lengths=lengths), real)
    batch, position = real.nonzero()[:, 0], rows[real]
    wanted = torch.zeros_like(tokens, dtype=torch.bool)
    wanted[batch, position] = True
    number = (wanted.flatten().cumsum(0) - 1).view_as(wanted)  # the index of each wanted position in row-major order
    return logits_where(model, tokens, time, wanted, lengths=lengths)[number[batch, position]]


def where(logits: Tensor, real: Tensor) -> Tensor:
    """The logits of [B, R, V] where the boolean [B, R] of the CPU is true, [M, V]; no copy if it is so everywhere."""
    rows = logits.flatten(0, 1)
    return rows if bool(real.all()) else rows[upload(real.flatten().nonzero().squeeze(1), logits.device)]


def logits_where(
    model: Denoiser, tokens: Tensor, time: Tensor | None, where: Tensor, *, lengths: Tensor | None = None
) -> Tensor:
    """Logits [M, V] at the M positions where the boolean [B, L] is true, in row-major order.

    A network that ``ComputesWhere`` computes its head only there, which makes training on half-masked batches cheap.
    Others get the rows, padded to the longest sequence.
    """
    if isinstance(model, ComputesWhere):
        padded = {} if lengths is None else {"lengths": lengths}
        return suppress_mask(model, model.packed(tokens, time, where, **padded))
    count = where.sum(1)
    width = int(count.max()) if where.numel() else 0
    # A stable sort of "not here" brings the wanted positions to the front, in order.
    rows = torch.argsort((~where).to(torch.int8), dim=1, stable=True)[:, :width]
    valid = torch.arange(width, device=where.device) < count.unsqueeze(1)
    return logits_at(model, tokens, time, rows, lengths=lengths)[valid]


def suppress_mask(model: Denoiser, logits: Tensor) -> Tensor:
    """The mask is never a prediction (Eq. 4): where its id lies below V, its logit is -inf."""
    if model.mask_id >= logits.shape[-1] or (isinstance(model, SuppressesMask) and model.suppresses_mask):
        return logits
    index = torch.full((1,), model.mask_id, device=logits.device)
    return logits.index_fill(-1, index, -torch.inf)


def _check_shape(model: Denoiser, logits: Tensor, leading: tuple[int, ...]) -> None:
    expected = (*leading, model.vocab_size)
    if not isinstance(logits, Tensor):
        raise ValueError(
            f"{type(model).__name__} returned a {type(logits).__name__}; a torch tensor of logits {expected} (batch, "
            "rows, vocab_size) was expected: wrap the network so that it returns its logits alone"
        )
    if tuple(logits.shape) != expected or not logits.is_floating_point():
        hint = "; give the logits at the positions rows [B, R] alone, or leave the argument rows out of the forward"
        if tuple(logits.shape[-1:]) == (model.vocab_size + 1,):
            hint = "; there is one logit too many: the mask is never drawn, so leave its logit out"
        elif not takes(model, "rows"):
            hint = ""
        raise ValueError(
            f"{type(model).__name__} returned {logits.dtype} {tuple(logits.shape)}; floating-point logits of shape "
            f"{expected} were expected (batch, rows, vocab_size){hint}"
        )


def answer(
    network: Denoiser,
    x: Tensor,
    ask: Ask,
    allowed: Sequence[Allowed | None],
    seats: slice | None = None,
    lengths: Tensor | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """One network call: log mu [M, V] of the requested rows without padding, row by row, in float64.

    seats: which of its sequences these are, for a network that caches more. lengths int64 [B]: those of padded
    sequences; a network that caches has them already, but not for the canvases of a chain. device: the network's, if it
    is not the canvas's.
    """
    real, device = ask.rows >= 0, device or x.device
    shown = upload(x if ask.canvas is None else ask.canvas, device)
    if ask.known is None:
        # Padded by a requested row, so that a cache reads no further than it must.
        filled = torch.where(real, ask.rows, ask.rows[:, :1].clamp(min=0))
        rows, time = upload(filled, device), upload(ask.time, device)
        padded = None if lengths is None or isinstance(network, Caches) else upload(lengths, device)
        logits = logits_of(network, shown, time, rows, real, seats=seats, lengths=padded)
    elif isinstance(network, LooksAhead):
        logits = where(network.ahead(shown, upload(ask.rows, device), ask.known, seats=seats), real)
    else:
        logits = _chained(network, shown, ask, lengths)
    if any(allowed[: len(x)]):
        row, column = real.nonzero(as_tuple=True)
        for m, (i, position) in enumerate(zip(row.tolist(), ask.rows[row, column].tolist(), strict=True)):
            only = (allowed[i] or {}).get(position)
            if only is not None:
                logits[m] = logits[m].masked_fill(upload(~only, logits.device), -torch.inf)
    return log_mean(logits)


def _chained(network: Denoiser, tokens: Tensor, ask: Ask, lengths: Tensor | None) -> Tensor:
    """Logits [M, V] of a chain's rows from any denoiser, in one call with a canvas for every guess.

    Canvas k of a sequence shows the guesses before row k and gives row k; the last one gives all remaining rows.
    """
    assert ask.known is not None
    links = []  # (sequence, k, the positions that canvas k hides, those whose logits it gives)
    for i, (row, known) in enumerate(zip(ask.rows.tolist(), ask.known.tolist(), strict=True)):
        order = [position for position in row if position >= 0]
        last = min(known, max(len(order) - 1, 0))
        links += [(i, k, order[k:], order[k : k + 1] if k < last else order[k:]) for k in range(last + 1)]
    sequence, link = torch.tensor([part[:2] for part in links]).T
    hidden = torch.zeros(len(links), tokens.shape[1], dtype=torch.bool)
    rows = torch.full((len(links), max(len(part[3]) for part in links)), -1)
    for canvas, (_, _, later, wanted) in enumerate(links):
        hidden[canvas, later] = True
        rows[canvas, : len(wanted)] = torch.tensor(wanted, dtype=torch.int64)
    device, time = tokens.device, ask.time[sequence, link]
    canvases = torch.where(upload(hidden, device), network.mask_id, tokens[upload(sequence, device)])
    lengths = None if lengths is None else lengths[sequence]
    if isinstance(network, Caches):  # its seats are those of the sequences, and these are other canvases
        network = for_sampling(network)
        assert isinstance(network, Caches)
        for length in [tokens.shape[1]] * len(links) if lengths is None else lengths.tolist():
            network.add(1, length)
        lengths = None
    lengths = None if lengths is None else upload(lengths, device)
    at, time = upload(rows.clamp(min=0), device), upload(time, device)
    return logits_of(network, canvases, time, at, rows >= 0, lengths=lengths)


def waits(device: torch.device) -> bool:
    """Whether reading a number there waits for everything queued on the device."""
    return device.type != "cpu"


def leave(network: Denoiser, live: Tensor) -> Tensor:
    """Which rows continue, int64 [b]: the last one takes the place, and in a cache the seat, of a finished one."""
    rows = list(range(len(live)))
    for row in (~live).nonzero().squeeze(1).flip(0).tolist():
        rows[row] = rows[-1]
        rows.pop()
        if isinstance(network, Caches):
            network.leave(row)
    return torch.tensor(rows, dtype=torch.int64)
