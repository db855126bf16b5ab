"""The contract between a network and everything that samples, trains or evaluates it.

A denoiser is anything that can be called as ``model(tokens, time=None, rows=None)`` and has ``vocab_size`` and
``mask_id``; no base class is needed. ``rows`` and ``time`` are optional for a third party's model: one that does not
take them is asked for everything, and the rows are gathered from its answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Denoiser(Protocol):
    """A masked model: tokens with holes in, raw logits of what the holes hide out."""

    @property
    def vocab_size(self) -> int:
        """V, the number of logits; token ids are 0 .. V-1, and the mask may be V itself or any id below it."""
        ...

    @property
    def mask_id(self) -> int: ...

    def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """tokens int64 [B, L], time float [B], rows int64 [B, R] -> logits [B, R, V], or [B, L, V] without rows."""
        ...


@runtime_checkable
class Caches(Protocol):
    """A network that keeps what it has read of each sequence of its batch: row i of a call is seat i."""

    def add(self, count: int, length: int) -> None:
        """Seats for newcomers behind the last, with canvases of this length and nothing remembered."""
        ...

    def leave(self, seat: int) -> None:
        """The last sequence moves into the seat of one that goes."""
        ...


@runtime_checkable
class LooksAhead(Caches, Protocol):
    """A network that answers a whole chain of rows in one pass."""

    def ahead(self, tokens: Tensor, order: Tensor, known: Tensor, *, seats: slice | None = None) -> Tensor:
        """Logits [B, W, V] of positions order [B, W] (pads are -1), each given the settled tokens and those before it.

        The first ``known`` [B] of them have a guess in tokens [B, L]; the others are masked there.
        """
        ...


def is_left_to_right(model: Any) -> bool:
    """Whether the model's answer at a position depends on the tokens before it alone."""
    return bool(getattr(model, "causal", False))


def length_of(model: Any) -> int | None:
    """Tokens of a training sequence, if the model says."""
    return getattr(model, "length", None)


@runtime_checkable
class Bounded(Protocol):
    """A network that is called in another form where its likelihood is bounded."""

    def for_bound(self) -> Denoiser: ...


def check(model: Any) -> None:
    """Refuse what is not a denoiser, and say what is missing."""
    if not callable(model):
        raise ValueError(f"model must be callable as model(tokens, time=..., rows=...), got {type(model).__name__}")
    for name in ("vocab_size", "mask_id"):
        if not isinstance(getattr(model, name, None), int):
            raise ValueError(f"model must have an integer attribute {name!r}; {type(model).__name__} has none")
    if not 0 <= model.mask_id <= model.vocab_size or model.vocab_size < 1:
        raise ValueError(f"model.mask_id must be in 0..vocab_size={model.vocab_size}, got {model.mask_id}")


def takes(model: Any, argument: str) -> bool:
    """Whether the model's call has this keyword."""
    call = model.forward if isinstance(model, torch.nn.Module) else model
    return argument in (keywords := _keywords(getattr(call, "__func__", call))) or "**" in keywords


@lru_cache
def _keywords(call: Any) -> frozenset[str]:
    parameters = inspect.signature(call).parameters.values()
    return frozenset("**" if p.kind is p.VAR_KEYWORD else p.name for p in parameters)


def device_of(model: Any) -> torch.device:
    """Where the model lives; models without parameters live on the CPU."""
    if isinstance(model, torch.nn.Module):
        for tensor in (*model.parameters(), *model.buffers()):
            return tensor.device
    return torch.device("cpu")


def for_sampling(model: Any) -> Any:
    """What a network says should be called in a run of sampling: constants folded, nothing remembered from another."""
    return model.for_sampling() if hasattr(model, "for_sampling") else model


def for_bound(model: Any) -> Any:
    """What a network says should be called where its likelihood is bounded: an answer depends on its input alone."""
    return model.for_bound() if isinstance(model, Bounded) else model


def follows_order(model: Any) -> bool:
    """Whether the answer depends on the order in which tokens became visible, which the network must then be told."""
    return bool(getattr(model, "any_order", False))


@contextmanager
def inference(model: Any) -> Iterator[None]:
    """No gradients and no dropout inside; the model is handed back in the mode it came in."""
    training = isinstance(model, torch.nn.Module) and model.training
    if training:
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        if training:
            model.train()


def logits_at(
    model: Any, tokens: Tensor, time: Tensor | None, rows: Tensor, *, seats: slice | None = None
) -> Tensor:
    """Raw logits [B, R, V] at the asked rows, from any denoiser; seats: of a cache, which its rows are."""
    arguments: dict[str, Any] = {"time": time} if takes(model, "time") else {}
    if seats is not None:
        arguments["seats"] = seats
    if takes(model, "rows"):
        logits: Tensor = model(tokens, rows=rows, **arguments)
    else:
        logits = model(tokens, **arguments)
        _check_shape(model, logits, tokens.shape)
        logits = logits.gather(1, rows.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
    _check_shape(model, logits, rows.shape)
    return suppress_mask(model, logits)


def logits_of(
    model: Any, tokens: Tensor, time: Tensor | None, rows: Tensor, real: Tensor, *, seats: slice | None = None
) -> Tensor:
    """Raw logits [M, V] at the rows [B, R] where the boolean [B, R] holds, in row-major order.

    The others are pads: a network with a ``ragged(tokens, time, rows, real)`` method computes no head for them.
    """
    if bool(real.all()):
        return logits_at(model, tokens, time, rows, seats=seats).flatten(0, 1)
    if hasattr(model, "ragged"):
        return suppress_mask(model, model.ragged(tokens, time, rows, real.to(rows.device)))
    return logits_at(model, tokens, time, rows, seats=seats)[real.to(rows.device)]


def logits_where(model: Any, tokens: Tensor, time: Tensor | None, where: Tensor) -> Tensor:
    """Raw logits [M, V] at the M positions where the boolean [B, L] holds, in row-major order.

    A network with a ``packed(tokens, time, where)`` method computes its head for just these; that is what makes
    training on half-masked batches cheap. Others are asked by rows, padded to the fullest sequence.
    """
    if hasattr(model, "packed"):
        return suppress_mask(model, model.packed(tokens, time, where))
    count = where.sum(1)
    width = int(count.max()) if where.numel() else 0
    # A stable sort of "not here" brings the wanted positions to the front, in order.
    rows = torch.argsort((~where).to(torch.int8), dim=1, stable=True)[:, :width]
    valid = torch.arange(width, device=where.device) < count.unsqueeze(1)
    return logits_at(model, tokens, time, rows)[valid]


def suppress_mask(model: Any, logits: Tensor) -> Tensor:
    """The mask is never a prediction (Eq. 4): where its id lies below V, its logit is -inf.

    A network with a true ``suppresses_mask`` has seen to it itself, and its logits need no copy.
    """
    if model.mask_id >= logits.shape[-1] or getattr(model, "suppresses_mask", False):
        return logits
    index = torch.tensor([model.mask_id], device=logits.device)
    return logits.index_fill(-1, index, -torch.inf)


def _check_shape(model: Any, logits: Tensor, leading: tuple[int, ...]) -> None:
    expected = (*leading, model.vocab_size)
    if tuple(logits.shape) != expected or not logits.is_floating_point():
        raise ValueError(
            f"{type(model).__name__} returned {logits.dtype} {tuple(logits.shape)}; floating-point logits of shape "
            f"{expected} were expected (batch, rows, vocab_size)"
        )
