"""The contract between a network and everything that samples, trains or evaluates it.

A denoiser is anything that can be called as ``model(tokens, time=None, rows=None)`` and has ``vocab_size`` and
``mask_id``; no base class is needed. ``rows`` and ``time`` are optional for a third party's model: one that does not
take them is asked for everything, and the rows are gathered from its answer.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Protocol, Self, runtime_checkable

from torch import Tensor


class Batched:
    """Whatever a batch of sequences is described by. Fields that are no tensors, lists or Batched are everybody's."""

    def take(self, index: Tensor) -> Self:
        """The same for some of the sequences, int64 [b]."""
        changed = {field.name: _taken(getattr(self, field.name), index) for field in fields(self)}  # type: ignore[arg-type]
        return replace(self, **changed)  # type: ignore[type-var]


def _taken(value: Any, index: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value[index.to(value.device)]
    if isinstance(value, list):
        return [value[i] for i in index.tolist()]
    return value.take(index) if isinstance(value, Batched) else value


@runtime_checkable
class Denoiser(Protocol):
    """A masked model: tokens with holes in, raw logits of what the holes hide out.

    Any callable with these two attributes is one, a torch module or not; ``time`` and ``rows`` may be missing from its
    signature, and it is then called without them.
    """

    @property
    def vocab_size(self) -> int:
        """V, the number of logits; token ids are 0 .. V-1, and the mask may be V itself or any id below it."""
        ...

    @property
    def mask_id(self) -> int: ...

    def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """tokens int64 [B, L], time float [B], rows int64 [B, R] -> logits [B, R, V], or [B, L, V] without rows.

        tokens: a sequence with mask_id where it is masked.
        time: t of the forward process for each sequence, from 1 (all masked) to 0 (all visible): a token is visible at
        t with probability alpha(t). It tells how many are masked and nothing more (Sec. 3), so a network may ignore
        it; None means that it was not said.
        rows: the positions that are asked for; logits of the others need not be computed.
        Logits are raw, floating-point and indexed by token id; an id that must never be drawn has -inf.
        """
        ...


@runtime_checkable
class ForSampling(Protocol):
    """What should be called in a run of sampling is another network: a faster one, or one with nothing remembered."""

    def for_sampling(self) -> Any: ...


@runtime_checkable
class ForBound(Protocol):
    """What a bound should be measured with may be another network: a self-conditioned one called twice."""

    def for_bound(self) -> Any: ...


@runtime_checkable
class HasLength(Protocol):
    """It was trained on sequences of one length, which is the default."""

    @property
    def length(self) -> int | None: ...


@runtime_checkable
class LeftToRight(Protocol):
    """Whether position l is answered from the tokens before l alone."""

    @property
    def causal(self) -> bool: ...


@runtime_checkable
class AnyOrder(Protocol):
    """Whether attention is causal in the order of unmasking; its calls then take ``when`` [B, L], smaller first."""

    @property
    def any_order(self) -> bool: ...

    def two_streams(self, tokens: Tensor, when: Tensor | None = None, rows: Tensor | None = None) -> Tensor: ...

    def packed(self, tokens: Tensor, time: Tensor | None, where: Tensor, *, when: Tensor | None = None) -> Tensor: ...

    def logits(self, states: Tensor) -> Tensor: ...


@runtime_checkable
class ByBlocks(Protocol):
    """The positions of a block, where attention goes by blocks: one sees itself and those before it, and none behind.

    It answers for the first block of a canvas that has holes, or for every block given the ``clean`` ones before it.
    """

    @property
    def block(self) -> int | None: ...

    def packed(self, tokens: Tensor, time: Tensor | None, where: Tensor, *, clean: Tensor | None = None) -> Tensor: ...


@runtime_checkable
class ComputesWhere(Protocol):
    """It computes its head where it is asked to and nowhere else."""

    def packed(self, tokens: Tensor, time: Tensor | None, where: Tensor) -> Tensor:
        """Logits [M, V] at the M positions where the boolean [B, L] holds, in row-major order."""
        ...


@runtime_checkable
class TakesLengths(Protocol):
    """Whether sequences of several lengths may share a call, each answered as if it were alone, up to rounding.

    Its calls take ``lengths`` int64 [B]: what stands behind a sequence's end, whatever it is, is seen by nobody, and
    rows there are not asked for. One that ``Caches`` is told each sequence's length by ``add`` and takes no argument.
    """

    @property
    def takes_lengths(self) -> bool: ...


@runtime_checkable
class SuppressesMask(Protocol):
    """Whether the mask's logit is -inf already, so that no copy is needed to put it there."""

    @property
    def suppresses_mask(self) -> bool: ...


@runtime_checkable
class Caches(Protocol):
    """It remembers what it read of each sequence. Row i of a call is seat i; a first call takes the seats it needs."""

    def add(self, count: int, length: int) -> None:
        """Seats for newcomers behind the last, with nothing remembered; length is that of their canvas."""
        ...

    def leave(self, seat: int) -> None:
        """The last sequence moves into the seat that becomes free; dropping the last copies nothing."""
        ...

    def __call__(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, *, seats: slice | None = None
    ) -> Tensor:
        """Logits [B, R, V] for the sequences in these seats, all by default. If it raises, nothing was remembered."""
        ...


@runtime_checkable
class HasBytes(Protocol):
    """It knows the size of what it remembers."""

    @property
    def bytes(self) -> int: ...


@runtime_checkable
class LooksAhead(Caches, Protocol):
    """It answers for several tokens of a planned order in one pass, each given guesses of those before it."""

    def ahead(self, tokens: Tensor, order: Tensor, known: Tensor, *, seats: slice | None = None) -> Tensor:
        """Logits [B, W, V] at positions order [B, W] (-1 pads), the first known [B] of which hold guesses in tokens.

        Row k is given the settled tokens, visible and not in the order, and the guesses before k.
        """
        ...


def for_sampling(model: Any) -> Any:
    """What a network says should be called in a run of sampling: constants folded, nothing remembered from another."""
    return model.for_sampling() if isinstance(model, ForSampling) else model


def for_bound(model: Any) -> Any:
    """What a network says should be called for a bound: mu as a function of the canvas and the time alone."""
    return model.for_bound() if isinstance(model, ForBound) else model


def takes_lengths(model: object) -> bool:
    """Whether sequences of several lengths may share its calls."""
    return isinstance(model, TakesLengths) and model.takes_lengths


def length_of(model: object) -> int | None:
    """The length of its training sequences, if it has one."""
    return model.length if isinstance(model, HasLength) else None


def bytes_of(model: object) -> int:
    """The size of what it remembers."""
    return model.bytes if isinstance(model, HasBytes) else 0


def follows_order(model: object) -> bool:
    """Whether its attention is causal in the order of unmasking."""
    return isinstance(model, AnyOrder) and model.any_order


def block_of(model: object) -> int | None:
    """The positions of a block, if its attention goes by blocks."""
    return model.block if isinstance(model, ByBlocks) else None


def is_left_to_right(model: object) -> bool:
    """Whether it is a left-to-right model."""
    return isinstance(model, LeftToRight) and model.causal


def check(model: Any) -> None:
    """Refuse what is not a denoiser, and say what is missing."""
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
