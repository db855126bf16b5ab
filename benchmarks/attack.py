"""Samples without a network that beat real ones on perplexity and entropy: windows of the training text, chosen.

    python -m benchmarks.attack kjv --output attack.jsonl      ten seconds; prints the commands that judge it
    unmask judge attack.jsonl --data FOLDER                    two minutes: it is found to be copied, and different

After "Hacking Generative Perplexity" (Franca and Tong, 2026): of many windows whose entropy is at least that of other
windows, those whose bigrams are the most frequent in the training text. The tests have the same attack on a known law.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from unmask.data import corpora
from unmask.data.tokens import TokenFile
from unmask.evaluate.judge.diversity import sequence_entropy
from unmask.loading import load
from unmask.noise import generator

WINDOWS = 60_000


def attack(train: Tensor, num: int, quantile: float = 0.5) -> Tensor:
    """``num`` windows of the training sequences [N, L]: entropy at least this quantile's, and the likeliest bigrams."""
    length, text = train.shape[1], train.flatten()
    starts = torch.randperm(len(text) - length, generator=generator(0))[:WINDOWS]
    windows = text[starts.unsqueeze(1) + torch.arange(length)]
    entropies = sequence_entropy(windows)
    score = torch.where(entropies >= entropies.quantile(quantile), likeliness(text, windows), -torch.inf)
    chosen: list[int] = []
    for i in score.argsort(descending=True).tolist():  # none that overlaps another
        if len(chosen) < num and all(abs(int(starts[i] - starts[k])) >= length for k in chosen):
            chosen.append(i)
    return windows[chosen]


def likeliness(text: Tensor, windows: Tensor) -> Tensor:
    """The mean of log p(token | token before) by smoothed counts of the text: [N]."""
    ids = int(text.max()) + 1
    counts = torch.bincount(text[:-1] * ids + text[1:], minlength=ids * ids).view(ids, ids).double() + 0.01
    return (counts / counts.sum(1, keepdim=True))[windows[:, :-1], windows[:, 1:]].log().mean(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a bundled model of wrapped text, whose corpus and tokenizer are taken")
    parser.add_argument("--number", type=int, default=64)
    parser.add_argument("--output", type=Path, default=Path("attack.jsonl"))
    chosen = parser.parse_args()
    model = load(chosen.model)
    folder = Path(corpora.prepared(chosen.model))
    file = TokenFile.open(folder / "train.tokens")
    rows = attack(file.sequences(range(len(file))), chosen.number)
    about = {"model": chosen.model, "sampler": "windows of the training text, without a network"}
    lines = [
        json.dumps({"text": model.decode(row), "tokens": row, "index": i} | about)
        for i, row in enumerate(rows.tolist())
    ]
    chosen.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"unmask judge {chosen.output} --data {folder}")


if __name__ == "__main__":
    main()
