"""Insertion learned: a small network trained by ``insertion.bound`` on strings of random lengths, and its length law.

``python -m benchmarks.lengths --seconds 120``. The corpus is a Markov chain of six tokens whose lengths have two peaks,
so that the law of lengths and the entropy are known.
"""

from __future__ import annotations

import argparse
import json
import time as clock
from pathlib import Path

import torch
from torch import Tensor

import unmask
from unmask import insertion
from unmask.models.ddit import DDiT, DDiTConfig
from unmask.models.oracles.enumerated import MarkovOracle
from unmask.samplers.insertion import Insertion

V, N = 6, 12


def corpus() -> tuple[Tensor, MarkovOracle]:
    """The law of lengths [N + 1], and the chain of the tokens."""
    n = torch.arange(N + 1, dtype=torch.float64)
    lengths = torch.exp(-((n - 3) ** 2) / 2) + 0.7 * torch.exp(-((n - 9) ** 2) / 3)
    table = torch.rand(V, V, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 3 + 0.01
    table /= table.sum(1, keepdim=True)
    return lengths / lengths.sum(), MarkovOracle(torch.full((V,), 1 / V, dtype=torch.float64), table)


def drawn(count: int, generator: torch.Generator) -> Tensor:
    lengths, chain = corpus()
    size = torch.multinomial(lengths, count, replacement=True, generator=generator)
    x = chain.sample(count, N, generator)
    return torch.where(torch.arange(N) < size.unsqueeze(1), x, V + 1)


def nats(x: Tensor) -> float:
    """-log p of sequences, on average."""
    lengths, chain = corpus()
    size = (x < V).sum(1)
    known = chain.log_likelihood(torch.where(x < V, x, chain.mask_id))
    return float(-(known + lengths[size].log()).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="of this thread's CPU time, for training")
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    model = DDiT(DDiTConfig(V + 2, V + 2, N, width=64, layers=3, heads=2, dropout=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    generator, step, started = torch.Generator().manual_seed(1), 0, clock.thread_time()
    while (spent := clock.thread_time() - started) < chosen.seconds:
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 50) * max(0.02, 1 - spent / chosen.seconds)
        loss = insertion.bound(model, drawn(256, generator), generator=generator).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
    model.eval()
    test = drawn(4000, torch.Generator().manual_seed(2))
    with torch.no_grad():
        bound = insertion.bound(model, test, generator=torch.Generator().manual_seed(3))
    made = unmask.sample(model, num=chosen.number, length=N, sampler=Insertion(), seed=4)
    sizes = (made.tokens < V).sum(1)
    law, (truth, _) = torch.bincount(sizes, minlength=N + 1) / chosen.number, corpus()
    exact = torch.bincount(torch.multinomial(truth, chosen.number, True, generator=generator), minlength=N + 1)
    found = {
        "training steps": step,
        "bound, nats": round(float(bound.mean()), 3),
        "its error": round(float(bound.std()) / len(bound) ** 0.5, 3),
        "truth, nats": round(nats(test), 3),
        "nats of samples": round(nats(made.tokens), 3),
        "total variation of lengths": round(float((law - truth).abs().sum()) / 2, 4),
        "of as many exact draws": round(float((exact / chosen.number - truth).abs().sum()) / 2, 4),
        "length law": [round(one, 3) for one in law.tolist()],
        "true length law": [round(one, 3) for one in truth.tolist()],
        "calls per sequence": round(float(made.nfe.double().mean()), 2),
    }
    print(json.dumps(found, indent=1))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
