"""Use unmask with a transformers model, or inside another pipeline.

``generate`` fills the masks of a text with any ``AutoModelForMaskedLM``; ``Scheduler`` is first-hitting sampling as a
diffusers scheduler (``unmask.hf.diffusers.FirstHittingScheduler``), for use in another sampling loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch

from unmask.checkpoints import transformers_mlm
from unmask.checkpoints.framed import Framed
from unmask.model import Model
from unmask.options import takes
from unmask.sampling import Request, Sample, Watched, filled
from unmask.text.requests import TextSample
from unmask.tokenizers import external


@dataclass(frozen=True)
class Generating(Watched):
    """The arguments of ``generate`` besides the model."""

    tokenizer: Any
    """The model's tokenizer."""
    text: str
    """The text with mask tokens."""
    length: int | None = field(default=None, kw_only=True)
    """Append this many masks to the text."""
    num: int = field(default=1, kw_only=True)
    """The number of texts."""


@takes(Generating)
def generate(model: Any, options: Generating) -> TextSample:
    """Fill every ``tokenizer.mask_token`` of a text, ``num`` times, with any masked LM of transformers.

        generate(model, tokenizer, "Paris is the [MASK] of France.", num=2, steps=4)

    Special tokens are never drawn. Texts are decoded by the tokenizer.

    Args:
        model: An ``AutoModelForMaskedLM``.
        **options: The fields of ``Generating``, and those of ``unmask.sample``. Without ``steps`` one token is drawn
            per network call, which is exact; with ``steps`` it is parallel decoding.
    """
    tokenizer, text, length = options.tokenizer, options.text, options.length
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
    given = {one.name: getattr(options, one.name) for one in fields(Watched)}
    done = filled(denoiser(model, tokenizer), Request(canvas=canvas.expand(options.num, -1).clone(), **given))
    written = [tokenizer.decode(row, skip_special_tokens=True) for row in done.tokens.tolist()]
    return TextSample(**{one.name: getattr(done, one.name) for one in fields(Sample)}, text=written)


def denoiser(model: Any, tokenizer: Any) -> Framed:
    """A masked LM of transformers as a Denoiser, for canvases that its tokenizer makes, special tokens included."""
    return transformers_mlm.denoiser(model, external.of_transformers(tokenizer), framed=False)


def wrap(model: Any, tokenizer: Any, *, name: str | None = None) -> Model:
    """A masked LM of transformers as an ``unmask.Model``: sample, infill, bound, every sampler of the package."""
    own = external.of_transformers(tokenizer)
    network = transformers_mlm.denoiser(model, own)
    return Model(
        network, own, name=name or str(getattr(model, "name_or_path", "") or type(model).__name__), layout="rows"
    )


def __getattr__(name: str) -> Any:
    """``Scheduler``, which needs diffusers, is imported when it is asked for."""
    if name != "Scheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from unmask.hf.diffusers import FirstHittingScheduler

    return FirstHittingScheduler
