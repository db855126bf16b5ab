"""Matrices kept in few bits: brought to the type of the products some rows at a time, through one scratch buffer.

The buffer stays in the processor's cache, so the memory is read once, in the stored size. A product takes less time
than one by float32 weights for a few rows, and as long for hundreds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS = 512  # of a matrix in the buffer: 8 MB in float32 for 4,096 inputs; fewer cost more calls, more miss the cache
GROUP = 32  # weights of a row with one scale and one offset, in int4
COLUMNS = 256  # outputs of a block of int4: long enough that their common arithmetic is vectorised
PIECE = 4096  # rows quantised at a time


class Matrix(nn.Module):
    """W [outputs, inputs], as it is stored. The tensors are buffers, which move to a device but keep their types."""

    name: str  # of the storage
    shape: tuple[int, int]

    def parts(self, products: torch.dtype) -> Iterator[Tensor]:
        """W^T [inputs, n] for successive outputs, each valid until the next one is asked for."""
        raise NotImplementedError

    def scaled(self, out: Tensor) -> Tensor:
        """What is left to do with x W^T [..., outputs]: it may be changed in place."""
        return out

    def times(self, x: Tensor) -> Tensor:
        """x W^T [..., outputs] in float32, for x [..., inputs]."""
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"weights stored as {self.name} give no gradients: load the model with weights='float32'")
        products = self.products(x.device)
        flat = x.reshape(-1, x.shape[-1]).to(products)
        out, at = x.new_empty(len(flat), self.shape[0], dtype=torch.float32), 0
        for part in self.parts(products):
            end = min(at + part.shape[1], self.shape[0])
            out[:, at:end] = (flat @ part)[:, : end - at]
            at = end
        return self.scaled(out).view(*x.shape[:-1], self.shape[0])

    def dense(self) -> Tensor:
        """W in float32: a new tensor."""
        columns = [part.clone() for part in self.parts(torch.float32)]
        return self.scaled(torch.cat(columns, 1)[:, : self.shape[0]]).t()

    def take(self, ids: Tensor) -> Tensor:
        """Rows of W in float32, [..., inputs]."""
        return self.dense()[ids]

    def scale_outputs(self, factor: Tensor) -> None:
        """Multiply W by a factor [outputs] of each row."""
        raise NotImplementedError

    def products(self, device: torch.device) -> torch.dtype:
        """The type of the products: bfloat16 where the device computes in it, and otherwise float32."""
        return torch.bfloat16 if has_bfloat16(device.type) else torch.float32

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Matrix:
        for name, tensor in self._buffers.items():
            if tensor is not None:
                probe = fn(tensor[:0])  # not the whole: a conversion would need the memory that storing it saves
                self._buffers[name] = fn(tensor) if probe.dtype == tensor.dtype else tensor.to(probe.device)
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        raise ValueError(f"weights stored as {self.name} cannot be saved: load the model with weights='float32'")


class Rows(Matrix):
    """Rows as they are: bfloat16 or float16, or int8 with a scale for each row."""

    weight: Tensor
    scale: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor | None = None) -> None:
        super().__init__()
        self.name, self.shape = str(weight.dtype).removeprefix("torch."), (weight.shape[0], weight.shape[1])
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)

    def parts(self, products: torch.dtype) -> Iterator[Tensor]:
        if self.weight.dtype == products:
            yield self.weight.t()
            return
        for some in torch.split(self.weight, ROWS if self.weight.device.type == "cpu" else PIECE):
            yield scratch(some, products).copy_(some).t()

    def scaled(self, out: Tensor) -> Tensor:
        return out if self.scale is None else out.mul_(self.scale)

    def take(self, ids: Tensor) -> Tensor:
        rows = functional.embedding(ids, self.weight).float()
        return rows if self.scale is None else rows * self.scale[ids].unsqueeze(-1)

    def scale_outputs(self, factor: Tensor) -> None:
        self.scale = factor.float() if self.scale is None else self.scale * factor

    def products(self, device: torch.device) -> torch.dtype:
        # bfloat16 has fewer digits than float16
        return torch.float32 if self.weight.dtype == torch.float16 else super().products(device)


class Groups(Matrix):
    """int4: q scale + least, q in 0..15, for each 32 weights of a row; 5 bits a weight.

    Stored [blocks, inputs / 32, 16, outputs of a block], with input i of a group in the low half of a byte and input
    i + 16 in the high half: scale and offset are then common to neighbours in no loop, and the loops are long.
    """

    name = "int4"
    halves: Tensor
    scale: Tensor
    least: Tensor

    def __init__(self, shape: tuple[int, int], halves: Tensor, scale: Tensor, least: Tensor) -> None:
        super().__init__()
        self.shape = shape
        for name, tensor in (("halves", halves), ("scale", scale), ("least", least)):
            self.register_buffer(name, tensor)

    def parts(self, products: torch.dtype) -> Iterator[Tensor]:
        for halves, scale, least in zip(self.halves, self.scale, self.least, strict=True):
            groups, half, columns = halves.shape
            shape = torch.empty(groups, 2 * half, columns, device="meta")
            bits = scratch(shape, torch.uint8, halves.device)
            torch.bitwise_and(halves, 15, out=bits[:, :half])
            torch.bitwise_right_shift(halves, 4, out=bits[:, half:])
            values = scratch(shape, torch.float32, halves.device).copy_(bits)
            torch.addcmul(least.float(), values, scale.float(), out=values)
            if products != torch.float32:
                values = scratch(shape, products, halves.device).copy_(values)
            yield values.view(-1, columns)

    def scale_outputs(self, factor: Tensor) -> None:
        blocks, _, _, columns = self.scale.shape
        padded = functional.pad(factor, (0, blocks * columns - len(factor))).view(blocks, 1, 1, columns)
        self.scale, self.least = (part.float().mul(padded).to(part.dtype) for part in (self.scale, self.least))


class StoredLinear(nn.Module):
    """x W^T + b for a stored W, in the place of an nn.Linear; for inference only."""

    def __init__(self, matrix: Matrix, bias: Tensor | None = None) -> None:
        super().__init__()
        self.matrix = matrix
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)
        self.out_features, self.in_features = matrix.shape

    @property
    def weight(self) -> Tensor:
        """W in float32, for whoever needs it whole: a new tensor, so a change of it changes nothing."""
        return self.matrix.dense()

    def forward(self, x: Tensor) -> Tensor:
        made = self.matrix.times(x)
        return made if self.bias is None else made.add_(self.bias)


class StoredEmbedding(nn.Module):
    """Rows of a stored table, in the place of an nn.Embedding."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.matrix = matrix
        self.num_embeddings, self.embedding_dim = matrix.shape

    @property
    def weight(self) -> Tensor:
        return self.matrix.dense()

    def forward(self, ids: Tensor) -> Tensor:
        return self.matrix.take(ids)


