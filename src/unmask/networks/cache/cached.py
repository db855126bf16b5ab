"""Networks that read every token once: exact KV caches, here in any order.

Slot i of a sequence's cache holds the keys and values of the i-th entry that was read for it. A call compares the
canvas with the previous one, keeps the slots before the first change, and feeds the rest. Requested masked entries and
guesses are put after the settled ones, where the next call overwrites them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from unmask.devices import upload
from unmask.networks.anyorder import neighbours, usual_order
from unmask.networks.cache.packing import Ready
from unmask.networks.cache.seats import Seated
from unmask.networks.layers import Angles, Block, Transformer, take

NOWHERE = -1  # the slot of masked positions


class Feed(NamedTuple):
    """The entries of a call, which see all keys in slots up to their level, and themselves."""

    tokens: Tensor  # int64 [B, M]
    positions: Tensor  # int64 [B, M]
    slots: Tensor  # int64 [B, M]: where their keys and values go
    level: Tensor  # int64 [B, M]
    start: int | None  # the first slot, if all sequences have the same consecutive ones: they are then sliced
    stop: int  # one past the highest slot
    near: Tensor | None  # int64 [B, M, taps]: the slots of the convolution's inputs; 0 for none, s + 1 for slot s
    wanted: Tensor  # int64 [B, R]: the entries whose logits are requested
    left: Tensor | None = None  # int64 [B, M]: the tokens to the left, for a network with adapters
    turned: Tensor | None = None  # float [B, M, 1]: 1 for entries out of turn; None if there are none


class Cached(Seated):
    """A network as a denoiser with a cache (the protocol ``Caches``)."""

    suppresses_mask = True  # the network does

    def __init__(self, network: Transformer) -> None:
        super().__init__()
        self.network = network
        self.vocab_size, self.mask_id, self.length = network.vocab_size, network.mask_id, network.length
        self.eval()  # for sampling only, and its network is a copy

    def blank(self, seats: int, length: int) -> dict[str, Tensor]:
        config, like = self.network.config, self.network.vocab_embed.embedding  # whose type and device are everybody's
        size, slots = config.width // config.heads, length + 1
        made: dict[str, Tensor] = {"valid": torch.zeros(seats, dtype=torch.int64, device=like.device)}
        for i in range(config.layers):
            made[f"keys and values {i}"] = like.new_zeros(seats, 2, config.heads, slots, size)
            if config.convolution:
                made[f"inputs {i}"] = like.new_zeros(seats, slots + 1, config.width)  # the first is for none
        return made

    def forget(self, seats: slice, length: int) -> None:
        self.kept["valid"][seats] = 0  # the number of slots that agree with the sequence's record

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None, *, seats: slice | None = None
    ) -> Tensor:
        """tokens [B, L], rows [B, R] -> float32 logits [B, R, V], or [B, L, V] without rows; the time is not used."""
        self.network.check(tokens)
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        if not tokens.numel() or not rows.numel():
            return torch.empty(*rows.shape, self.vocab_size, device=rows.device)
        return self.at_rows(tokens, rows, self.here(tokens, seats))

    def at_rows(self, tokens: Tensor, rows: Tensor, here: slice) -> Tensor:
        """Logits [B, R, V] at the rows [B, R] of tokens [B, L], whose seats are ``here``."""
        raise NotImplementedError

    def run(self, ready: Ready, feed: Feed, here: slice) -> Tensor:
        """Logits [B, R, V]: the blocks over the entries; of the last block only what the wanted ones need."""
        network = ready.network
        self._make_room(feed.stop)
        x: Tensor = network.read(feed.tokens, feed.positions, feed.left, feed.turned)
        angles = network.rotary_emb(feed.positions)
        slots = torch.arange(feed.stop, device=x.device)
        hidden = (slots > feed.level.unsqueeze(-1)) & (slots != feed.slots.unsqueeze(-1))
        if network.config.adapters and network.config.first_token is not None:  # its entry is seen by no other
            hidden |= (slots == 0) & (feed.slots > 0).unsqueeze(-1)
        mask = None  # for one entry per sequence, after all others: torch's attention is twice as fast without
        if feed.tokens.shape[1] > 1 or x.device.type != "cpu" or bool(hidden.any()):
            mask = x.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf).unsqueeze(1)  # added to every layer's
        for i, block in enumerate(network.blocks[:-1]):
            x = block.feed_forward(self._attend(i, block, x, angles, mask, feed, here), None, feed.turned)
        last = len(network.blocks) - 1
        if mask is not None:
            mask = take(mask.squeeze(1), feed.wanted).unsqueeze(1)
        x = self._attend(last, network.blocks[last], x, angles, mask, feed, here, feed.wanted)
        turned = None if feed.turned is None else take(feed.turned, feed.wanted)
        return ready.logits(network.output_layer.norm_final(network.blocks[last].feed_forward(x, None, turned)))

    def _attend(
        self,
        i: int,
        block: Block,
        x: Tensor,
        angles: Angles,
        mask: Tensor | None,
        feed: Feed,
        here: slice,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """The attention half of block i, for all entries or the wanted ones; their keys and values are cached."""
        h = block.norm1(x)
        row = torch.arange(len(x), device=x.device).unsqueeze(1)
        if block.convolution is not None:
            assert feed.near is not None
            inputs = self.kept[f"inputs {i}"][here]
            inputs[row, feed.slots + 1] = h
            h = block.convolution.among(h, inputs, feed.near)
        q, k, v = block.project(h, angles, feed.turned)
        keys, values = self.kept[f"keys and values {i}"][here].unbind(1)
        if feed.start is not None:
            keys[:, :, feed.start : feed.stop], values[:, :, feed.start : feed.stop] = k, v
        else:
            keys[row, :, feed.slots], values[row, :, feed.slots] = k.transpose(1, 2), v.transpose(1, 2)
        if wanted is not None:
            x, q = take(x, wanted), take(q.transpose(1, 2), wanted).transpose(1, 2)
        turned = feed.turned if wanted is None or feed.turned is None else take(feed.turned, wanted)
        return x + block.mix(q, keys[:, :, : feed.stop], values[:, :, : feed.stop], mask, turned=turned)

    def _make_room(self, slots: int) -> None:
        """Make room for this many slots: guesses, and requested rows after a full canvas, need more than tokens."""
        there = self.kept["keys and values 0"].shape[3]
        more = (0, 0, 0, slots + slots // 8 - there)  # extra room, so that growing windows seldom copy everything
        if there < slots:
            for name, kept in self.kept.items():
                if name.startswith(("keys", "inputs")):
                    self.kept[name] = functional.pad(kept, more)


class AnyOrderCached(Cached):
    """An any-order network: newly visible tokens are fed together with the requested rows, 2k rows for k.

    If some were masked again or changed, everything after the first of them is fed again. The outputs at masked rows
    are those of the network, given the order in which tokens became visible; those at visible rows are meaningless.
    """

    def __init__(self, ready: Ready) -> None:
        if ready.network.config.attention != "order":
            raise ValueError(f"a cache needs attention='order', got {ready.network.config.attention!r}")
        super().__init__(ready.network)
        self.ready, self.fills = ready, {"seen": self.mask_id, "slot": NOWHERE}

    def for_sampling(self) -> AnyOrderCached:
        """The same with an empty cache."""
        return AnyOrderCached(self.ready)

    @property
    def when(self) -> Tensor:
        """When each token of the last canvas became visible: int64 [B, L], L where it is masked."""
        slot = self.kept["slot"][: self.taken]
        return torch.where(slot == NOWHERE, self.canvas, slot)

    def blank(self, seats: int, length: int) -> dict[str, Tensor]:
        device = self.network.vocab_embed.embedding.device
        seen = torch.full((seats, length), self.mask_id, device=device)  # the last canvas
        # and the slot of each of its visible tokens
        made = {"seen": seen, "slot": torch.full_like(seen, NOWHERE), "usual": torch.zeros_like(seen)}
        return made | super().blank(seats, length)

    def forget(self, seats: slice, length: int) -> None:
        super().forget(seats, length)
        self.kept["seen"][seats], self.kept["slot"][seats] = self.mask_id, NOWHERE
        self.kept["usual"][seats, :length] = usual_order(length).to(self.kept["usual"].device)

    def at_rows(self, tokens: Tensor, rows: Tensor, here: slice) -> Tensor:
        nothing = rows[:, :0]
        return self._answer(tokens, nothing, nothing.sum(1, keepdim=True), rows, here)

    @torch.inference_mode()
    def ahead(self, tokens: Tensor, order: Tensor, known: Tensor, *, seats: slice | None = None) -> Tensor:
        """Logits [B, W, V] of the next W tokens, each given the settled tokens and the guesses of those before it.

        order [B, W] are the next positions, in order, padded with -1; the first known [B] of them hold guesses in
        tokens [B, L]. Visible tokens that are not in the order are settled. Guesses are fed after the settled tokens
        and overwritten by the next call, unless it shows them settled in this order.
        """
        if not tokens.numel() or not order.numel():
            return torch.empty(*order.shape, self.vocab_size, device=order.device)
        known = upload(known, tokens.device).unsqueeze(1)
        guesses = order[:, : int(known.max())].clamp(min=0)
        return self._answer(tokens, guesses, known, order.clamp(min=0), self.here(tokens, seats), order)

    def _answer(
        self, tokens: Tensor, guesses: Tensor, known: Tensor, rows: Tensor, here: slice, order: Tensor | None = None
    ) -> Tensor:
        """Logits at the rows [B, R] after guesses [B, G], of which each sequence has known [B, 1].

        A row sees the settled tokens and, in a window, the guesses before it.
        """
        settled, (device, width) = tokens, (tokens.device, rows.shape[1])
        if order is not None:
            settled = _masked(tokens, order, self.mask_id)
        kept, count, fed = self._changes(settled, here)
        self.kept["valid"][here] = kept.squeeze(1)  # later slots will be overwritten
        total, new, guess = kept + count, torch.arange(fed.shape[1], device=device), _arange(guesses)
        real, guessed, column = new < count, guess < known, torch.arange(width, device=device)
        # Settled tokens, guesses, rows; a sequence's padding goes after all of its own.
        end = total + known + width
        slots = torch.cat(
            (torch.where(real, kept + new, end), torch.where(guessed, total + guess, end), total + known + column), 1
        )
        before = torch.zeros_like(column) if order is None else torch.minimum(column, known)
        level = torch.cat((slots[:, :-width], total + before - 1 + torch.zeros_like(rows)), 1)
        slot = torch.where(settled == self.mask_id, NOWHERE, self.kept["slot"][here, : tokens.shape[1]])
        slot = _scattered(slot, fed, real, kept + new)
        place = _scattered(slot, guesses, guessed, total + guess)
        positions = torch.cat((fed, guesses, rows), 1)
        whole = bool(real.all()) and bool(guessed.all())
        first = int(kept.min())
        near, taps = None, self.network.config.convolution
        if taps:
            near = neighbours(place, place, positions, level, slots, taps)
        asked = torch.arange(width, device=device) + (positions.shape[1] - width)
        read = torch.cat((tokens.gather(1, positions[:, :-width]), torch.full_like(rows, self.mask_id)), 1)
        feed = Feed(
            read,
            positions,
            slots,
            level,
            first if whole and first == int(kept.max()) else None,
            int(slots.max()) + 1,
            near,
            asked.expand_as(rows),
        )
        logits = self.run(self.ready, feed, here)
        seen = torch.where(place == NOWHERE, self.mask_id, tokens)
        self.kept["seen"][here, : tokens.shape[1]], self.kept["slot"][here, : tokens.shape[1]] = seen, place
        self.kept["valid"][here] = (total + known).squeeze(1)
        return logits

    def _changes(self, tokens: Tensor, here: slice) -> tuple[Tensor, Tensor, Tensor]:
        """How many tokens stay in their slots [B, 1], how many are to be fed [B, 1], and their positions [B, N]."""
        length, valid = tokens.shape[1], self.kept["valid"][here].unsqueeze(1)
        seen, slot, usual = (self.kept[name][here, :length] for name in ("seen", "slot", "usual"))
        known = seen != self.mask_id
        same = known & (seen == tokens)
        # All slots before the first whose token is gone stay.
        kept = torch.where(known & ~same, slot, valid).amin(1, keepdim=True)
        feed = (tokens != self.mask_id) & ~(same & (slot < kept))
        count = feed.sum(1, keepdim=True)
        # Known tokens come first, in their old order; newly visible ones come in the usual order.
        key = torch.where(same, slot, length + usual)
        fed = torch.where(feed, key, 2 * length).topk(int(count.max()), largest=False).indices
        return kept, count, fed


def _arange(like: Tensor) -> Tensor:
    return torch.arange(like.shape[1], device=like.device)


def _masked(tokens: Tensor, order: Tensor, mask_id: int) -> Tensor:
    """The canvas with the positions of the order masked; padding is -1."""
    hidden = torch.zeros(len(tokens), tokens.shape[1] + 1, dtype=torch.bool, device=tokens.device)
    hidden = hidden.scatter(1, torch.where(order < 0, tokens.shape[1], order), True)[:, :-1]
    return torch.where(hidden, mask_id, tokens)


def _scattered(x: Tensor, index: Tensor, real: Tensor, values: Tensor) -> Tensor:
    """x with the values at the index [B, N] where they are real."""
    more = functional.pad(x, (0, 1))
    return more.scatter(1, torch.where(real, index, x.shape[1]), values.expand_as(index))[:, :-1]
