"""Synthetic corpora, drawn from a known distribution: token files, with the exact -log p beside them.

``NAME.nats.npy`` has one float32 number per token, or per sequence if only that is known: with it a bound becomes a
divergence from the true distribution.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipes.corpora import stories, sudoku
from recipes.corpora.nae_sat import NaeSat
from unmask.data.parts import Progress
from unmask.data.tokens import TokenFile
from unmask.data.tokenwriter import TokenWriter
from unmask.files import new_folder
from unmask.tokenizers import vocabularies as make
from unmask.tokenizers.tokenizer import Layout, Tokenizer

Block = tuple[NDArray[Any], NDArray[np.floating[Any]]]
"""Sequences [n, L], and their nats [n, L] or [n]."""

OPTIONS = {
    "stories": ("tokens", "held_out_tokens", "seed"),
    "sudoku4": ("tokens", "held_out_tokens", "seed"),
    "sudoku6": ("tokens", "held_out_tokens", "seed"),
    "sudoku9": ("tokens", "held_out_tokens", "seed"),
    "nae-sat": ("tokens", "held_out_tokens", "seed", "latents", "observations"),
}
NAMES = tuple(OPTIONS)
ABOUT = {  # the licence, and what it is
    "stories": (
        "MIT (the teacher's)",
        "what the TinyStories model of 15 million parameters writes, with the exact -log p of every token",
    ),
    "sudoku4": ("none: drawn here", "4 x 4 Sudoku grids, uniform over all 288"),
    "sudoku6": ("none: drawn here", "6 x 6 Sudoku grids, uniform over all 28,200,960"),
    "sudoku9": ("none: drawn here", "9 x 9 Sudoku grids, uniform over all 6.67e21"),
    "nae-sat": ("none: drawn here", "fair bits, then observations of three of them each: are they unequal?"),
}
TOKENS = {"stories": (2_676_480, 522_240), "sudoku4": (160_000, 16_000)}  # for training, held out
OTHERS = (7_200_000, 360_000)
AT_ONCE = 1_000  # sequences


def prepare(
    name: str,
    out: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **options: int,
) -> tuple[TokenFile, TokenFile]:
    """Draw a corpus of NAMES into the new folder ``out``.

    tokens, held_out_tokens: at least this many, in whole sequences. seed: another corpus from the same distribution.
    latents, observations: for nae-sat, where the seed also determines which latents are observed together.
    """
    if name not in NAMES:
        raise ValueError(f"name={name!r}: the synthetic corpora are {', '.join(NAMES)}")
    wrong = sorted(set(options) - set(OPTIONS[name]))
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: {name} takes only {', '.join(OPTIONS[name])}")
    usual = TOKENS.get(name, OTHERS)
    counts = {"train": options.pop("tokens", usual[0]), "valid": options.pop("held_out_tokens", usual[1])}
    if min(counts.values()) < 1:
        raise ValueError(f"tokens and held_out_tokens must be at least 1, got {counts['train']} and {counts['valid']}")
    report = progress or (lambda stage, done, total: None)
    if name == "stories":
        tokenizer, parts = stories.parts(counts, options.get("seed", 0), cache, report)
        return _lay_out(out, tokenizer, stories.LENGTH, "wrapped", parts, name, report)
    if name == "nae-sat":
        law = NaeSat(**options)
        parts = {part: _equally_likely(law.draw, part, tokens, law.length, law.nats) for part, tokens in counts.items()}
        return _lay_out(out, make.characters("01", eos=False), law.length, "rows", parts, str(law), report)
    shape, seed = sudoku.SHAPES[name], options.get("seed", 0)
    draw, nats = partial(sudoku.draw, shape, seed=seed), math.log(sudoku.count(shape))
    parts = {part: _equally_likely(draw, part, tokens, shape.cells, nats) for part, tokens in counts.items()}
    digits = make.characters("".join(str(i + 1) for i in range(shape.size)), eos=False)
    return _lay_out(out, digits, shape.cells, "rows", parts, f"{name}, seed {seed}", report)


def _equally_likely(
    draw: Callable[..., NDArray[Any]], part: str, tokens: int, length: int, nats: float
) -> tuple[int, Iterator[Block]]:
    """The number of sequences, and the sequences, each with ``nats``."""
    num = math.ceil(tokens / length)
    firsts = range(0, num, AT_ONCE)
    blocks = (draw(min(AT_ONCE, num - first), first=first, part=part) for first in firsts)
    return num, ((block, np.full(len(block), nats)) for block in blocks)


def _lay_out(
    out: str | os.PathLike[str],
    tokenizer: Tokenizer,
    length: int,
    layout: Layout,
    parts: Mapping[str, tuple[int, Iterable[Block]]],
    source: str,
    report: Progress,
) -> tuple[TokenFile, TokenFile]:
    spelt = tokenizer.pieces(range(tokenizer.vocab_size))
    size = np.array([len(piece) for piece in spelt])
    characters = np.array([sum(byte & 0xC0 != 0x80 for byte in piece) for piece in spelt])
    try:
        with new_folder(Path(out)) as folder:
            for part, (num, blocks) in parts.items():
                path, nats, counted = folder / f"{part}.tokens", [], [0, 0]
                with TokenWriter(path, tokenizer, length, layout, source=source) as writer:
                    for block, costs in blocks:
                        report(part, writer.num, num)
                        writer.write(block)
                        nats.append(costs.astype("<f4"))
                        counted = [counted[0] + int(characters[block].sum()), counted[1] + int(size[block].sum())]
                    writer.finish(characters=counted[0], bytes=counted[1])
                np.save(folder / f"{part}.nats.npy", np.concatenate(nats))
            tokenizer.save(folder / "tokenizer.json")
    except FileExistsError as error:
        raise ValueError(f"out={str(out)!r}: it already exists and is not overwritten; choose a new folder") from error
    return TokenFile.open(Path(out) / "train.tokens"), TokenFile.open(Path(out) / "valid.tokens")
