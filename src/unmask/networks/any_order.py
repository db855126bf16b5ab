"""Any order by one stream: a causal transformer whose entries stand in the order of unmasking.

Entry j reads the token that was unmasked j-th, x_sigma(j), and predicts the next one, x_sigma(j+1). It sees the entries
before it. Its key is rotated by the position of the token that it reads, and its query by the position before the one
that it predicts. From left to right these are the same: the network is then the plain causal transformer of
``unmask.networks.causal`` with the same weights, to the bit. So L entries compute L terms of the chain rule along any
order, and a left-to-right checkpoint is a starting point. (A causal transformer that is told the next position, of a
shuffled sequence, is the sigma-GPT of Pannatier et al., 2024; the rotation of queries is what makes it exact here.)

Two inputs begin at zero, and stay without effect from left to right: the offset of the predicted position from the one
that is read, and the visible tokens next to the predicted position, ``config.neighbours`` on each side. A token is read
only if it comes before the predicted one in the order.

The line of a sequence is the positions of its visible tokens, in order. An entry is determined by its level, how many
tokens of the line it may see, and by its target, the position that it predicts: it reads the last token of those that
it may see. At level 0 it reads the start, the mask's embedding at position -1; or, if ``config.start`` is the token
that begins every sequence, that token, at position 0. The entry of level n and target line[n] is the n-th of the line,
and an entry's keys are those of the first ``level`` of these, and its own. A masked position that is asked for is one
more entry, after the whole line, and no other entry sees it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.networks.attention import Entries, inside, ranks
from unmask.networks.cache.any_order import OneStreamCached
from unmask.networks.cache.packing import packed
from unmask.networks.cache.rows import private_copy
from unmask.networks.config import TransformerConfig
from unmask.networks.first_token import begun, first_known
from unmask.networks.layers import Angles, Rotary, take, zeros
from unmask.networks.transformer import Transformer
from unmask.processes import AnyOrder


@dataclass(frozen=True)
class AnyOrderConfig(TransformerConfig):
    """The blocks, and what a prediction reads beside the line."""

    start: int = field(default=-1, kw_only=True)  # the token that begins every sequence; -1 for none
    neighbours: int = field(default=0, kw_only=True)  # visible tokens on each side of the predicted position

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.convolution:
            raise ValueError(f"an any-order network has no convolution, got {self.convolution} taps")
        if not -1 <= self.start < self.vocab_size:
            raise ValueError(f"start is the id that begins every sequence, or -1 for none, got {self.start}")
        if self.neighbours < 0:
            raise ValueError(f"neighbours must be at least 0, got {self.neighbours}")


class Line(NamedTuple):
    """The visible tokens of each sequence, in the order in which they became visible; N is L, or L - 1 with a start."""

    tokens: Tensor  # int64 [B, L]: the canvas
    order: Tensor  # int64 [B, N]: their positions, followed by those of masked positions
    place: Tensor  # int64 [B, L]: where each position stands in the order; -1 for the start
    visible: Tensor  # int64 [B, 1]: how many are visible


class StreamEntries(NamedTuple):
    """What the entries of a pass read and predict."""

    tokens: Tensor  # int64 [B, M]: the token that is read
    positions: Tensor  # int64 [B, M, 2]: its position, and the target
    near: Tensor  # int64 [B, M, 2 K]: the tokens next to the target; the mask where none may be seen


class TwoPositions(Rotary):
    """Rotary angles of queries and keys that have different positions, for rotating both at once."""

    def __init__(self, head_dim: int, heads: int, origin: int) -> None:
        super().__init__(head_dim)
        self.heads, self.origin = heads, origin

    def forward(self, positions: Tensor) -> Angles:
        """positions [B, M, 2], of the token that is read and of the target -> angles [B, M, 2 heads, head_dim]."""
        read, target = positions.unbind(-1)
        both = torch.stack((target - 1, read), -1) - self.origin  # [B, M, 2]
        cos, sin = super().forward(both)  # [B, M, 2, 1, head_dim] each
        return self._of_heads(cos), self._of_heads(sin)

    def _of_heads(self, part: Tensor) -> Tensor:
        return part.expand(-1, -1, -1, self.heads, -1).flatten(2, 3)


class OneStream(Transformer):
    """The any-order denoiser: logits = model(tokens, time, rows, when). The time is not read."""

    architecture = "any-order"
    attention = "order"
    added = ("offset", "near.weight")  # what a left-to-right checkpoint does not have; they start at zero
    causal = True
    takes_lengths = True

    config_class = AnyOrderConfig
    config: AnyOrderConfig

    def __init__(self, config: AnyOrderConfig) -> None:
        super().__init__(config)
        width, side = config.width, config.neighbours
        self.rotary_emb = TwoPositions(config.head_size, config.heads, self.origin)
        self.offset = nn.Parameter(torch.zeros(2 * config.length, width))
        self.near = zeros(nn.Linear(2 * side * width, width, bias=False)) if side else None
        around = [*range(-side, 0), *range(1, side + 1)]
        self.register_buffer("around", torch.tensor(around, device="cpu", dtype=torch.int64), persistent=False)

    around: Tensor  # int64 [2 K]: the offsets of the tokens next to the target

    @property
    def process(self) -> AnyOrder:
        return AnyOrder(first_token=self.first_token)

    @property
    def first_token(self) -> int | None:
        """The id that begins every sequence, if one does."""
        return self.config.start if self.config.start >= 0 else None

    @property
    def origin(self) -> int:
        """The position of the start."""
        return -1 if self.first_token is None else 0

    # A pass

    def forward(
        self,
        tokens: Tensor,
        time: Tensor | None = None,
        rows: Tensor | None = None,
        when: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """tokens [B, L], rows [B, R] -> float32 logits [B, R, V], or [B, L, V] without rows.

        ``when`` [B, L] or [L] says when each visible token became visible, smaller numbers first; tokens of the same
        number, or all without it, stand in a fixed random order (``attention.usual_order``). ``lengths`` [B]: sequences
        of several lengths, padded at their ends.
        """
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        return self.answers(self.logits(self.asked(tokens, rows, when, lengths)), rows)

    def packed(
        self,
        tokens: Tensor,
        time: Tensor | None,
        where: Tensor,
        when: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Logits [M, V] at the M positions where the boolean [B, L] is true, in row-major order."""
        at = where.nonzero(as_tuple=True)
        return self.answers(self.logits(self.states(tokens, time, at, when, lengths)), at[1])

    def states(
        self,
        tokens: Tensor,
        time: Tensor | None = None,
        at: tuple[Tensor, ...] | None = None,
        when: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """The final states [B, L, width], or those at some indices in row-major order."""
        where = torch.ones_like(tokens, dtype=torch.bool)
        if at is not None:
            where = torch.zeros_like(where).index_put(at, where.new_ones(())) if len(at[0]) else ~where
        count = where.sum(1, keepdim=True)
        most = int(count.max()) if len(count) else 0
        rows = (~where).to(torch.int8).argsort(dim=1, stable=True)[:, :most]
        states = self.asked(tokens, rows, when, lengths)
        return states if at is None else states[torch.arange(most, device=rows.device) < count]

    def asked(self, tokens: Tensor, rows: Tensor, when: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        """The final states [B, R, width] that predict the rows [B, R], each given all visible tokens."""
        line = self.line(tokens, when, lengths)
        longest = int(line.visible.max()) if len(tokens) else 0
        slots = torch.arange(longest, device=tokens.device)
        level = torch.cat((slots.expand(len(tokens), -1), line.visible.expand_as(rows)), 1)  # [B, M]
        entries = self.entries(line, level, torch.cat((line.order[:, :longest], rows), 1))
        seen = functional.pad(slots < level.unsqueeze(2), (0, rows.shape[1]))  # [B, M, M]
        seen = seen | torch.eye(level.shape[1], dtype=torch.bool, device=tokens.device)
        return self.final(entries, seen.unsqueeze(1))[:, longest:]

    def chain(self, tokens: Tensor, when: Tensor | None = None) -> Tensor:
        """The final states [B, L, width] that predict each of the tokens, given those before it in the order ``when``.

        One pass of L entries. That of the token that begins every sequence, which is known, is 0.
        """
        line = self.line(tokens, when)
        level = torch.arange(line.order.shape[1], device=tokens.device).expand_as(line.order)
        states = self.final(self.entries(line, level, line.order), None)  # [B, N, width]
        if self.origin < 0:
            return take(states, line.place)
        return take(functional.pad(states, (0, 0, 1, 0)), line.place + 1)

    # Its parts

    def line(self, tokens: Tensor, when: Tensor | None = None, lengths: Tensor | None = None) -> Line:
        """The line of a canvas [B, L], of which masked positions are not visible."""
        self.check(tokens)
        tokens = begun(tokens, self.mask_id, self.first_token)
        visible = tokens != self.mask_id
        if lengths is not None:
            visible = visible & inside(lengths, tokens.shape[1])
        rank = torch.where(visible, ranks(tokens, when, lengths), tokens.shape[1])
        return self.line_by(tokens, rank, visible)

    def line_by(self, tokens: Tensor, key: Tensor, visible: Tensor) -> Line:
        """The line in which positions stand by a key, int64 [B, L]; of the visible ones, bool [B, L], it is smaller."""
        if self.origin == 0:
            start = torch.arange(tokens.shape[1], device=tokens.device) == 0
            key, visible = key.masked_fill(start, -1), visible & ~start
        order = key.argsort(dim=1, stable=True)[:, self.origin + 1 :]
        return Line(tokens, order, place_of(order, tokens.shape[1]), visible.sum(1, keepdim=True))

    def entries(self, line: Line, level: Tensor, target: Tensor) -> StreamEntries:
        """The entries of these levels and targets, int64 [B, M]."""
        last = level - 1
        start = self.mask_id if self.first_token is None else self.first_token
        position = line.order.gather(1, last.clamp(min=0)) if line.order.shape[1] else torch.zeros_like(level)
        token = torch.where(last < 0, start, line.tokens.gather(1, position))
        position = torch.where(last < 0, self.origin, position)
        at = target.unsqueeze(2) + self.around  # [B, M, 2 K]
        within, at = (at >= 0) & (at < line.tokens.shape[1]), at.clamp(0, line.tokens.shape[1] - 1)
        place, near = (values.gather(1, at.flatten(1)).view_as(at) for values in (line.place, line.tokens))
        # From left to right nothing is added to the token that is read, so a checkpoint keeps what it knows.
        follows = (target == position + 1).unsqueeze(2) & (self.around < 0)
        seen = within & (place < level.unsqueeze(2)) & ~follows
        return StreamEntries(token, torch.stack((position, target), 2), torch.where(seen, near, self.mask_id))

    def final(self, entries: StreamEntries, mask: Tensor | None) -> Tensor:
        """The final states [B, M, width] of entries; mask bool [B, 1, M, M], or None for causal."""
        x = self.stream(entries)
        return self.through(x, Entries(entries.tokens, entries.positions, mask), self.constant_conditioning())

    def stream(self, entries: StreamEntries) -> Tensor:
        """The embedded entries [B, M, width]."""
        read, target = entries.positions.unbind(-1)  # [B, M] each
        x = self.read(entries.tokens, target)
        length = self.config.length
        offset = target - 1 - read
        x = x + self.offset[offset.clamp(-length, length - 1) + length] * (offset != 0).unsqueeze(-1)
        if self.near is None:
            return x
        near = self.vocab_embed(entries.near) * (entries.near != self.mask_id).unsqueeze(-1)  # [B, M, 2 K, width]
        return x + cast("Tensor", self.near(near.flatten(2)))

    def answers(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Logits [..., V] of rows [...]: at position 0 those of the token that begins every sequence, if one does."""
        return first_known(logits, rows, self.first_token)

    def for_sampling(self) -> nn.Module:
        """The network to call in sampling: the same function with an exact cache."""
        return OneStreamCached(packed(private_copy(self)))


def place_of(order: Tensor, length: int) -> Tensor:
    """The place of each of ``length`` positions in an order [B, N], -1 where it has none: int64 [B, L]."""
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return order.new_full((len(order), length), -1).scatter(1, order, places)
