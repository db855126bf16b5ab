"""Generative perplexity under a judge, always with what is needed to interpret it.

Both definitions in use are computed and named: the corpus perplexity exp(all nats / all judged tokens) and the mean of
the sequences' perplexities. They come with the samples' entropy, since a low perplexity is easy to reach at a low
entropy (Sec. 5), with how the samples were drawn and in which precision, with their number, and with intervals. Both
can be matched by samples that no model drew, so the report also says how the samples compare with real sequences, or
that this is unknown.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unmask.evaluate import processes
from unmask.evaluate.judge import diversity
from unmask.evaluate.judge.causal import CausalJudge
from unmask.evaluate.judge.interval import Interval, mean_interval
from unmask.evaluate.judge.oracle import OracleJudge
from unmask.evaluate.judge.real import LEAST, Comparison, Real, Truth, compare, spread
from unmask.evaluate.judge.samples import Samples

__all__ = ["CausalJudge", "Judge", "Judgement", "OracleJudge", "Samples", "judge", "load_judge"]

NAMES = ("smollm2", "stories15m")

CORPUS = "corpus: exp(nats of all tokens / number of all tokens)"
MEAN = "mean of the sequences' own perplexities"
UNKNOWN = (
    f"not compared with real sequences, which takes the training data and {LEAST} samples: "
    "perplexity and entropy cannot tell a model from copies of its training text or from repeated phrases"
)
METHOD = "studentized bootstrap over sequences, at least Student's t"


class Judge(Protocol):
    """Anything that assigns each token of a sequence a probability given those before it."""

    @property
    def name(self) -> str: ...

    @property
    def conventions(self) -> str:
        """Which tokens are judged: the first one, eos, retokenising, windows."""
        ...

    def nats(self, samples: Samples) -> list[Tensor]:
        """-log p of each judged token, one float64 tensor per sequence, which may be empty."""
        ...

    def ids(self, samples: Samples) -> list[Tensor]:
        """The tokens of each sequence under the judge's tokenizer, for the entropy of samples without tokens."""
        ...


@dataclass(frozen=True, eq=False)
class Judgement:
    """A judge's result for samples. ``str`` and ``to_dict`` give all of it; there is no perplexity alone."""

    judge: str
    conventions: str
    num: int
    unique: int  # distinct texts, or distinct token sequences if there are no texts
    perplexity: Interval
    mean_perplexity: Interval
    entropy: Interval
    entropy_of: str
    draw: str
    diversity: dict[str, float]
    about: dict[str, Any]
    nats: Tensor = field(repr=False)  # float64 [num], summed over a sequence's judged tokens
    tokens: Tensor = field(repr=False)  # int64 [num], the number of judged tokens
    entropies: Tensor = field(repr=False)  # float64 [num]
    real: Comparison | None = None  # with real sequences, if these are known
    truth: Truth | None = None  # with the truth's own sequences, if the judge is the truth

    @property
    def unjudged(self) -> int:
        """The number of sequences without a judged token: they count for the entropy, but for neither perplexity."""
        return int((self.tokens == 0).sum())

    @property
    def perplexities(self) -> Tensor:
        """The perplexity of each sequence, float64 [num]; nan without a judged token."""
        return (self.nats / self.tokens).exp()

    def to_dict(self, *, sequences: bool = True) -> dict[str, Any]:
        """For JSON; infinite or unknown values become None."""
        record = {
            "judge": self.judge,
            "conventions": self.conventions,
            "samples": self.num,
            "unique": self.unique,
            "unjudged": self.unjudged,
            "judged_tokens": int(self.tokens.sum()),
            "draw": self.draw,
            "rejection": self._rejection,
            "perplexity": _described(self.perplexity, CORPUS),
            "mean_perplexity": _described(self.mean_perplexity, MEAN),
            "entropy": _described(self.entropy, f"nats; {self.entropy_of}"),
            "intervals": {"level": self.perplexity.level, "method": METHOD},
            "diversity": {name: _finite(value) for name, value in self.diversity.items()},
            "about": self.about,
            "real": None if self.real is None else self.real.to_dict(),
            "truth": None if self.truth is None else self.truth.to_dict(),
        }
        if sequences:
            record["per_sequence"] = {
                "nats": [_finite(value) for value in self.nats.tolist()],
                "tokens": self.tokens.tolist(),
                "entropy": self.entropies.tolist(),
            }
        return record

    def __str__(self) -> str:
        hidden = ("draw", "dtype", "rejection")
        origin = ", ".join(f"{key} {_short(value)}" for key, value in self.about.items() if key not in hidden)
        unjudged = f"; {self.unjudged} of them without a token to judge, in neither perplexity" if self.unjudged else ""
        lines = {
            "samples": f"{self.num:,}, {self.unique:,} different{f' ({origin})' if origin else ''}{unjudged}",
            "draw": self.draw,
            "rejection": self._rejection,
            "judge": f"{self.judge}, {int(self.tokens.sum()):,} judged tokens: {self.conventions}",
            "perplexity": f"{self.perplexity}   {CORPUS}",
            " ": f"{self.mean_perplexity}   {MEAN}",
            "entropy": f"{self.entropy}   nats, {self.entropy_of}",
            "diversity": ", ".join(f"{name} {value:.4g}" for name, value in self.diversity.items()),
            "intervals": f"{self.perplexity.level:.4g} level, {METHOD}",
            "real text": UNKNOWN if self.real is None else str(self.real),
        }
        if self.truth is not None:
            lines["truth"] = str(self.truth)
        return "\n".join(
            textwrap.fill(text, 100, initial_indent=f"{title:<12}", subsequent_indent=" " * 12, break_long_words=False)
            for title, text in lines.items()
        )

    @property
    def _rejection(self) -> str:
        return str(self.about.get("rejection") or "none recorded; nothing is dropped here")


