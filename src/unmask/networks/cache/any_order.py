"""An any-order network of one stream with an exact cache: one row for each token.

Slot n of a sequence's cache holds the keys and values of the n-th entry of its line (``networks.any_order``): it reads
the token before and predicts line[n], so it is final once both are. The entry of a requested row is put after the
settled ones. If that position is the next to become visible, its entry is already the one that the line needs, and
nothing is fed twice: each call computes only the rows that it is asked for. In a window the rows follow each other, and
every guess that turns out right leaves an entry that stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from unmask.devices import download, upload
from unmask.networks.attention import usual_order
from unmask.networks.cache.cached import Cached, Feed, scattered
from unmask.networks.cache.packing import Ready
from unmask.networks.first_token import begun

if TYPE_CHECKING:
    from unmask.networks.any_order import Line, OneStream, StreamEntries

NOWHERE = -2  # the place of positions that are not in the line; -1 is that of the start


class Window(NamedTuple):
    """The requested rows of a call: each sees the settled tokens, and in a window the guesses before it."""

    rows: Tensor  # int64 [B, R]
    slots: Tensor  # int64 [B, R]: where their entries go, after those of the settled tokens
    before: Tensor  # int64 [B, R]: how many guesses each sees
    guesses: Tensor  # int64 [B, R]: the positions that hold guesses, and the canvas's length behind the last of them


class OneStreamCached(Cached):
    """A one-stream network as a denoiser that looks ahead (the protocol ``LooksAhead``).

    Tokens that become visible together stand in the usual order. If some are masked again or changed, the entries
    behind the first of them are fed again. The outputs at masked rows are those of the network, given the order in
    which tokens became visible; those at visible rows are meaningless.
    """

    def __init__(self, ready: Ready) -> None:
        super().__init__(ready.network)
        self.ready, self.fills = ready, {"seen": self.mask_id, "place": NOWHERE}

    def for_sampling(self) -> OneStreamCached:
        """The same with an empty cache."""
        return OneStreamCached(self.ready)

    @property
    def stream(self) -> OneStream:
        return cast("OneStream", self.network)

    @property
    def when(self) -> Tensor:
        """When each token of the last canvas became visible: int64 [B, L], L where it is masked."""
        masked = self.kept["seen"][: self.taken] == self.mask_id
        return self.kept["place"][: self.taken].masked_fill(masked, self.canvas)

    def blank(self, seats: int, length: int) -> dict[str, Tensor]:
        like = self.network.vocab_embed.embedding
        seen = torch.full((seats, length), self.mask_id, device=like.device)
        # The last canvas; the slot whose entry predicts each position; the usual order of the sequence's length.
        line = {"seen": seen, "place": torch.full_like(seen, NOWHERE), "usual": torch.zeros_like(seen)}
        return line | super().blank(seats, length)

    def forget(self, seats: slice, length: int) -> None:
        super().forget(seats, length)
        self.kept["seen"][seats], self.kept["place"][seats] = self.mask_id, NOWHERE
        self.kept["usual"][seats, :length] = upload(usual_order(length), self.kept["usual"].device)

    def at_rows(self, tokens: Tensor, rows: Tensor, here: slice) -> Tensor:
        none, column = torch.zeros_like(rows), torch.arange(rows.shape[1], device=rows.device)
        return self._answer(tokens, Window(rows, none + column, none, none + tokens.shape[1]), here)

    @torch.inference_mode()
    def ahead(self, tokens: Tensor, order: Tensor, known: Tensor, *, seats: slice | None = None) -> Tensor:
        """Logits [B, W, V] of the next W tokens, each given the settled tokens and the guesses of those before it.

        order [B, W] are the next positions, in order, padded with -1; the first known [B] of them hold guesses in
        tokens [B, L]. Visible tokens that are not in the order are settled. A row whose predecessor has no guess sees
        the guesses that there are.
        """
        if not tokens.numel() or not order.numel():
            return torch.empty(*order.shape, self.vocab_size, device=order.device)
        (length, width), rows = (tokens.shape[1], order.shape[1]), order.clamp(min=0)
        guessed = torch.arange(width, device=tokens.device) < upload(known, tokens.device).unsqueeze(1)
        tokens = scattered(tokens, torch.where(guessed | (order < 0), length, order), self.mask_id)
        chained = rows > self.stream.origin  # the token that begins every sequence is known, and no guess
        number = chained.cumsum(1) - 1
        slots = torch.where(chained, number, width)
        before = (number + ~chained).minimum((guessed & chained).sum(1, keepdim=True))
        window = Window(rows, slots, before, torch.where(guessed & chained, order, length))
        return self._answer(tokens, window, self.here(tokens, seats))

    def _answer(self, tokens: Tensor, window: Window, here: slice) -> Tensor:
        """Logits [B, R, V] at the rows of a window."""
        line = self._line(begun(tokens, self.mask_id, self.stream.first_token), window, here)
        kept = self._kept(line, here)
        self.kept["valid"][here] = kept.squeeze(1)  # later slots will be overwritten
        entries, feed = self._feed(line, kept, window)
        logits = self.run(self.ready, cast("OneStream", self.ready.network).stream(entries), feed, here)
        self._record(line, window, here)
        return self.stream.answers(logits, window.rows)

    def _line(self, tokens: Tensor, window: Window, here: slice) -> Line:
        """The settled tokens and then the guesses; ``visible`` counts the settled."""
        length, guesses = tokens.shape[1], window.guesses
        seen, place, usual = (self.kept[name][here, :length] for name in ("seen", "place", "usual"))
        key = torch.where(seen == self.mask_id, length + usual, place)
        key = torch.where(tokens == self.mask_id, 4 * length, key)
        key = scattered(key, guesses, 2 * length + window.slots)
        return self.stream.line_by(tokens, key, key < 2 * length)

    def _kept(self, line: Line, here: slice) -> Tensor:
        """How many entries of the settled tokens stay in their slots: those up to the first that changed. [B, 1]."""
        length = line.tokens.shape[1]
        place, seen = (self.kept[name][here, :length].gather(1, line.order) for name in ("place", "seen"))
        slots = torch.arange(line.order.shape[1], device=place.device)
        same = place == slots  # an entry needs the tokens of those before, and of its own position the place
        same[:, 1:] &= (seen == line.tokens.gather(1, line.order))[:, :-1]
        agree = same.long().cumprod(1).sum(1, keepdim=True)
        return agree.minimum(self.kept["valid"][here].unsqueeze(1)).minimum(line.visible)

    def _feed(self, line: Line, kept: Tensor, window: Window) -> tuple[StreamEntries, Feed]:
        """The entries of the settled tokens that are not cached, and those of the rows."""
        rows, size = window.rows, window.rows.shape[1]
        follow = (window.slots == torch.arange(size, device=rows.device)).all(1, keepdim=True)
        # All that the feed's shape depends on is read at once: an accelerator makes the host wait for each reading.
        held, shown, follow = download(kept, line.visible, follow)
        new, first = shown - held, int(held.min())
        added = torch.arange(int(new.max()), device=rows.device)
        # The padding of shorter feeds goes behind the rows.
        slots = kept + added
        slots = torch.where(slots < line.visible, slots, line.visible + size)
        target = line.order.gather(1, slots.clamp(max=line.order.shape[1] - 1)) if len(added) else slots
        level = torch.cat((slots.minimum(line.visible), line.visible + window.before), 1)
        slots = torch.cat((slots, line.visible + window.slots), 1)
        entries = self.stream.entries(line, level, torch.cat((target, rows), 1))
        padded = (new < len(added)) | ~follow
        wanted = len(added) + torch.arange(size, device=rows.device)
        return entries, Feed(
            entries.positions,
            slots,
            level - 1,
            first if first == int(held.max()) and not bool(padded.any()) else None,
            int((shown + size + padded).max()),
            None,
            wanted.expand_as(rows),
        )

    def _record(self, line: Line, window: Window, here: slice) -> None:
        """Record the line, the guesses included, and the row that follows it, whose entry stays if it comes next."""
        length, known = line.tokens.shape[1], (window.guesses < line.tokens.shape[1]).sum(1, keepdim=True)
        total = line.visible + known
        place = torch.where(line.place < total, line.place, NOWHERE)
        after = torch.where(window.slots == known, window.rows, length)  # [B, R], in one place at most
        hidden = functional.pad(line.tokens == self.mask_id, (0, 1)).gather(1, after)
        place = scattered(place, torch.where(hidden, after, length), total)
        fresh = hidden.any(1, keepdim=True)
        self.kept["seen"][here, :length], self.kept["place"][here, :length] = line.tokens, place
        self.kept["valid"][here] = (total + fresh).squeeze(1)
