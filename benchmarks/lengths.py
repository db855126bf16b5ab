"""Insertion learned by ``unmask train --objective insertion``, and its law of lengths beside that of the data.

``python -m benchmarks.lengths chain`` or ``clauses``. chain: strings of a Markov chain of six letters, whose lengths
have two peaks, so that the law of lengths and the entropy are known. clauses: what stands between two punctuation
marks in the King James Bible, as rows of at most 24 tokens. ``--objective count`` trains a masked model of the same
rows, which ends a text by filling the rest of the row with eos.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time as clock
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask.data import corpora
from unmask.data.tokens import TokenFile
from unmask.networks.oracles.enumerated import MarkovOracle

LETTERS, LONGEST = "abcdef", 12
ROW = 24  # tokens of a clause's row, its eos included
SETTINGS: dict[str, dict[str, Any]] = {
    "chain": {"tokenizer": "characters", "length": LONGEST + 1, "steps": 2000, "batch": 128, "preset": "tiny"},
    "clauses": {"tokenizer": "bpe", "vocab": 1024, "length": ROW, "long": "drop", "steps": 2500, "preset": "mini"},
}


def law() -> tuple[Tensor, MarkovOracle]:
    """The chain's law of lengths [LONGEST + 1], of which no string is empty, and the law of its letters."""
    n, size = torch.arange(LONGEST + 1, dtype=torch.float64), len(LETTERS)
    lengths = torch.exp(-((n - 3) ** 2) / 2) + 0.7 * torch.exp(-((n - 9) ** 2) / 3)
    lengths[0] = 0.0
    table = torch.rand(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 3 + 0.01
    table /= table.sum(1, keepdim=True)
    return lengths / lengths.sum(), MarkovOracle(torch.full((size,), 1 / size, dtype=torch.float64), table)


def chain(count: int = 40_000) -> list[str]:
    lengths, letters = law()
    generator = torch.Generator().manual_seed(1)
    sizes = torch.multinomial(lengths, count, replacement=True, generator=generator).tolist()
    rows = letters.sample(count, LONGEST, generator).tolist()
    return ["".join(LETTERS[v] for v in row[:size]) for row, size in zip(rows, sizes, strict=True)]


def clauses() -> list[str]:
    [text] = corpora.load("kjv").texts()
    return [one.strip() for one in re.split(r"[.,;:?!()\n]+|\d+", text) if one.strip()]


def nats(x: Tensor) -> float:
    """-log p of the chain's rows, on average; the letters are the first ids. Those of probability 0 are left out."""
    lengths, letters = law()
    size = (x < len(LETTERS)).sum(1)
    x, size = (part[(size > 0) & (size <= LONGEST)] for part in (x, size))
    known = letters.log_likelihood(torch.where(x < len(LETTERS), x, letters.mask_id))
    return float(-(known + lengths[size].log()).mean())


def histogram(rows: Tensor, eos: int) -> Tensor:
    """The law of lengths: tokens before the first eos, [L + 1]."""
    size = (rows == eos).cumsum(1).eq(0).sum(1)
    return torch.bincount(size, minlength=rows.shape[1] + 1).double() / len(rows)


def distance(a: Tensor, b: Tensor) -> float:
    return round(float((a - b).abs().sum()) / 2, 4)


def measured(what: str, objective: str, number: int, steps: int | None) -> dict[str, Any]:
    settings = SETTINGS[what] | ({} if steps is None else {"steps": steps})
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / f"{what}.txt", Path(folder) / "run"
        data.write_text("\n".join({"chain": chain, "clauses": clauses}[what]()) + "\n")
        started = clock.process_time()
        how = {"layout": "rows", "held_out": "end", "objective": objective, "preview": False, "tensorboard": False}
        model = unmask.train(data, out=out, **settings, **how)
        seconds = clock.process_time() - started
        train, valid = (TokenFile.open(out / f"data/{part}.tokens") for part in ("train", "valid"))
        eos = model.tokenizer.eos_id
        assert eos is not None
        held_out = valid.sequences(torch.arange(512) % len(valid))
        bound = unmask.nelbo(model.denoiser, held_out, passes=16)
        every = train.sequences(range(len(train)))
        made = model.sample(number, seed=4, batch=250)
        truth = histogram(every, eos)
        if what == "chain":
            truth = torch.cat((law()[0], torch.zeros(1, dtype=torch.float64)))
        exact = torch.multinomial(truth, number, True, generator=torch.Generator().manual_seed(0))
        like = torch.bincount(exact, minlength=len(truth)).double() / number
        found, n = histogram(made.tokens, eos), torch.arange(len(truth), dtype=torch.float64)
        more = {"truth, nats": round(nats(held_out), 3), "nats of samples": round(nats(made.tokens), 3)}
        return {
            "corpus": what,
            "objective": objective,
            "rows": len(train),
            "steps": settings["steps"],
            "CPU seconds of training": round(seconds),
            "bound, nats": round(float(bound.nats.mean()), 3),
            "its error": round(float(bound.nats.std()) / len(held_out) ** 0.5, 3),
            **(more if what == "chain" else {}),
            "total variation of lengths": distance(found, truth),
            "of as many exact draws": distance(like, truth),
            "mean length": [round(float((one * n).sum()), 2) for one in (found, truth)],
            "length law": [round(one, 3) for one in found.tolist()],
            "true length law": [round(one, 3) for one in truth.tolist()],
            "calls per text": round(float(made.nfe.double().mean()), 1),
            "texts": made.text[:8],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=SETTINGS)
    parser.add_argument("--objective", choices=("insertion", "count"), default="insertion")
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--steps", type=int, help="of training")
    parser.add_argument("--json", type=Path, help="a file that the result is added to")
    chosen = parser.parse_args()
    found = measured(chosen.what, chosen.objective, chosen.number, chosen.steps)
    print(json.dumps(found, indent=1))
    if chosen.json is not None:
        stored = json.loads(chosen.json.read_text()) if chosen.json.exists() else {}
        stored[f"{chosen.what}, {chosen.objective}"] = found
        chosen.json.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
