"""Caches for sequences that come and go.

Row i of a call has seat i. A new sequence takes the seat after the last; when a sequence leaves, the last one moves
into its seat. So the rows of a call are adjacent in memory, and joining or leaving copies at most one sequence. Lengths
may differ: each seat has memory for the longest, and masks after its own end.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Seated(nn.Module):
    """A network that caches something of each sequence: the protocol ``Caches``, without the call.

    ``kept`` are tensors with a row for each seat, of which the first ``taken`` are in use. Positions are their last
    axis but one, or the last of two. New memory is zero, or what ``fills`` says.
    """

    takes_lengths = True

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Tensor] = {}
        self.fills: dict[str, int] = {}
        self.lengths: list[int] = []  # of the sequence in each seat
        self.canvas = 0  # the positions that there is memory for

    @property
    def taken(self) -> int:
        return len(self.lengths)

    def blank(self, seats: int, length: int) -> dict[str, Tensor]:
        """New memory for this many sequences of a length."""
        raise NotImplementedError

    def forget(self, seats: slice, length: int) -> None:
        """Clear the memory of these seats, for sequences of a length."""
        raise NotImplementedError

    @torch.inference_mode()
    def add(self, count: int, length: int) -> None:
        """Append empty seats for new sequences; length is that of their canvas."""
        wanted, seats = self.taken + count, self.seats
        if not self.taken and (not seats or length != self.canvas):
            self.kept, self.canvas = self.blank(wanted, length), length
        elif wanted > seats or length > self.canvas:
            # With room for more, so that sequences that come one by one do not copy everything each time.
            longer = length + length // 4 if length > self.canvas else self.canvas
            self._resize(max(wanted, 2 * seats) if wanted > seats else seats, longer)
        self.lengths += [length] * count
        self.forget(slice(wanted - count, wanted), length)

    @torch.inference_mode()
    def leave(self, seat: int) -> None:
        """The last sequence moves into the freed seat; when most seats are empty, half are released."""
        if not 0 <= seat < self.taken:
            raise ValueError(f"seat must be in 0..{self.taken - 1}, got {seat}")
        last = self.taken - 1
        if seat < last:
            for kept in self.kept.values():
                kept[seat] = kept[last]
            self.lengths[seat] = self.lengths[last]
        self.lengths.pop()
        if not self.taken:
            return
        seats = self.seats // 2 if self.taken <= self.seats // 4 else self.seats
        canvas = self.canvas // 2 if max(self.lengths) <= self.canvas // 4 else self.canvas
        if (seats, canvas) != (self.seats, self.canvas):
            self._resize(seats, canvas)

    @property
    def seats(self) -> int:
        return len(next(iter(self.kept.values()))) if self.kept else 0

    @property
    def bytes(self) -> int:
        return sum(kept.numel() * kept.element_size() for kept in self.kept.values())

    def here(self, tokens: Tensor, seats: slice | None) -> slice:
        """The seats of a call's rows. Without any, the first call takes them, and a later one may have fewer rows."""
        batch, length = tokens.shape
        if seats is not None:
            first, last, step = seats.indices(self.taken)
            longest = max(self.lengths[first:last], default=0)
            if step != 1 or last - first != batch or not longest <= length <= self.canvas:
                raise ValueError(
                    f"{tuple(tokens.shape)} tokens for seats {first}..{last - 1} of {self.taken}, whose canvases have "
                    f"up to {longest} positions"
                )
            return slice(first, last)
        if not self.taken:
            self.add(batch, length)
        elif batch > self.taken or length != self.canvas:
            raise ValueError(
                f"the last call was for {(self.taken, self.canvas)} tokens and this one is for {tuple(tokens.shape)}: "
                "a run may only lose rows, at its end; make a new network for each run, or add seats"
            )
        for seat in range(self.taken - 1, batch - 1, -1):
            self.leave(seat)
        return slice(0, batch)

    def make_room(self, slots: int) -> None:
        """Make room for this many slots: guesses, and requested rows after a full canvas, need more than tokens."""
        there = self.kept["keys and values 0"].shape[3]
        more = (0, 0, 0, slots + slots // 8 - there)  # extra room, so that growing windows seldom copy everything
        if there < slots:
            for name, kept in self.kept.items():
                if name.startswith(("keys", "inputs")):
                    self.kept[name] = functional.pad(kept, more)

    def _resize(self, seats: int, canvas: int) -> None:
        for name, old in self.kept.items():
            shape = [seats, *old.shape[1:]]
            if old.ndim > 1:
                shape[-1 if old.ndim == 2 else -2] += canvas - self.canvas
            new = old.new_full(shape, self.fills.get(name, 0))
            both = (slice(self.taken), *(slice(min(sizes)) for sizes in zip(shape[1:], old.shape[1:], strict=True)))
            new[both] = old[both]
            self.kept[name] = new  # one by one, because all at once would need twice the memory
        self.canvas = canvas