def tied(embedding: nn.Module, x: Tensor, rows: int) -> Tensor:
    """x E^T for the first rows of an embedding's table E: the logits of a network whose head is its embedding."""
    if isinstance(embedding, StoredEmbedding):
        return embedding.matrix.times(x)[..., :rows]
    weight: Any = embedding.weight
    return functional.linear(x, weight[:rows])


def scale_outputs(linear: nn.Module, factor: Tensor) -> None:
    """Multiply the rows of a linear map's matrix, stored or not, by a factor [outputs]; not its bias."""
    if isinstance(linear, StoredLinear):
        linear.matrix.scale_outputs(factor)
    else:
        weight: Any = linear.weight
        weight.mul_(factor.unsqueeze(1))


def int8(weight: Tensor) -> Rows:
    """Whole numbers up to 127, and a scale for each row: the largest magnitude / 127."""
    kept = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(len(weight))
    for some, whole, scale in zip(*(torch.split(part, PIECE) for part in (weight.detach(), kept, scales)), strict=True):
        torch.div(some.abs().amax(1).float(), 127, out=scale)
        whole.copy_((some.float() / scale.masked_fill(scale == 0, 1).unsqueeze(1)).round_())
    return Rows(kept, scales)


def int4(weight: Tensor) -> Groups:
    """The 16 values from a group's least to its largest weight, with scale and offset in float16."""
    outputs, inputs = weight.shape
    if inputs % GROUP:
        raise ValueError(f"int4 needs a multiple of {GROUP} inputs, got {inputs}")
    columns = min(COLUMNS, outputs)
    kept = [_block(some.float(), columns) for some in torch.split(weight.detach(), columns)]
    halves, scale, least = (torch.stack(parts) for parts in zip(*kept, strict=True))
    return Groups((outputs, inputs), halves, scale, least)


def _block(rows: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """One block of int4 from rows [up to columns, inputs]."""
    groups = functional.pad(rows, (0, 0, 0, columns - len(rows))).t().reshape(-1, GROUP, columns)
    least = groups.amin(1, keepdim=True).half()
    scale = ((groups.amax(1, keepdim=True) - least.float()) / 15).half()
    steps = scale.float().masked_fill(scale == 0, 1)
    q = ((groups - least.float()) / steps).round_().clamp_(0, 15).to(torch.uint8)
    return q[:, : GROUP // 2] | q[:, GROUP // 2 :] << 4, scale, least


_buffers = threading.local()


def scratch(like: Tensor, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """A tensor of this shape in this thread's buffer for the type: the next call of the same type overwrites it."""
    device = like.device if device is None else device
    kept: dict[Any, Tensor] = vars(_buffers)
    key = f"{dtype} {device}"
    if key not in kept or kept[key].numel() < like.numel():
        with torch.inference_mode(False):  # a tensor of inference mode could not be written to outside it
            kept[key] = torch.empty(like.numel(), dtype=dtype, device=device)
    return kept[key][: like.numel()].view(like.shape)


@cache
def has_bfloat16(kind: str) -> bool:
    """Whether products in bfloat16 are the fastest of this kind of device. A CPU needs AVX-512's or AMX's units."""
    if kind != "cpu":
        return kind != "mps"
    units = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, unit, lambda: False)()) for unit in units)
