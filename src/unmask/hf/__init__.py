"""Use unmask with a transformers model, or inside another pipeline.

``generate`` fills the masks of a text with any ``AutoModelForMaskedLM``; ``Scheduler`` is first-hitting sampling as a
diffusers scheduler (``unmask.hf.diffusers.FirstHittingScheduler``), for use in another sampling loop.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Unpack

import torch

from unmask.sampling import Sample, sample
from unmask.text import external
from unmask.text.adapters import transformers_mlm
from unmask.text.adapters.framed import Framed
from unmask.text.model import Model, ModelOptions, TextSample


def generate(
    model: Any, tokenizer: Any, text: str, *, length: int | None = None, num: int = 1, **options: Unpack[ModelOptions]
) -> TextSample:
    """Fill every ``tokenizer.mask_token`` of a text, ``num`` times, with any masked LM of transformers.

    Special tokens are never drawn. Texts are decoded by the tokenizer.

    Args:
        model: An ``AutoModelForMaskedLM``.
        tokenizer: Its tokenizer.
        text: The text with mask tokens.
        num: The number of texts.
        length: Append this many masks to the text.
        **options: Those of ``unmask.sample``: steps, seed, temperature, top_k, top_p, batch, ... Without ``steps`` one
            token is drawn per network call, which is exact; with ``steps`` it is parallel decoding.
    """
    if getattr(tokenizer, "mask_token_id", None) is None:
        raise ValueError(f"{type(tokenizer).__name__} has no mask token: the model is not a masked language model")
    if length is not None:
        if length < 1:
            raise ValueError(f"length, the number of masks to append, must be at least 1, got {length}")
        # Most tokenizers accept the mask token without spaces; word-level ones need them, and the others drop them.
        text = " ".join([text, *[tokenizer.mask_token] * length]).strip()
    canvas = torch.tensor([tokenizer(text)["input_ids"]])
    if not bool((canvas == tokenizer.mask_token_id).any()):
        raise ValueError(f"the text has no {tokenizer.mask_token}: write it where a token is missing, or give length")
    made = sample(denoiser(model, tokenizer), canvas=canvas.expand(num, -1).clone(), **options)
    written = [tokenizer.decode(row, skip_special_tokens=True) for row in made.tokens.tolist()]
    return TextSample(**{field.name: getattr(made, field.name) for field in fields(Sample)}, text=written)


def denoiser(model: Any, tokenizer: Any) -> Framed:
    """A masked LM of transformers as a Denoiser, for canvases that its tokenizer makes, special tokens included."""
    return transformers_mlm.denoiser(model, external.of_transformers(tokenizer), framed=False)


def wrap(model: Any, tokenizer: Any, *, name: str | None = None) -> Model:
    """A masked LM of transformers as an ``unmask.Model``: sample, infill, bound, every sampler of the package."""
    own = external.of_transformers(tokenizer)
    made = transformers_mlm.denoiser(model, own)
    return Model(made, own, name=name or str(getattr(model, "name_or_path", "") or type(model).__name__), layout="rows")


def __getattr__(name: str) -> Any:
    """``Scheduler``, which needs diffusers, is imported when it is asked for."""
    if name != "Scheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from unmask.hf.diffusers import FirstHittingScheduler

    return FirstHittingScheduler
