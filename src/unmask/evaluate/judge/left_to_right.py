"""Left-to-right models of this package as judges."""

from __future__ import annotations

import os
from typing import Any

from unmask.evaluate.judge.causal import CausalJudge


def load(
    name: str | os.PathLike[str], *, device: str = "cpu", batch: int = 1, window: int | None = None
) -> CausalJudge:
    """A left-to-right model from ``unmask train``, by name or folder."""
    from unmask.loading import load as load_model

    return from_model(load_model(name, device=device), device=device, batch=batch, window=window)


def from_model(model: Any, *, device: str = "cpu", batch: int = 1, window: int | None = None) -> CausalJudge:
    """A judge from a model that ``unmask.load`` returned.

    As in training, wrapped text follows an eos, which is given, and a row ends with one, which is judged.
    """
    if not model.process.exact:
        raise ValueError(
            f"{model.name} is a masked model, which only bounds -log p; a judge must be a left-to-right model"
        )
    network, eos = model.denoiser, model.tokenizer.eos_id
    known = () if eos is None else (eos,)
    wrapped = model.layout == "wrapped"
    return CausalJudge(
        model.name,
        network.next_logits,
        model.tokenizer.encode,
        window or network.length,
        before=(network.mask_id, *known) if wrapped else (network.mask_id,),
        after=() if wrapped else known,
        states=network.next_states,
        device=device,
        batch=batch,
    )
