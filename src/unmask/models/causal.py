"""The left-to-right twin: the DDiT's blocks with causal attention, and an exact KV cache.

Inputs are shifted by one and the mask id is the start token, so the logits at position l depend on the tokens before l
alone. It answers the denoiser's call: a canvas with a visible prefix and a masked rest is answered rightly at its first
masked row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from unmask.draw import Draw, check_shape_options, inverse_cdf, shaped
from unmask.models.config import DDiTConfig
from unmask.models.kernels import Table
from unmask.models.layers import Block, Convolution
from unmask.models.packed import packed
from unmask.models.pretrained import Pretrained
from unmask.models.transformer import Transformer
from unmask.protocol import inference


def twin(config: DDiTConfig) -> DDiTConfig:
    """The left-to-right baseline of the same size: no conditioning, no adaLN, as MDLM's."""
    return replace(config, conditioning="none", self_conditioning=False, adaln=False)


class Past:
    """What a causal block has seen: keys and values at most ``length`` long, and the convolution's last inputs."""

    def __init__(self, batch: int, length: int, block: Block) -> None:
        weight = block.attn_qkv.weight
        shape = (batch, block.heads, length, weight.shape[1] // block.heads)
        self.keys, self.values = weight.new_empty(shape), weight.new_empty(shape)
        self.tail: Tensor | None = None
        if block.convolution is not None:
            self.tail = weight.new_zeros(batch, block.convolution.left, weight.shape[1])
        self.used = 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the next positions; give back all that there are."""
        start, self.used = self.used, self.used + k.shape[2]
        self.keys[:, :, start : self.used] = k
        self.values[:, :, start : self.used] = v
        return self.keys[:, :, : self.used], self.values[:, :, : self.used]

    def convolved(self, convolution: Convolution, h: Tensor) -> Tensor:
        """The convolution of what comes next, given what came before it."""
        before = self.tail
        assert before is not None
        self.tail = torch.cat((before, h), 1)[:, -convolution.left :]
        return convolution(h, before)  # type: ignore[no-any-return]


class Causal(Transformer, Pretrained):
    """logits = model(tokens, rows=...): position l from the tokens before it. ``time`` is accepted and not used.

    With ``adaln=True`` in the config its adaLN vectors are constants and its parameters are the DDiT's, number for
    number; ``twin(config)`` leaves them out.
    """

    architecture = "causal"
    causal = True

    def __init__(self, config: DDiTConfig) -> None:
        if config.conditioning != "none" or config.self_conditioning:
            raise ValueError(
                f"a left-to-right model has no conditioning: conditioning={config.conditioning!r}, "
                f"self_conditioning={config.self_conditioning}; see unmask.models.causal.twin"
            )
        super().__init__(config)

    def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """tokens [B, L], rows [B, R] -> float32 logits [B, R, V], or [B, L, V] without rows."""
        return self.next_logits(self._shifted(tokens), rows)

    def next_logits(self, inputs: Tensor, rows: Tensor | None = None) -> Tensor:
        """The logits of what follows each input, with no start token put before them."""
        mask = None
        if rows is not None:
            mask = (torch.arange(inputs.shape[1], device=inputs.device) <= rows.unsqueeze(-1)).unsqueeze(1)
        return self.logits(self.last_states(*self._before_last(inputs), rows, mask))

    def packed(self, tokens: Tensor, time: Tensor | None, where: Tensor) -> Tensor:
        """Logits [M, V] at the M positions where the boolean [B, L] holds, in row-major order."""
        return self.logits(self.states_where(tokens, time, where))

    def states_where(self, tokens: Tensor, time: Tensor | None, where: Tensor) -> Tensor:
        """The final states [M, width] of ``packed``."""
        return self.packed_states(*self._before_last(self._shifted(tokens)), where)

    def empty_past(self, batch: int, length: int) -> list[Past]:
        """Room for the keys and values of ``length`` inputs."""
        return [Past(batch, length, block) for block in self.blocks]

    def step(self, inputs: Tensor, past: list[Past]) -> Tensor:
        """Logits [B, V] of what follows the last of the inputs [B, S], which continue the past; the past grows by S."""
        c, start, new = self.constant_conditioning(), past[0].used, inputs.shape[1]
        x = self.vocab_embed(inputs)
        table = self.rotary_emb(start, start + new)
        at = torch.arange(start + new, device=inputs.device)
        mask = None if new == 1 else at <= at[start:].unsqueeze(1)
        for block, seen in zip(self.blocks, past, strict=True):
            x = block(x, table, block.vectors(c), seen, mask)
        return self.logits(self.output_layer.states(x[:, -1:], self.output_layer.vectors(c))).squeeze(1)

    def generate(
        self,
        num: int = 1,
        length: int | None = None,
        *,
        prompt: Tensor | None = None,
        draw: Draw = inverse_cdf,
        generators: Sequence[torch.Generator] | None = None,
        seed: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> Tensor:
        """int64 [num, length], one network call per token; the prompt [P] or [num, P] is its beginning.

        generators: one per sequence; without them, those that ``seed`` gives to ``unmask.sample``.
        """
        from unmask.sampling import generators as seeded

        length = self.length if length is None else length
        if num < 0 or length < 0:
            raise ValueError(f"num and length must be at least 0, got num={num} and length={length}")
        check_shape_options(temperature, top_k, top_p)
        random = seeded(seed, num) if generators is None else generators
        if len(random) != num:
            raise ValueError(f"generators must be one per sequence: num={num}, {len(random)} generators")
        tokens, known = self._begun(num, length, prompt)
        network = cast("Causal", self.for_sampling())
        past = network.empty_past(num, length)
        if num > 1:
            network = packed(network)
        inputs = self._start(tokens[:, :known])
        for position in range(known, length if num else 0):
            with inference(network):
                logits = shaped(network.step(inputs, past), temperature=temperature, top_k=top_k, top_p=top_p)
                tokens[:, position] = draw(logits, random)
            inputs = tokens[:, position : position + 1]
        return tokens

    def _begun(self, num: int, length: int, prompt: Tensor | None) -> tuple[Tensor, int]:
        """The tokens to fill, the prompt in place, and how many are known."""
        device = self.vocab_embed.embedding.device
        tokens = torch.full((num, length), self.mask_id, dtype=torch.int64, device=device)
        if prompt is None:
            return tokens, 0
        if prompt.dtype != torch.int64 or prompt.ndim not in (1, 2) or (prompt.ndim == 2 and len(prompt) != num):
            raise ValueError(f"prompt must be int64 [P] or [num={num}, P], got {prompt.dtype} {tuple(prompt.shape)}")
        known = prompt.shape[-1]
        if known > length:
            raise ValueError(f"the prompt has {known} tokens, more than length={length}")
        tokens[:, :known] = prompt.to(device)
        return tokens, known

    def _before_last(self, inputs: Tensor) -> tuple[Tensor, Tensor | None, Table]:
        """The last block's input, the constant conditioning and the rotary table."""
        c, table = self.constant_conditioning(), self.rotary_emb(0, inputs.shape[1])
        return self.body(self.vocab_embed(inputs), c, table), c, table

    def _start(self, tokens: Tensor) -> Tensor:
        return functional.pad(tokens, (1, 0), value=self.mask_id)

    def _shifted(self, tokens: Tensor) -> Tensor:
        if tokens.ndim != 2 or tokens.dtype != torch.int64:
            raise ValueError(f"tokens must be int64 [batch, length], got {tokens.dtype} {tuple(tokens.shape)}")
        return self._start(tokens)[:, :-1]
