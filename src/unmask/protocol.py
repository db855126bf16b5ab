"""The contract between a network and everything that samples, trains or evaluates it.

A denoiser is anything that can be called as ``model(tokens, time=None, rows=None)`` and has ``vocab_size`` and
``mask_id``; no base class is needed. ``rows`` and ``time`` are optional: a model that does not take them computes all
rows, and the requested ones are gathered from its output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Protocol, Self, runtime_checkable

from torch import Tensor

from unmask.devices import upload

Allowed = Mapping[int, Tensor]
"""Position -> bool [V]: the only ids that may fill it."""


class Batched:
    """A record about a batch of sequences. Fields that are not tensors, lists or Batched apply to all sequences."""

    def take(self, index: Tensor) -> Self:
        """The record of some of the sequences, int64 [b]."""
        changed = {field.name: _taken(getattr(self, field.name), index) for field in fields(self)}  # type: ignore[arg-type]
        return replace(self, **changed)  # type: ignore[type-var]


def _taken(value: Any, index: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value[upload(index, value.device)]
    if isinstance(value, list):
        return [value[i] for i in index.tolist()]
    return value.take(index) if isinstance(value, Batched) else value


@runtime_checkable
class Denoiser(Protocol):
    """A masked model: it takes tokens, some of them masked, and returns logits for the masked positions.

    Any callable with these two attributes is one, whether or not it is a torch module. ``time`` and ``rows`` may be
    missing from its signature; it is then called without them. It is called with tensors on its device: that of a
    module's parameters, or what another object's attribute ``device`` says; the CPU if there is neither.
    """

    @property
    def vocab_size(self) -> int:
        """V, the number of logits; token ids are 0 .. V-1, and the mask may be V itself or any id below it."""
        ...

    @property
    def mask_id(self) -> int: ...

    def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """tokens int64 [B, L], time float [B], rows int64 [B, R] -> logits [B, R, V], or [B, L, V] without rows.

        tokens: sequences with mask_id at masked positions.
        time: t of the forward process for each sequence, from 1 (all masked) to 0 (all visible): a token is visible at
        t with probability alpha(t). It only says how many tokens are masked (Sec. 3), so a network may ignore it. None:
        not given.
        rows: the requested positions; logits of the others need not be computed.
        Logits are unnormalised, floating-point and indexed by token id; an id that must never be drawn has -inf.
        """
        ...


@runtime_checkable
class ForSampling(Protocol):
    """Sampling should call another network: a faster one, or one with an empty cache."""

    def for_sampling(self) -> Denoiser: ...


@runtime_checkable
class ForBound(Protocol):
    """A bound should be computed with another network: for self-conditioning, one that calls it twice."""

    def for_bound(self) -> Denoiser: ...


@runtime_checkable
class HasLength(Protocol):
    """It was trained on sequences of one length, which is then the default."""

    @property
    def length(self) -> int | None: ...


@runtime_checkable
class ComputesWhere(Protocol):
    """It computes its output head only at the requested positions."""

    def packed(self, tokens: Tensor, time: Tensor | None, where: Tensor) -> Tensor:
        """Logits [M, V] at the M positions where the boolean [B, L] is true, in row-major order."""
        ...


@runtime_checkable
class TakesLengths(Protocol):
    """Whether sequences of several lengths may share a call, with the results of separate calls up to rounding.

    Its calls take ``lengths`` int64 [B]: positions after a sequence's end are not attended to, and no rows are
    requested there. A network that ``Caches`` gets each length through ``add`` and takes no argument.
    """

    @property
    def takes_lengths(self) -> bool: ...


@runtime_checkable
class SuppressesMask(Protocol):
    """Whether the mask's logit is -inf already, so that no copy is needed to set it."""

    @property
    def suppresses_mask(self) -> bool: ...


@runtime_checkable
class Caches(Protocol):
    """It caches each sequence. Row i of a call is seat i; the first call takes the seats it needs."""

    def add(self, count: int, length: int) -> None:
        """Append empty seats for new sequences; length is that of their canvas."""
        ...

    def leave(self, seat: int) -> None:
        """Free a seat: the last sequence moves into it. Dropping the last one copies nothing."""
        ...

    def __call__(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, *, seats: slice | None = None
    ) -> Tensor:
        """Logits [B, R, V] for the sequences in these seats, all by default. If it raises, the cache is unchanged."""
        ...


@runtime_checkable
class HasBytes(Protocol):
    """It knows the size of its cache."""

    @property
    def bytes(self) -> int: ...


@runtime_checkable
class LooksAhead(Caches, Protocol):
    """It computes several tokens of a planned order in one pass, each given guesses of the tokens before it."""

    def ahead(self, tokens: Tensor, order: Tensor, known: Tensor, *, seats: slice | None = None) -> Tensor:
        """Logits [B, W, V] at positions order [B, W] (padded with -1); the first known [B] of these hold guesses.

        Row k is conditioned on the visible tokens outside the order and on the guesses before k.
        """
        ...


def for_sampling(model: Denoiser) -> Denoiser:
    """The network to call in a sampling run: constants folded, its cache empty."""
    return model.for_sampling() if isinstance(model, ForSampling) else model


def for_bound(model: Denoiser) -> Denoiser:
    """The network to call for a bound: mu as a function of only the canvas and the time."""
    return model.for_bound() if isinstance(model, ForBound) else model


def takes_lengths(model: object) -> bool:
    """Whether sequences of several lengths may share its calls."""
    return isinstance(model, TakesLengths) and model.takes_lengths


def length_of(model: object) -> int | None:
    """The length of its training sequences, if known."""
    return model.length if isinstance(model, HasLength) else None


def bytes_of(model: object) -> int:
    """The size of its cache in bytes."""
    return model.bytes if isinstance(model, HasBytes) else 0


def check(model: Any) -> None:
    """Refuse an object that is not a denoiser, and say what is missing."""
    if not callable(model):
        hint = "; give model.denoiser, or call model.sample" if hasattr(model, "denoiser") else ""
        raise ValueError(
            f"model must be callable as model(tokens, time=..., rows=...), got {type(model).__name__}{hint}"
        )
    for name in ("vocab_size", "mask_id"):
        if not isinstance(getattr(model, name, None), int):
            raise ValueError(f"model must have an integer attribute {name!r}; {type(model).__name__} has none")
    if not 0 <= model.mask_id <= model.vocab_size or model.vocab_size < 1:
        raise ValueError(f"model.mask_id must be in 0..vocab_size={model.vocab_size}, got {model.mask_id}")
