"""Memory for sequences that come and go.

Row i of a call has seat i. A newcomer takes the seat behind the last; when a sequence leaves, the last one moves into
its seat. So the rows of a call are neighbours in memory, and joining or leaving copies one sequence at most.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Seated(nn.Module):
    """A network that remembers something of each sequence: the protocol ``Caches``, without the call.

    ``kept`` are tensors with a row for each seat, of which the first ``taken`` are in use.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Tensor] = {}
        self.taken = 0
        self.canvas = 0  # the length of every sequence

    def blank(self, seats: int, length: int) -> dict[str, Tensor]:
        """New memory for so many sequences of a length."""
        raise NotImplementedError

    def forget(self, seats: slice) -> None:
        """Make the memory of these seats as good as new."""
        raise NotImplementedError

    @torch.inference_mode()
    def add(self, count: int, length: int) -> None:
        """Seats for newcomers behind the last, with nothing remembered; length is that of their canvas."""
        if self.taken and length != self.canvas:
            raise ValueError(f"a canvas of length {length} cannot join others of length {self.canvas}")
        wanted, seats = self.taken + count, self.seats
        if not seats or length != self.canvas:
            self.kept, self.canvas = self.blank(wanted, length), length
        elif wanted > seats:
            self._resize(max(wanted, 2 * seats))
        self.taken = wanted
        self.forget(slice(wanted - count, wanted))

    @torch.inference_mode()
    def leave(self, seat: int) -> None:
        """The last sequence moves into the seat of one that goes; when most seats are empty, half are given back."""
        if not 0 <= seat < self.taken:
            raise ValueError(f"seat must be in 0..{self.taken - 1}, got {seat}")
        self.taken -= 1
        if seat < self.taken:
            for kept in self.kept.values():
                kept[seat] = kept[self.taken]
        if 0 < self.taken <= self.seats // 4:
            self._resize(self.seats // 2)

    @property
    def seats(self) -> int:
        return len(next(iter(self.kept.values()))) if self.kept else 0

    @property
    def bytes(self) -> int:
        return sum(kept.numel() * kept.element_size() for kept in self.kept.values())

    def here(self, tokens: Tensor, seats: slice | None) -> slice:
        """The seats of a call's rows. Without any, a first call takes them, and a later one may have lost rows."""
        batch, length = tokens.shape
        if seats is not None:
            first, last, step = seats.indices(self.taken)
            if step != 1 or last - first != batch or length != self.canvas:
                raise ValueError(
                    f"{tuple(tokens.shape)} tokens for seats {first}..{last - 1} of {self.taken}, whose canvases have "
                    f"{self.canvas} positions"
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

    def _resize(self, seats: int) -> None:
        for name, old in self.kept.items():
            new = old.new_zeros(seats, *old.shape[1:])
            new[: self.taken] = old[: self.taken]
            self.kept[name] = new  # one by one: both of all would be twice the memory
