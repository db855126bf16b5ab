"""Which of stories15m's 32,000 ids the corpus ``stories`` is written with, and what that leaves out.

    python -m recipes.stories_vocabulary [--write]

Lets the whole teacher write 256 rows and adds up the probability that it gives to each id; keeps the 4,096 ids with the
most. Prints the probability of the others per token, with its error over the rows; --write stores the ids as
recipes/corpora/stories.ids, sorted, the one that begins and ends a story last.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from recipes.corpora.stories import LENGTH, Teacher
from unmask.checkpoints import llama2c

SIZE, ROWS = 4096, 256
PATH = Path(__file__).parent / "corpora/stories.ids"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    network, _ = llama2c.stories15m()
    everything = torch.cat((torch.arange(network.vocab_size)[torch.arange(network.vocab_size) != 1], torch.tensor([1])))
    teacher = Teacher(network, everything)
    rows = torch.zeros(2, len(everything), dtype=torch.float64)  # even rows, odd rows

    def add(log_p: Tensor, step: int) -> None:
        for half in range(2):
            rows[half] += log_p[half::2].exp().sum(0)

    teacher.rows(0, "vocabulary", 0, ROWS, LENGTH, add)
    mass = rows / rows.sum(1, keepdim=True)
    kept = mass.mean(0)[:-1].topk(SIZE - 1).indices.sort().values
    # Measured on the rows that chose the ids it is too small; on one half, for ids chosen by the other, too large.
    print(f"left out of {ROWS * (LENGTH - 1):,} tokens: {1 - float(mass.mean(0)[kept].sum() + mass.mean(0)[-1]):.3e}")
    for half in range(2):
        chosen = mass[half][:-1].topk(SIZE - 1).indices
        outside = 1 - float(mass[1 - half][chosen].sum() + mass[1 - half][-1])
        print(f"chosen by one half of the rows, left out of the other half: {outside:.3e}")
    if write:
        ids = torch.cat((everything[kept], everything[-1:]))
        PATH.write_bytes(ids.numpy().astype("<u2").tobytes())
        print(f"wrote {PATH}: {len(ids)} ids")


if __name__ == "__main__":
    main()
