"""The exact cache of a network of two streams: newly visible tokens are fed with the requested rows, 2 k rows for k."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unmask.devices import download, upload
from unmask.networks.attention import neighbours, usual_order
from unmask.networks.cache.cached import Cached, Feed, scattered
from unmask.networks.cache.packing import Ready

NOWHERE = -1  # the slot of masked positions


class Changes(NamedTuple):
    """What a canvas changes in the cache."""

    kept: Tensor  # int64 [B, 1]: how many tokens stay in their slots
    new: Tensor  # int64 [B, 1]: how many are fed after them
    fed: Tensor  # int64 [B, N]: their positions, in their order
    counts: tuple[Tensor, ...]  # kept and new on the CPU

    @property
    def total(self) -> Tensor:
        """How many tokens are settled, [B, 1]."""
        return self.kept + self.new


class TwoStreamWindow(NamedTuple):
    """The guesses of a call and the rows that it requests."""

    guesses: Tensor  # int64 [B, G]: positions
    guessed: Tensor  # int64 [B, 1], on the CPU: how many of them a sequence has
    rows: Tensor  # int64 [B, R]: positions
    chained: bool  # whether row k sees the guesses before it; otherwise none does

    @property
    def known(self) -> Tensor:
        """``guessed`` where the rows are."""
        return upload(self.guessed, self.rows.device)


class TwoStreamsCached(Cached):
    """A network of two streams as a denoiser that looks ahead (the protocol ``LooksAhead``).

    If some tokens were masked again or changed, everything after the first of them is fed again. The outputs at masked
    rows are those of the network, given the order in which tokens became visible; those at visible rows are
    meaningless.
    """

    def __init__(self, ready: Ready) -> None:
        super().__init__(ready.network)
        self.ready, self.fills = ready, {"seen": self.mask_id, "slot": NOWHERE}

    def for_sampling(self) -> TwoStreamsCached:
        """The same with an empty cache."""
        return TwoStreamsCached(self.ready)

    @property
    def when(self) -> Tensor:
        """When each token of the last canvas became visible: int64 [B, L], L where it is masked."""
        slot = self.kept["slot"][: self.taken]
        return torch.where(slot == NOWHERE, self.canvas, slot)

    def blank(self, seats: int, length: int) -> dict[str, Tensor]:
        device = self.network.vocab_embed.embedding.device
        seen = torch.full((seats, length), self.mask_id, device=device)  # the last canvas
        # and the slot of each of its visible tokens
        record = {"seen": seen, "slot": torch.full_like(seen, NOWHERE), "usual": torch.zeros_like(seen)}
        return record | super().blank(seats, length)

    def forget(self, seats: slice, length: int) -> None:
        super().forget(seats, length)
        self.kept["seen"][seats], self.kept["slot"][seats] = self.mask_id, NOWHERE
        self.kept["usual"][seats, :length] = upload(usual_order(length), self.kept["usual"].device)

    def at_rows(self, tokens: Tensor, rows: Tensor, here: slice) -> Tensor:
        none = torch.zeros(len(rows), 1, dtype=torch.int64)
        return self._answer(tokens, tokens, TwoStreamWindow(rows[:, :0], none, rows, False), here)

    @torch.inference_mode()
    def ahead(self, tokens: Tensor, order: Tensor, known: Tensor, *, seats: slice | None = None) -> Tensor:
        """Logits [B, W, V] of the next W tokens, each given the settled tokens and the guesses of those before it.

        order [B, W] are the next positions, in order, padded with -1; the first known [B] of them hold guesses in
        tokens [B, L]. Visible tokens that are not in the order are settled. Guesses are fed after the settled tokens
        and overwritten by the next call, unless it shows them settled in this order.
        """
        if not tokens.numel() or not order.numel():
            return torch.empty(*order.shape, self.vocab_size, device=order.device)
        guessed, rows = known.cpu().unsqueeze(1), order.clamp(min=0)
        window = TwoStreamWindow(rows[:, : int(guessed.max())], guessed, rows, True)
        settled = scattered(tokens, torch.where(order < 0, tokens.shape[1], order), self.mask_id)
        return self._answer(tokens, settled, window, self.here(tokens, seats))

    def _answer(self, tokens: Tensor, settled: Tensor, window: TwoStreamWindow, here: slice) -> Tensor:
        """Logits [B, R, V] at the rows of a window. settled [B, L]: the canvas without the guesses."""
        changes = self._changes(settled, here)
        self.kept["valid"][here] = changes.kept.squeeze(1)  # later slots will be overwritten
        place, fed_slots, guess_slots = self._placed(settled, changes, window, here)
        feed = self._feed(changes, window, place, fed_slots, guess_slots)
        visible = tokens.gather(1, feed.positions[:, : -window.rows.shape[1]])  # [B, N + G]
        read = torch.cat((visible, torch.full_like(window.rows, self.mask_id)), 1)  # [B, M]
        logits = self.run(self.ready, self.ready.network.read(read, feed.positions), feed, here)
        length = tokens.shape[1]
        self.kept["seen"][here, :length] = torch.where(place == NOWHERE, self.mask_id, tokens)
        self.kept["slot"][here, :length] = place
        self.kept["valid"][here] = (changes.total + window.known).squeeze(1)
        return logits

    def _changes(self, tokens: Tensor, here: slice) -> Changes:
        """What stays and what is fed for the settled tokens [B, L]."""
        length, valid = tokens.shape[1], self.kept["valid"][here].unsqueeze(1)  # [B, 1]
        seen, slot, usual = (self.kept[name][here, :length] for name in ("seen", "slot", "usual"))  # [B, L] each
        known = seen != self.mask_id
        same = known & (seen == tokens)
        # All slots before the first whose token is gone stay.
        kept = torch.where(known & ~same, slot, valid).amin(1, keepdim=True)  # [B, 1]
        feed = (tokens != self.mask_id) & ~(same & (slot < kept))  # [B, L]
        count = feed.sum(1, keepdim=True)
        # Known tokens come first, in their old order; newly visible ones come in the usual order.
        key = torch.where(same, slot, length + usual)
        counts = download(kept, count)  # all that the shapes of a call depend on: an accelerator's host waits once
        fed = torch.where(feed, key, 2 * length).topk(int(counts[1].max()), largest=False).indices  # [B, N]
        return Changes(kept, count, fed, counts)

    def _placed(
        self, settled: Tensor, changes: Changes, window: TwoStreamWindow, here: slice
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The slot of each position [B, L], and those of the fed tokens [B, N] and of the guesses [B, G].

        A sequence has settled tokens, guesses and then rows; what pads it goes behind all of its own.
        """
        length, total, known = settled.shape[1], changes.total, window.known
        end = total + known + window.rows.shape[1]  # [B, 1]
        new, guess = _arange(changes.fed), _arange(window.guesses)
        real, guessed = new < changes.new, guess < known  # [B, N], [B, G]
        place = torch.where(settled == self.mask_id, NOWHERE, self.kept["slot"][here, :length])
        place = scattered(place, torch.where(real, changes.fed, length), changes.kept + new)
        place = scattered(place, torch.where(guessed, window.guesses, length), total + guess)
        return place, torch.where(real, changes.kept + new, end), torch.where(guessed, total + guess, end)

    def _feed(
        self, changes: Changes, window: TwoStreamWindow, place: Tensor, fed_slots: Tensor, guess_slots: Tensor
    ) -> Feed:
        """The entries of a call, M = N + G + R: tokens that are fed, guesses, and rows."""
        column, total, known = _arange(window.rows), changes.total, window.known  # [R], [B, 1], [B, 1]
        positions = torch.cat((changes.fed, window.guesses, window.rows), 1)  # [B, M]
        slots = torch.cat((fed_slots, guess_slots, total + known + column), 1)  # [B, M]
        before = torch.minimum(column, known) if window.chained else torch.zeros_like(column)
        seen = total + before - 1 + torch.zeros_like(window.rows)  # [B, R]: the last slot that a row sees
        level = torch.cat((fed_slots, guess_slots, seen), 1)  # [B, M]
        kept, new = changes.counts
        padded = (new < changes.fed.shape[1]) | (window.guessed < window.guesses.shape[1])
        first, taps = int(kept.min()), self.network.config.convolution
        return Feed(
            positions,
            slots,
            level,
            first if first == int(kept.max()) and not bool(padded.any()) else None,
            int((kept + new + window.guessed + len(column) + padded).max()),
            neighbours(place, place, positions, level, slots, taps) if taps else None,
            (column + positions.shape[1] - len(column)).expand_as(window.rows),
        )


def _arange(like: Tensor) -> Tensor:
    """0, 1, ... for the columns of a tensor."""
    return torch.arange(like.shape[1], device=like.device)
