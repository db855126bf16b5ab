"""The same arithmetic by fewer passes over memory, for sampling in float32 on a CPU.

Each function has a plain form as well, which is used with gradients, on other devices, in other precisions and under
torch.compile; the two agree to rounding. What each of them gave is in docs/speed.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

Table = tuple[Tensor, Tensor]  # cosines and signed sines of the rotary angles, each [..., 1, head_dim]

FEW = 4  # rows up to which W x^T is read faster from memory than x W^T: a step of cached sampling has two
FEW_OF_HEAD = 16  # the same for a matrix that no cache holds
FEW_NUMBERS = 1 << 14  # up to which one operation costs less than several cheaper ones
MLP_ROWS = 512  # rows of an MLP computed at once: their hidden numbers stay in the cache between its two products


def plain(x: Tensor) -> bool:
    """Whether the plain form is wanted for x."""
    return (
        torch.is_grad_enabled() or x.device.type != "cpu" or x.dtype != torch.float32
        or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    )  # fmt: skip


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, few: int = FEW) -> Tensor:
    """x W^T + b; for a few rows, by the faster of its two products."""
    rows = x.numel() // max(x.shape[-1], 1)
    if not 1 < rows <= few or plain(x):
        return functional.linear(x, weight, bias)
    columns = x.reshape(rows, -1).t()
    out = weight @ columns if bias is None else torch.addmm(bias.unsqueeze(1), weight, columns)
    return out.t().reshape(*x.shape[:-1], len(weight))


class Gelu(nn.Module):
    """x (1 + tanh u) / 2, u = sqrt(2/pi) (x + 0.044715 x^3), which is x sigmoid(2u): torch's sigmoid costs half."""

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() <= FEW_NUMBERS or plain(x):
            return functional.gelu(x, approximate="tanh")
        twice = 2 * math.sqrt(2 / math.pi)
        gate = torch.addcmul(x.new_tensor(twice), x, x, value=0.044715 * twice)
        return gate.mul_(x).sigmoid_().mul_(x)


def by_parts(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer that treats every row of x [..., width] alike, applied to MLP_ROWS of them at a time."""
    if x.numel() <= MLP_ROWS * x.shape[-1] or plain(x):
        whole: Tensor = layer(x)
        return whole
    rows = x.flatten(0, -2)
    made = [layer(rows[start : start + MLP_ROWS]) for start in range(0, len(rows), MLP_ROWS)]
    return torch.cat(made).view(*x.shape[:-1], -1)


def rotate(x: Tensor, table: Table) -> Tensor:
    """Rotate each pair (x_k, x_{k + D/2}) of the last dimension by its position's angle."""
    cos, sin = table
    first, second = x.chunk(2, -1)
    if x.numel() <= FEW_NUMBERS or plain(x):
        return torch.addcmul(x * cos, torch.cat((second, first), -1), sin)
    out, half = x * cos, first.shape[-1]
    out[..., :half].addcmul_(second, sin[..., :half])
    out[..., half:].addcmul_(first, sin[..., half:])
    return out


def attention_of_few(q: Tensor, k: Tensor, h: Tensor, weight: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) V for q [B, heads, R, d] and values V = h W^T that are never made: [B, heads, R, d].

    (A h) W^T instead of A (h W^T): for a few rows mixing the inputs h [B, L, width] costs less than projecting all.
    """
    batch, heads, rows, size = q.shape
    mixing = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(size), -1)
    mixed = (mixing.flatten(1, 2) @ h).view(batch, heads, rows, h.shape[-1])
    return mixed @ weight.view(heads, size, h.shape[-1]).transpose(1, 2)