def judge(
    samples: Samples,
    judge: Judge,
    *,
    level: float = 0.95,
    seed: int = 0,
    counts: Tensor | None = None,
    real: Real | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Judgement:
    """The generative perplexity of samples by both definitions, with their entropy and bootstrap intervals.

    No sample is left out. One without a token to judge (an empty text) counts among the samples and in the entropy but
    in neither perplexity, and the number of these is reported. counts [V]: those of the training data, for the unigram
    KL. real: sequences of the training data and held-out ones, to compare the samples with; an oracle judges the
    held-out ones, too. progress(done, total) is called with numbers of sequences. With several processes each judges
    its share, and all get the numbers of a single process.
    """
    if not len(samples):
        raise ValueError("samples must hold at least one sequence")
    parts = torch.split(torch.arange(len(samples)), getattr(judge, "batch", 1024))
    totals: list[tuple[float, int]] = []
    for part_totals in processes.results([samples.part(part.tolist()) for part in parts], partial(_totals, judge)):
        totals += part_totals
        if progress is not None:
            progress(len(totals), len(samples))
    assert len(totals) == len(samples), f"{judge.name} judged {len(totals)} of {len(samples)} sequences"
    nats, tokens = np.array([t[0] for t in totals]), np.array([t[1] for t in totals])
    rows = samples.rows if samples.tokens is not None else judge.ids(samples)
    entropies = diversity.sequence_entropy(rows)
    some = tokens > 0
    return Judgement(
        judge.name,
        judge.conventions,
        len(samples),
        len(set(samples.texts)) if samples.texts else len({tuple(row.tolist()) for row in rows}),
        *_perplexities(nats[some], tokens[some], level=level, seed=seed),
        mean_interval(entropies.numpy(), level=level, seed=seed),
        "of the judge's tokens: the samples have none" if samples.tokens is None else "of the samples' own tokens",
        samples.draw,
        _diversity(rows, None if samples.tokens is None else counts),
        samples.about,
        torch.from_numpy(nats),
        torch.from_numpy(tokens),
        entropies,
        None if real is None else compare(rows, real),
        None if real is None or not isinstance(judge, OracleJudge) else _truth(nats, tokens, judge, real),
    )


def _truth(nats: Any, tokens: Any, oracle: OracleJudge, real: Real) -> Truth:
    """The samples' nats per token against those of held-out sequences, under one oracle."""
    rows = spread(list(real.held_out), max(len(nats), LEAST))  # the truth may be costly
    own = oracle.nats(Samples(tokens=pad_sequence(rows, batch_first=True, padding_value=-1)))
    return Truth.of(nats[tokens > 0] / tokens[tokens > 0], np.array([float(row.mean()) for row in own if len(row)]))


def _totals(judge: Judge, samples: Samples) -> list[tuple[float, int]]:
    """The nats of each sequence, and its number of judged tokens."""
    return [(float(nats.sum()), len(nats)) for nats in judge.nats(samples)]


def load_judge(
    name: str | os.PathLike[str],
    *,
    device: str = "cpu",
    batch: int = 1,
    window: int | None = None,
    first: Literal["given", "judged"] | None = None,
) -> CausalJudge:
    """A judge by name or path.

    ``smollm2`` and ``stories15m``; a left-to-right model of this package by its name or folder; a causal model of
    transformers by its folder, its .gguf file or its name on the hub (gpt2-large is the paper's); a llama2.c .bin file.
    window: tokens read at a time. first: whether a model of transformers judges a text's first token after its bos, or
    only conditions on it, which is the default and the paper's convention; all others judge it, after their start
    token.
    """
    from unmask import loading
    from unmask.evaluate.judge import huggingface, left_to_right, llama2c

    path, text = Path(name).expanduser(), str(name)
    if not path.exists() and text in NAMES:
        make: Callable[..., CausalJudge] = huggingface.smollm2 if text == "smollm2" else llama2c.stories15m
    elif path.is_file():
        if path.suffix not in (".bin", ".gguf"):
            raise ValueError(
                f"{path} is not a judge: a file is a .gguf or a llama2.c .bin; others are folders or names"
            )
        make = partial((huggingface if path.suffix == ".gguf" else llama2c).load, path)
    elif path.is_dir():
        make = partial((left_to_right if _is_ours(path) else huggingface).load, path)
    else:
        known = text in {model.name for model in loading.available()}
        make = partial((left_to_right if known else huggingface).load, text)
    if first is None:
        return make(device=device, batch=batch, window=window)
    if "first" not in inspect.signature(make).parameters and make is not huggingface.smollm2:
        raise ValueError(f"first={first!r}: {name} judges the first token, after its start token, and nothing else")
    return make(device=device, batch=batch, window=window, first=first)


def _is_ours(folder: Path) -> bool:
    """Whether a folder is a model or a run of this package; those of transformers have a different config.json."""
    config = folder / "config.json"
    try:
        return not config.is_file() or "architecture" in json.loads(config.read_bytes())
    except ValueError as error:
        raise ValueError(f"{config} is not JSON: {error}") from None


def _perplexities(nats: Any, tokens: Any, *, level: float, seed: int) -> tuple[Interval, Interval]:
    """The corpus perplexity, and the mean of the sequences' perplexities."""
    if not len(nats):
        unknown = Interval(math.nan, math.nan, math.nan, level)
        return unknown, unknown
    with np.errstate(over="ignore"):
        own = np.exp(nats / tokens)
    corpus = mean_interval(nats, tokens, level=level, seed=seed).exp()
    return corpus, mean_interval(own, log=True, level=level, seed=seed)


def _diversity(rows: list[Tensor], counts: Tensor | None) -> dict[str, float]:
    measures = {f"distinct-{n}": diversity.distinct(rows, n) for n in (1, 2, 3)}
    measures["self-repetition of 4-grams"] = float(diversity.self_repetition(rows).mean())
    if counts is not None:
        measures["unigram KL to the data, nats"] = diversity.unigram_kl(rows, counts)
    return measures


def _described(interval: Interval, definition: str) -> dict[str, Any]:
    bounds = {name: _finite(getattr(interval, name)) for name in ("value", "low", "high")}
    return {**bounds, "definition": definition}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
