"""KV caches for sequences that come and go.

Row i of a lane has seat i. A newcomer takes the seat behind the last; when a sequence leaves, the last one moves into
its seat. So the rows of a call are neighbours in memory, and joining or leaving copies one sequence at most.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unmask.models.anyorder import Cached, Slots, Where
from unmask.models.causal import Causal
from unmask.models.ddit import DDiT
from unmask.models.layers import at_positions
from unmask.models.transformer import Transformer
from unmask.protocol import logits_at


class Seats:
    """The layers' memories and what else is known, one seat for each sequence of a lane.

    known: tensors with a row per seat. blank: what each of them holds for a sequence of which nothing was read.
    """

    def __init__(self, network: Transformer, slots: int, known: Sequence[Tensor], blank: Sequence[int]) -> None:
        self.network, self.known, self.blank = network, list(known), blank
        self.layers = [Slots(1, slots, block) for block in network.blocks]
        self.taken = 0

    def call(self, here: slice, tokens: Tensor, rows: Tensor) -> Tensor:
        """Logits [B, R, V] for the sequences in these seats. If it raises, nothing has been remembered."""
        raise NotImplementedError

    def add(self) -> None:
        """A seat for a newcomer, with nothing remembered."""
        if self.taken == len(self.known[0]):
            self._replace(lambda kept: torch.cat((kept, torch.zeros_like(kept))))
        for known, value in zip(self.known, self.blank, strict=True):
            known[self.taken] = value
        self.taken += 1

    def leave(self, seat: int) -> None:
        """The last sequence moves into the seat of one that goes; when most seats are empty, half are given back."""
        self.taken -= 1
        if seat < self.taken:
            for kept in self._kept():
                kept[seat] = kept[self.taken]
        seats = len(self.known[0])
        if 0 < self.taken <= seats // 4:
            self._replace(lambda kept: kept[: seats // 2].clone())

    @property
    def bytes(self) -> int:
        return sum(kept.numel() * kept.element_size() for kept in self._kept())

    def _kept(self) -> list[Tensor]:
        layers = [kept for layer in self.layers for kept in (layer.keys, layer.values, layer.inputs)]
        return [kept for kept in (*self.known, *layers) if kept is not None]

    def _replace(self, made: Callable[[Tensor], Tensor]) -> None:
        for layer in self.layers:
            layer.keys, layer.values = made(layer.keys), made(layer.values)
            layer.inputs = None if layer.inputs is None else made(layer.inputs)
        self.known = [made(known) for known in self.known]  # last: they say how many seats there are


class AnyOrderSeats(Seats):
    """Of an any-order network: each sequence keeps what ``Cached`` knows of it, its tokens and their slots."""

    def __init__(self, network: DDiT, length: int) -> None:
        seen = torch.full((1, length), network.mask_id, device=network.vocab_embed.embedding.device)
        super().__init__(network, length + 1, (seen, torch.full_like(seen, length)), (network.mask_id, length))
        self.run = Cached(network)
        self.run.table = network.rotary_emb(0, length)

    def call(self, here: slice, tokens: Tensor, rows: Tensor) -> Tensor:
        run = self.run
        run.seen, run.slot = (known[here] for known in self.known)
        run.layers = [_part(layer, here) for layer in self.layers]
        logits = logits_at(run, tokens, None, rows)
        for known, now in zip(self.known, (run.seen, run.slot), strict=True):
            known[here] = now
        for layer, part in zip(self.layers, run.layers, strict=True):
            if part.keys.shape[2] > layer.keys.shape[2]:  # it had to make room, and so left the seats
                layer.resized(len(layer.keys), part.keys.shape[2])
                layer.keys[here], layer.values[here] = part.keys, part.values
                if layer.inputs is not None and part.inputs is not None:
                    layer.inputs[here] = part.inputs
        return logits


class LeftToRightSeats(Seats):
    """Of a left-to-right network: slot i holds a sequence's i-th input, of which the first is the start token."""

    def __init__(self, network: Causal, length: int) -> None:
        used = torch.zeros(1, dtype=torch.int64, device=network.vocab_embed.embedding.device)
        super().__init__(network, length, (used,), (0,))
        self.table = network.rotary_emb(0, length)

    def call(self, here: slice, tokens: Tensor, rows: Tensor) -> Tensor:
        """rows [B, 1] are the first masked positions; every sequence is as many inputs behind."""
        network, used = self.network, self.known[0][here].unsqueeze(1)
        behind = rows + 1 - used
        assert bool((behind == behind[0]).all()), "who has a prompt to read is called for with prompts of that length"
        slots = used + torch.arange(int(behind[0]), device=tokens.device)
        before = tokens.gather(1, (slots - 1).clamp(min=0))
        c, table = network.constant_conditioning(), at_positions(self.table, slots)
        stop = int(slots.max()) + 1
        start = int(slots[0, 0]) if bool((slots == slots[:1]).all()) else None
        where = Where(slots, start, stop, self._neighbours(slots))
        mask = (torch.arange(stop, device=tokens.device) <= slots.unsqueeze(-1)).unsqueeze(1)
        x = network.vocab_embed(torch.where(slots == 0, network.mask_id, before))
        for block, layer in zip(network.blocks, self.layers, strict=True):
            part = _part(layer, here)
            part.where = where
            x = block(x, table, block.vectors(c), part, mask)
        logits = network.logits(network.output_layer.states(x[:, -1:], network.output_layer.vectors(c)))
        self.known[0][here] = rows.squeeze(1) + 1
        return logits

    def _neighbours(self, slots: Tensor) -> Tensor | None:
        """The inputs that the convolution's taps see: the last one is the input itself."""
        taps = self.network.config.convolution
        if not taps:
            return None
        seen = slots.unsqueeze(-1) + torch.arange(1 - taps, 1, device=slots.device)
        return (seen + 1).clamp(min=0)


def seats_of(network: Cached | Causal, length: int) -> Seats:
    """Seats for the sequences of a network that has a cache."""
    if isinstance(network, Cached):
        return AnyOrderSeats(network.network, length)
    return LeftToRightSeats(network, length)


def _part(layer: Slots, here: slice) -> Slots:
    """The memory of some seats; what is written into it is written into the seats."""
    part = copy.copy(layer)
    part.keys, part.values = layer.keys[here], layer.values[here]
    part.inputs = None if layer.inputs is None else layer.inputs[here]
    return part
