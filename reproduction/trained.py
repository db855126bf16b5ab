"""Trained models as subjects: bundled ones with their left-to-right twins, and the user's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from reproduction.item import Settings, Subject
from unmask.evaluate.judge.judge import load_judge
from unmask.loading import load
from unmask.sampling import Sample

TWIN, SEDD = "-ar", "-sedd"  # suffixes of the left-to-right twin, and of the one trained with score entropy


@lru_cache(maxsize=4)
def trained(name: str, settings: Settings) -> Subject:
    """A model by name or folder. Its twin is NAME-ar, its SEDD baseline NAME-sedd, if they exist."""
    model = load(name)
    if model.process.exact:
        raise ValueError(f"{name} is a left-to-right model: it has no masked positions to sample")
    twin, sedd = _beside(name, TWIN), _beside(name, SEDD)
    length = model.length or 128

    def left_to_right(num: int, length: int, seed: int | Sequence[int], **options: Any) -> Sample:
        made: Sample = twin.sample(num, length=length, seed=seed, **options)
        return made

    return Subject(
        model.name,
        f"{model.name}, V = {model.denoiser.vocab_size:,}, judged by {settings.judge}",
        model.denoiser,
        length=length,
        long=length,
        judge=_judge(settings.judge),
        decode=model.decode,
        left_to_right=left_to_right if twin else None,
        most=settings.pick(full=128, fast=4, tiny=8),
        sedd=None if sedd is None else sedd.denoiser,
    )


@lru_cache(maxsize=2)
def _judge(name: str) -> Any:
    return load_judge(name)


def _beside(name: str, suffix: str) -> Any:
    try:
        return load(f"{name}{suffix}")
    except (ValueError, OSError):
        return None
