"""Adapters that let a left-to-right network fill positions in any order: of a block, or of the whole sequence.

Entry l of such a network reads token l - 1 and predicts token l. While a block is filled from left to right, that is
all it needs: its answers are those of the left-to-right network, exactly. Two kinds of entries are out of turn: those
behind a masked position of their block, which a left-to-right network is never asked for, and a masked position with a
visible token of its block to the right. They see their whole block, they also read their own token where it is visible,
and every linear map W x of theirs becomes W x + B A x, of low rank (LoRA, Hu et al. 2021). With bidirectional attention
the block is the whole sequence.

So the adapters are trained without any change to what the network knew (``train_alone``). The visible tokens before the
first masked one are all in turn, so their keys and values are those of the left-to-right network, and can be kept.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.forward import check_begins


class Adapters(nn.Module):
    """The low-rank maps of one transformer block. They start at zero."""

    def __init__(self, width: int, up: int, hidden: int, rank: int) -> None:
        super().__init__()
        self.qkv, self.out = _low_rank(width, 3 * width, rank), _low_rank(width, width, rank)
        self.up, self.down = _low_rank(width, up, rank), _low_rank(hidden, width, rank)


def _low_rank(inputs: int, outputs: int, rank: int) -> nn.Sequential:
    down, up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
    nn.init.zeros_(up.weight)
    return nn.Sequential(down, up)


def train_alone(network: nn.Module) -> nn.Module:
    """The network with gradients for its adapters and nothing else."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(".adapters." in name or name.startswith("own_token."))
    return network


def adapted(linear: nn.Module, adapter: nn.Module, x: Tensor, turned: Tensor | None) -> Tensor:
    """linear(x), and the adapter's part where ``turned`` [..., 1] is 1; None stands for nowhere."""
    made: Tensor = linear(x)
    return made if turned is None else torch.addcmul(made, turned, adapter(x))


def out_of_turn(tokens: Tensor, mask_id: int, block: int = 0, real: Tensor | None = None) -> Tensor:
    """Which entries of a canvas [B, L] are out of turn in their blocks: bool [B, L].

    block: 0 if the canvas is one. real bool [B, L]: false behind a sequence's end, where nothing is visible.
    """
    length = tokens.shape[1]
    block = block or max(1, length)
    masked = tokens == mask_id if real is None else (tokens == mask_id) | ~real
    masked = functional.pad(masked, (0, -length % block), value=True).view(len(tokens), -1, block)
    before = masked.cumsum(2) - masked.int()  # masked positions of the block to the left, and visible ones to the right
    behind = (~masked).flip(2).cumsum(2).flip(2) - (~masked).int()
    found: Tensor = (before > 0) | masked & (behind > 0)
    return found.flatten(1)[:, :length]


def begun(tokens: Tensor, mask_id: int, start: int) -> Tensor:
    """The canvas [B, L] with the token that begins every sequence in its place."""
    if tokens.device.type == "cpu":  # elsewhere it would make every call wait, and the process checks a run's canvas
        check_begins(tokens, mask_id, start)
    return functional.pad(tokens[:, 1:], (1, 0), value=start) if tokens.shape[1] else tokens


def first_known(logits: Tensor, positions: Tensor, start: int) -> Tensor:
    """Logits [..., V] whose rows at position 0 say that the token is ``start``."""
    known = logits.new_full(logits.shape[-1:], -torch.inf)
    known[start] = 0.0
    return torch.where((positions == 0).unsqueeze(-1), known, logits)
