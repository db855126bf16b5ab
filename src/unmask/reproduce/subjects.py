"""What the items sample from, and who judges it: a Subject is a model, its judge and its left-to-right counterpart.

The oracle is a hidden Markov model of real text with GPT-2's tokenizer at V = 50,257. Its optimal masked network is
exact, so a sample is judged by the truth itself, and nothing but the draw can be to blame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask.evaluate.judge.oracle import OracleJudge
from unmask.noise import generator
from unmask.plan import left_to_right as from_left_to_right
from unmask.reproduce.item import Settings, Subject
from unmask.reproduce.trained import trained
from unmask.sampling import Sample

BOX = ("kjv",)
SMOOTHING = 1e-3  # on every expected count: no token is impossible


def subjects(settings: Settings) -> tuple[list[Subject], list[str]]:
    """The subjects that can be had here, and why others cannot."""
    names = [] if settings.size == "tiny" else list(BOX)
    names += [settings.checkpoint] if settings.checkpoint is not None else []
    makers: list[Callable[[], Subject]] = [partial(oracle, settings.size, settings.seed)]
    makers += [partial(trained, name, settings) for name in names]
    found, missing = [], []
    for make in makers:
        try:
            found.append(make())
        except (ValueError, OSError, ImportError) as error:
            missing.append(f"not measured: {error}")
    if not found:
        raise ValueError("no subject to sample from: " + "; ".join(missing))
    return found, missing


@lru_cache(maxsize=2)
def oracle(size: str, seed: int) -> Subject:
    """The oracle's subject; the size decides how much text it is fitted to and how many states it has."""
    if size == "tiny":
        model, about = _small(seed), "a random hidden Markov model, 8 states, V = 300"
        decode: Callable[[list[int]], str] = _numbers
        length, long = 8, 12
    else:
        states, tokens = {"full": (128, 2_000_000), "fast": (32, 300_000)}[size]
        model, decode, corpus = fitted(states, tokens)
        about = (
            f"a hidden Markov model of {states} states fitted to {tokens:,} GPT-2 tokens of {corpus}, judged by itself"
        )
        length, long = {"full": (32, 256), "fast": (24, 64)}[size]

    def left_to_right(num: int, length: int, seed: int | Sequence[int], **options: Any) -> Sample:
        return unmask.sample(model, num=num, length=length, plan=from_left_to_right, seed=seed, **options)

    def exact(num: int, length: int, seed: int) -> Tensor:
        return model.sample(num, length, generator(0, seed, "truth"))

    return Subject("oracle", about, model, length, long, OracleJudge(model), decode, left_to_right, exact)


def fitted(states: int, tokens: int) -> tuple[unmask.HiddenMarkovOracle, Callable[[list[int]], str], str]:
    """A hidden Markov model of the State of the Union addresses in GPT-2's tokens, by Baum-Welch."""
    from unmask.data import corpora
    from unmask.text.weights import gpt2_tokenizer

    tokenizer = gpt2_tokenizer()
    ids: list[int] = []
    for text in corpora.load("sotu").texts():
        ids += tokenizer.encode(text)
        if len(ids) >= tokens:
            break
    model = unmask.HiddenMarkovOracle.fit(
        torch.tensor(ids[:tokens]), tokenizer.vocab_size, states, iterations=12, smoothing=SMOOTHING
    )
    return model, tokenizer.decode, "sotu"


def _small(seed: int) -> unmask.HiddenMarkovOracle:
    """Small enough for a test, and as skewed as text."""
    random = generator(0, seed, "small oracle")

    def table(*shape: int) -> Tensor:
        weights = torch.rand(*shape, dtype=torch.float64, generator=random) ** 6
        return weights / weights.sum(-1, keepdim=True)

    return unmask.HiddenMarkovOracle(table(8), table(8, 8), table(8, 300))


def _numbers(ids: list[int]) -> str:
    return " ".join(map(str, ids))
