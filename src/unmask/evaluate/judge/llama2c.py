"""Llama models in llama2.c's file format as judges of texts."""

from __future__ import annotations

import os
from typing import Any

from unmask.checkpoints import llama2c
from unmask.checkpoints.llama2c import BOS, Pieces
from unmask.evaluate.judge.causal import CausalJudge
from unmask.networks.llama import Llama


def stories15m(cache: str | os.PathLike[str] | None = None, **options: Any) -> CausalJudge:
    """The model with 15 million parameters trained on TinyStories."""
    return as_judge("stories15m", *llama2c.stories15m(cache), **options)


def load(path: str | os.PathLike[str], **options: Any) -> CausalJudge:
    """A model's .bin file, with its tokenizer.bin beside it."""
    return as_judge(str(path), *llama2c.load(path), **options)


def as_judge(
    name: str, network: Llama, pieces: Pieces, *, device: str = "cpu", batch: int = 1, window: int | None = None
) -> CausalJudge:
    """Every text follows the start token, as in training, so its first token is judged."""
    if window is not None and window > network.length:
        raise ValueError(f"window={window}: {name} reads at most {network.length} tokens")
    network = network.to(device)
    return CausalJudge(
        name,
        network,
        pieces.encode,
        window or network.length,
        before=(BOS,),
        states=network.states,
        device=device,
        batch=batch,
    )
