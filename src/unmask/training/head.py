"""The head and its cross-entropy together, a piece at a time: no [masked positions, V] tensor exists.

On a CPU such a tensor's pages cost as much as its arithmetic. The gradient is computed in the forward pass, where the
logits are available, so only the gradient is stored for the backward pass, and nothing is computed twice.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from unmask.masking import Masking
from unmask.processes import process_of

PIECE = 12_000_000  # logits at a time: 48 MB, but
LEAST_ROWS = 256  # a product of fewer rows is slow


@runtime_checkable
class LinearHead(Protocol):
    """A network whose logits are a linear map of final states, which it computes at given positions."""

    def states(self, tokens: Tensor, time: Tensor | None, at: tuple[Tensor, ...] | None) -> Tensor: ...

    def head(self) -> tuple[Tensor, Tensor]: ...

    def logits(self, states: Tensor) -> Tensor: ...


def cross_entropy(
    network: LinearHead, states: Tensor, x0: Tensor, masking: Masking, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """``objective.cross_entropy`` from the final states [M, width] of the masked positions.

    ``scale`` times the weighted sum over sequences, to be differentiated, and the sums of terms per weight, in nats.
    """
    process, targets = process_of(network), x0[masking.at]
    weight = process.spread(masking, masking.weight * scale).to(states.dtype)
    if states.device.type == "cpu" and states.dtype == torch.float32 and not torch.is_autocast_enabled("cpu"):
        matrix, bias = network.head()
        in_pieces: Any = _InPieces.apply
        total, losses = in_pieces(states, matrix, bias, targets, weight, torch.is_grad_enabled())
    else:
        losses = functional.cross_entropy(network.logits(states), targets, reduction="none")
        total, losses = (weight * losses).sum(), losses.detach()
    return total, process.summed(masking, losses)


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, matrix: Tensor, bias: Tensor, targets: Tensor, weight: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor]:
        losses = states.new_empty(len(states))
        rows = max(1, min(len(states), max(LEAST_ROWS, PIECE // len(bias))))
        logits, log_p = states.new_empty(2, rows, len(bias)).unbind()
        d_states, d_matrix, d_bias = (torch.zeros_like(t if gradient else t[:0]) for t in (states, matrix, bias))
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            x, target, w = states[part], targets[part].unsqueeze(1), weight[part].unsqueeze(1)
            torch.addmm(bias, x, matrix.t(), out=logits[: len(x)])
            p = torch.log_softmax(logits[: len(x)], 1, out=log_p[: len(x)])
            losses[part] = -p.gather(1, target).squeeze(1)
            if gradient:
                # d loss / d logits = softmax - one-hot
                p.exp_().mul_(w).scatter_add_(1, target, -w)
                torch.mm(p, matrix, out=d_states[part])
                d_matrix.addmm_(p.t(), x)
                d_bias += p.sum(0)
        if gradient:
            ctx.save_for_backward(d_states, d_matrix, d_bias)
        ctx.mark_non_differentiable(losses)
        return (weight * losses).sum(), losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients: tuple[Tensor, ...] = ctx.saved_tensors
        if float(grad) != 1:
            gradients = tuple(gradient * grad for gradient in gradients)
        return *gradients, None, None, None
