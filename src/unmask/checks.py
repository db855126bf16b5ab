"""Users' arguments in the form that the core takes; invalid ones are refused in a sentence."""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.devices import home
from unmask.network import device_of
from unmask.options import Canvas
from unmask.protocol import Denoiser, check, length_of


def ids(value: object, name: str) -> Tensor:
    """Token ids as int64 [batch, length]: from a tensor, a numpy array or lists."""
    wanted = f"{name} must be token ids [batch, length]: a tensor, an array, or lists that are equally long"
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"{wanted}; got {type(value).__name__}") from None
    whole = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    if value.ndim != 2 or not (whole or value.numel() == 0):
        hint = f"; a single sequence is {name}[None]" if value.ndim == 1 and whole else ""
        raise ValueError(f"{wanted}; got {value.dtype} {tuple(value.shape)}{hint}")
    tokens: Tensor = value.to(torch.int64)
    return tokens


def complete(model: Denoiser, value: object, name: str) -> Tensor:
    """Token ids of the model's, int64 [batch, length], none of which is the mask."""
    check(model)
    tokens = ids(value, name)
    if tokens.shape[1] < 1:
        raise ValueError(f"{name} must have at least one token per sequence, got {tuple(tokens.shape)}")
    if bool((tokens == model.mask_id).any()):
        raise ValueError(f"{name} must not contain the mask id {model.mask_id}")
    wrong = (tokens < 0) | (tokens >= model.vocab_size)
    if bool(wrong.any()):
        raise ValueError(f"{name} must be ids in 0..{model.vocab_size - 1}, got {int(tokens[wrong][0])}")
    return tokens


def times(t: object, x0: Tensor) -> Tensor:
    """Times in 0..1, one for each sequence of x0 or one for all."""
    return _per_sequence(t, x0, "t", 0, 1, whole=False)


def counts(n: object, x0: Tensor, most: int | None = None) -> Tensor:
    """Numbers of masked tokens, 1 to ``most`` (L), one for each sequence of x0 or one for all."""
    return _per_sequence(n, x0, "n", 1, x0.shape[1] if most is None else most, whole=True)


def _per_sequence(value: object, x0: Tensor, name: str, least: int, most: int, *, whole: bool) -> Tensor:
    kind = "whole numbers" if whole else "numbers"
    wanted = f"{name} must be {kind} in {least}..{most}, one for each of the {len(x0)} sequences or one for all"
    try:
        given = torch.as_tensor(value, device=x0.device)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{wanted}, got {value!r}") from None
    if given.dtype == torch.bool or (whole and given.is_floating_point()) or given.shape not in ((), (len(x0),)):
        raise ValueError(f"{wanted}, got {given.dtype} {tuple(given.shape)}")
    wrong = ~((given >= least) & (given <= most))  # NaN too
    if bool(wrong.any()):
        raise ValueError(f"{wanted}, got {given[wrong].flatten()[0].item()}")
    given = given.long() if whole else given if given.is_floating_point() else given.double()
    return given.expand(len(x0))


def generator(value: object) -> torch.Generator:
    if not isinstance(value, torch.Generator):
        example = "torch.Generator().manual_seed(0)"
        raise ValueError(f"generator must be a torch.Generator, such as {example}, got {value!r}")
    return value


def check_canvas(model: Denoiser, canvas: Canvas | None, num: int | None, length: int | None) -> Tensor:
    """The canvas int64 [B, L], of ids that the model knows, where tokens are drawn (``devices.home``)."""
    check(model)
    if canvas is None:
        length = length_of(model) if length is None else length
        if length is None:
            raise ValueError("give length, the number of tokens, or a canvas with mask_id at the masked positions")
        num = 1 if num is None else num
        if not (isinstance(num, int) and isinstance(length, int)):
            raise ValueError(f"num and length must be whole numbers, got num={num!r} and length={length!r}")
        if length < 0 or num < 0:
            raise ValueError(f"num and length must be at least 0, got num={num} and length={length}")
        return torch.full((num, length), model.mask_id, dtype=torch.int64, device=home(device_of(model)))
    canvas = ids(canvas, "canvas")
    if length is not None and length != canvas.shape[1]:
        raise ValueError(f"length={length} contradicts the canvas, which has {canvas.shape[1]} positions")
    if num is not None and num != len(canvas):
        raise ValueError(f"num={num} contradicts the canvas, which has {len(canvas)} sequences")
    known = (canvas >= 0) & ((canvas < model.vocab_size) | (canvas == model.mask_id))
    if not bool(known.all()):
        raise ValueError(
            f"canvas has ids that the model does not know, the first is {int(canvas[~known][0])}; allowed are "
            f"0..{model.vocab_size - 1} and the mask {model.mask_id}"
        )
    return canvas.to(home(device_of(model)))
