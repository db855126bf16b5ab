"""Copies of a network for sampling, with adaLN's constants folded into the weights beside them.

``AskedRows`` is the one without a cache: of its last block and head it computes only what the requested rows need.
"""

from __future__ import annotations

import copy
import math
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.networks.attention import Entries, inside
from unmask.networks.layers import Angles, Block, Norm, Vectors, check_tokens, modulation, rotate, take
from unmask.networks.stored import scale_outputs
from unmask.networks.transformer import Transformer

if TYPE_CHECKING:
    from unmask.networks.masked import MaskedNetwork

T = TypeVar("T", bound=Transformer)
MLP_ROWS = 512  # rows of an MLP computed at once: half the memory of a step, at the same speed


class AskedRows(nn.Module):
    """logits = model(tokens, time, rows) of a masked network without a cache."""

    suppresses_mask = True  # the network does
    takes_lengths = True

    def __init__(self, network: MaskedNetwork) -> None:
        super().__init__()
        self.vocab_size, self.mask_id, self.length = network.vocab_size, network.mask_id, network.length
        # If projections are cached, the weights must not change.
        keeps = network.reads_position_alone
        self.network = private_copy(network) if keeps else constants_folded(network)
        self.first: FirstProjections | None = FirstProjections() if keeps else None
        for block in self.network.blocks:
            block.add_module("mlp", InPieces(*block.mlp))
        self.eval()  # for sampling only, and its network is a copy

    def for_sampling(self) -> AskedRows:
        """The same network with its own projections: runs that take turns would overwrite each other's."""
        made = copy.copy(self)
        made.first = None if self.first is None else FirstProjections()
        return made

    def forward(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        """tokens [B, L], time [B], rows [B, R] -> float32 logits [B, R, V], or [B, L, V] without rows.

        lengths [B]: sequences of several lengths, padded behind their ends.
        """
        return self.network.logits(self.states(tokens, time, rows, lengths))

    def packed(self, tokens: Tensor, time: Tensor | None, where: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Logits [M, V] at the M positions where the boolean [B, L] is true, in row-major order; none for padding."""
        count = where.sum(1, keepdim=True)
        rows = (~where).to(torch.int8).argsort(dim=1, stable=True)[:, : int(count.max()) if len(count) else 0]
        real = torch.arange(rows.shape[1], device=rows.device) < count
        return self.network.logits(self.states(tokens, time, rows, lengths)[real])

    def states(self, tokens: Tensor, time: Tensor | None, rows: Tensor | None, lengths: Tensor | None = None) -> Tensor:
        """The final states [B, R, width]."""
        check_tokens(tokens)
        network = self.network
        if lengths is not None:
            tokens = torch.where(inside(lengths, tokens.shape[1]), tokens, self.mask_id)
        if rows is None:
            return network.states(tokens, time, lengths=lengths)
        entries = network.asked(tokens, rows, lengths)
        assert entries.rows is not None
        x, c = network.read(entries.tokens, entries.positions), network.conditioning(tokens, time, lengths)
        angles = network.rotary_emb(entries.positions)
        blocks = network.blocks[:-1]
        # The cached tensor is one of inference mode, and could not be changed outside it.
        keeps = torch.is_inference_mode_enabled() and not torch.compiler.is_compiling()
        # On an accelerator finding the changes takes longer than computing everything.
        if self.first is not None and blocks and tokens.numel() and keeps and tokens.device.type == "cpu":
            first, blocks = blocks[0], blocks[1:]
            q, k, v = self.first(first, tokens, x, angles, entries.real)
            x = fed(first, first.attended(x, first.mix(q, k, v, entries.mask, entries.ends), None), None, entries.real)
        for block in blocks:
            vectors = block.vectors(c)
            x = fed(block, block.attend(x, angles, vectors, entries), vectors, entries.real)
        x = last_block(network.blocks[-1], x, angles, c, entries, entries.rows)
        final = modulation(network.output_layer.adaLN_modulation, c, 2)
        states: Tensor = network.output_layer.norm_final(x, *(final or ()))
        return states


def fed(block: Block, x: Tensor, vectors: Vectors | None, real: Tensor | None) -> Tensor:
    """The MLP half of a block, in place and without padding: it is most of a block's cost."""
    if real is None or x.device.type != "cpu":  # where the padding is would have to be read
        return block.feed_forward(x, vectors)
    at = real.squeeze(-1).nonzero(as_tuple=True)
    x[at] = block.feed_forward(x[at], block.vectors_at(vectors, at))
    return x


def last_block(block: Block, x: Tensor, angles: Angles, c: Tensor | None, entries: Entries, rows: Tensor) -> Tensor:
    """A block at the rows [B, R]: keys and values for all positions, queries and MLP only for these."""
    vectors = block.vectors(c)
    h = block.prepared(x, vectors, entries.near, entries.real)
    weight, bias = block.attn_qkv.weight, block.attn_qkv.bias  # laid out (three, head, dim)
    inner = len(weight) // 3
    size = (block.heads, inner // block.heads)
    q_bias, kv_bias = (None, None) if bias is None else (bias[:inner], bias[inner:])
    q = functional.linear(take(h, rows), weight[:inner], q_bias).view(*rows.shape, *size)
    k, v = functional.linear(h, weight[inner:], kv_bias).view(*h.shape[:2], 2, *size).unbind(2)
    q, k = block.normed(q, 0), block.normed(k, 1)
    cos, sin = (part.expand(len(x), *part.shape[-3:]) for part in angles)
    mask = None if entries.mask is None else take(entries.mask.squeeze(1), rows).unsqueeze(1)
    q, k = rotate(q, (take(cos, rows), take(sin, rows))), rotate(k, angles)
    mixed = block.mix(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask)
    return block.feed_forward(block.attended(take(x, rows), mixed, vectors), vectors)


class InPieces(nn.Module):
    """A block's MLP, some rows at a time, on a CPU in float32; inference only."""

    def __init__(self, up: nn.Module, activation: nn.Module, down: nn.Module) -> None:
        super().__init__()
        self.up, self.down = up, down
        self.activation = gelu if isinstance(activation, nn.GELU) else activation

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32 or torch.compiler.is_compiling():
            return self._piece(x)
        pieces = [self._piece(piece) for piece in torch.split(x.flatten(0, -2), MLP_ROWS)]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).view_as(x)

    def _piece(self, x: Tensor) -> Tensor:
        down: Tensor = self.down(self.activation(self.up(x)))
        return down


def gelu(x: Tensor) -> Tensor:
    """x (1 + tanh u) / 2, u = sqrt(2/pi) (x + 0.044715 x^3), which is x sigmoid(2u): torch's sigmoid costs half."""
    if x.dtype != torch.float32 or x.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.gelu(x, approximate="tanh")
    twice = 2 * math.sqrt(2 / math.pi)
    gate = torch.addcmul(x.new_tensor(twice), x, x, value=0.044715 * twice)
    return gate.mul_(x).sigmoid_().mul_(x)


class FirstProjections(threading.local):
    """The first block's queries, keys and values of the last canvas: for a new one only changes are computed.

    They depend only on a token, its position and, with a convolution, its neighbours: those of the mask are computed
    once, in the first call. For any canvases the result is that of ``Block.project``; the weights must not change. Each
    thread has its own.
    """

    def __init__(self) -> None:
        self.tokens: Tensor | None = None  # int64 [B, L]
        self.kept: tuple[Tensor, Tensor, Tensor]

    def __reduce__(self) -> tuple[Any, ...]:
        return FirstProjections, ()  # a copy starts empty

    def __call__(
        self, block: Block, tokens: Tensor, x: Tensor, angles: Angles, real: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The projections of tokens [B, L] whose embeddings are x [B, L, width]; angles are [L, 1, head_dim]."""
        batch, known = len(tokens), self.tokens
        if real is not None:  # the end of a sequence is a change like any other
            tokens = torch.where(real.squeeze(-1), tokens, -1)
        if known is None or len(known) < batch or known.shape[1] != tokens.shape[1]:
            self.kept = block.project(block.prepared(x, None, None, real), angles)
        else:
            q, k, v = self.kept
            self.kept = q[:batch], k[:batch], v[:batch]
            self._update(block, tokens != known[:batch], x, angles, real)
        self.tokens = tokens.clone()
        return self.kept

    def _update(self, block: Block, changed: Tensor, x: Tensor, angles: Angles, real: Tensor | None) -> None:
        if block.convolution is not None:
            x, taps = block.prepared(x, None, None, real), block.convolution.weight.shape[1]
            changed = functional.max_pool1d(changed.float(), taps, stride=1, padding=taps // 2) > 0
        row, at = changed.nonzero(as_tuple=True)
        h = x[row, at].unsqueeze(1)
        h = h if block.convolution is not None else block.prepared(h, None)
        new = block.project(h, (angles[0][at].unsqueeze(1), angles[1][at].unsqueeze(1)))
        for kept, part in zip(self.kept, new, strict=True):
            kept[row, :, at] = part.squeeze(2)


@torch.no_grad()
def folded(network: T) -> T:
    """The same function without adaLN, for sampling: with no conditioning its vectors are constants.

    Shifts and scales go into the norms, gates into the projections before them. The result is a copy that shares
    nothing with this network, so further training cannot leave it half updated.
    """
    config = network.config
    if not config.adaln or network.conditioned:
        raise ValueError(
            f"only adaLN vectors that are constants can be folded: adaln={config.adaln}, and conditioned="
            f"{network.conditioned}"
        )
    made, c = separate(network), network.constant_conditioning()
    made.config, made.sigma_map = replace(config, adaln=False, norm_bias=True), None
    for block, old in zip(made.blocks, network.blocks, strict=True):
        vectors = [vector.flatten() for vector in old.vectors(c) or ()]
        _fold(block.norm1, *vectors[:2])
        _fold(block.norm2, *vectors[3:5])
        down = cast("nn.Linear", block.mlp[2])
        scale_outputs(block.attn_out, vectors[2])
        scale_outputs(down, vectors[5])
        down.bias.mul_(vectors[5])
        block.adaLN_modulation = None
    final = modulation(network.output_layer.adaLN_modulation, c, 2) or ()
    _fold(made.output_layer.norm_final, *(vector.flatten() for vector in final))
    made.output_layer.adaLN_modulation = None
    return made


def _fold(norm: Norm, shift: Tensor, scale: Tensor) -> None:
    bias = torch.zeros_like(shift) if norm.bias is None else norm.bias
    norm.bias = nn.Parameter(torch.addcmul(shift, bias, 1 + scale), requires_grad=False)
    norm.weight.mul_(1 + scale)


def separate(network: T) -> T:
    """A read-only copy that shares nothing with the network."""
    made = copy.deepcopy(network).eval().requires_grad_(False)
    made.zero_grad()
    return made


def sharing(network: T) -> T:
    """A read-only copy with its own modules and the network's tensors."""
    tensors = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    return copy.deepcopy(network, tensors).eval()


def constants_folded(network: T) -> T:
    """A copy without adaLN if its vectors are constants, and otherwise one that shares the network's tensors."""
    constant = network.config.adaln and not network.conditioned
    return folded(network) if constant else sharing(network)


def private_copy(network: T) -> T:
    """A copy without adaLN that shares nothing: cached results need weights that do not change."""
    return folded(network) if network.config.adaln else separate(network)
