"""Zero-shot perplexities: the bound of one model on texts that it was not trained on, with its own tokenizer.

A corpus is represented by the beginning of its held-out part, so that a large one costs no more than a small one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unmask.data import corpora
from unmask.evaluate.data import found
from unmask.evaluate.likelihood.evaluation import Evaluation
from unmask.evaluate.likelihood.tokenfiles import evaluate
from unmask.model import Model

CORPORA = ("kjv", "sotu", "text8", "enwik8")
HELD_OUT = 0.05  # the last part of a corpus that has no split of its own, as in ``corpora``
CHARACTERS = 1_000_000


def held_out(name: str, characters: int = CHARACTERS) -> str:
    """The beginning of the held-out part of a corpus: that of its own split, or of its last 5 %."""
    corpus = corpora.load(name)
    if "valid" in corpus.splits:
        return "\n".join(corpus.texts("valid"))[:characters]
    text = "\n".join(corpus.texts())
    return text[int(len(text) * (1 - HELD_OUT)) :][:characters]


def zero_shot(
    model: Model, data: Sequence[str] = CORPORA, *, characters: int = CHARACTERS, **how: Any
) -> Iterator[tuple[str, Evaluation | ValueError]]:
    """The evaluation of each corpus or text in turn, or why there is none; how: arguments of ``evaluate``."""
    for name in data:
        try:
            with TemporaryDirectory() as scratch:
                source = name
                if name in corpora.NAMES:
                    path = Path(scratch) / f"{name}.txt"
                    path.write_text(held_out(name, characters), encoding="utf-8")
                    source = str(path)
                with found(source, model) as tokens:
                    yield name, evaluate(model, tokens, **how)
        except ValueError as error:  # such as letters that the tokenizer does not have
            yield name, error
