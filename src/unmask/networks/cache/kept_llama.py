"""The keys and values of a Llama's entries, in seats: common to its exact cache and to the approximate ones."""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.networks.cache.seats import Seated
from unmask.networks.layers import Angles, take
from unmask.networks.llama import Llama


class KeptLlama(Seated):
    """A Llama as a denoiser with a cache (the protocol ``Caches``); its weights are those of the network.

    Slot i holds the token at position i; the last slot is for padding.
    """

    suppresses_mask = True  # the network does

    def __init__(self, network: Llama) -> None:
        super().__init__()
        self.network, self.fills = network, {"seen": -1}
        self.vocab_size, self.mask_id, self.length = network.vocab_size, network.mask_id, network.length
        self.eval()

    def blank(self, seats: int, length: int) -> dict[str, Tensor]:
        config, like = self.network.config, self.network.norm.weight
        new: dict[str, Tensor] = {"seen": torch.full((seats, length), -1, device=like.device)}
        for i in range(config.layers):
            new[f"keys and values {i}"] = like.new_zeros(seats, 2, config.key_heads, length + 1, config.head_size)
        return new

    def forget(self, seats: slice, length: int) -> None:
        self.kept["seen"][seats] = -1

    def read(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, seen: Tensor, wanted: Tensor, here: slice
    ) -> Tensor:
        """The final states [B, R, width] of the wanted entries; the keys and values of all are cached.

        seen: bool [B, M, S], the slots that each entry sees.
        """
        network, last = self.network, len(self.network.blocks) - 1
        table = network.angles(self.kept["seen"].shape[1], tokens.device)
        angles: Angles = (table[0][positions], table[1][positions])
        held, mask = seen.shape[-1], seen.unsqueeze(1)
        row = torch.arange(len(tokens), device=tokens.device).unsqueeze(1)
        x = network.embed(tokens)
        for i, block in enumerate(network.blocks):
            asked = wanted if i == last else None
            q, k, v = block.project(block.norm1(x), angles, asked)
            keys, values = self.kept[f"keys and values {i}"][here].unbind(1)
            keys[row, :, slots], values[row, :, slots] = k.transpose(1, 2), v.transpose(1, 2)
            if asked is not None:
                x, mask = take(x, asked), take(mask.squeeze(1), asked).unsqueeze(1)
            x = block.fed(x + block.mix(q, keys[:, :, :held], values[:, :, :held], mask))
        states: Tensor = network.norm(x)
        return states
