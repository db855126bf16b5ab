"""Fine-tune Sapiens, a masked model of human antibodies, on mouse heavy chains: python -m benchmarks.finetune

The chains are the germline of IMGT as ANARCI carries it: V genes joined with J genes. Every fifth V gene of the mouse
is held out with all its alleles. The bound of held-out chains is measured before and after, in full and by adapters,
with the same masks, and so is that of human chains, on which Sapiens was trained: what was forgotten.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask.data.prepare import prepare
from unmask.fetch import Carrier, package_files

ANARCI = Carrier(
    "anarci",
    "2026.2.13.2",
    "anarci-2026.2.13.2-py3-none-any.whl",
    "8f88d49857abc2c5427c6cc903ebdac7b35e6636635eaa9d60bd8f0d4e7d14b7",
    ("*/germlines.py",),
)
HELD_OUT = 5  # one gene in so many
SETTINGS: dict[str, Any] = {"objective": "count", "batch": 32, "patience": 0, "preview": False, "tensorboard": False}
RUNS: dict[str, dict[str, Any]] = {
    "in full": {"learning_rate": 3e-4},
    "adapters of rank 8": {"lora": 8, "learning_rate": 1e-3},
}


def germlines(cache: str | None = None) -> dict[str, Any]:
    """ANARCI's table, {V or J: {H: {species: {allele: aligned residues}}}}, read and not run."""
    tree = ast.parse(package_files(ANARCI, cache)["germlines.py"].read_text(encoding="utf-8"))
    table: dict[str, Any] = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    return table


def chains(table: dict[str, Any], species: str) -> dict[str, list[list[str]]]:
    """Heavy chains by V gene: for each distinct allele, joined with every distinct J gene."""

    def residues(kind: str) -> dict[str, str]:
        found = {name: aligned.replace("-", "") for name, aligned in sorted(table[kind]["H"][species].items())}
        return {name: text for name, text in found.items() if set(text) <= set("ACDEFGHIKLMNPQRSTVWY")}

    joins = sorted(set(residues("J").values()))
    genes: dict[str, list[list[str]]] = {}
    seen: set[str] = set()
    for name, variable in residues("V").items():
        if variable not in seen:
            seen.add(variable)
            genes.setdefault(name.split("*")[0], []).append([variable + join for join in joins])
    return genes


def split(genes: dict[str, list[list[str]]]) -> tuple[list[str], list[str]]:
    """All chains of most genes, and one chain for each gene of the others."""
    names = sorted(genes)
    held = set(names[HELD_OUT // 2 :: HELD_OUT])
    train = [chain for name in names if name not in held for allele in genes[name] for chain in allele]
    return train, [genes[name][0][i % len(genes[name][0])] for i, name in enumerate(names) if name in held]


def nats(model: unmask.Model, texts: Sequence[str], passes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each chain its bound, the error of the estimate, and its residues."""
    bound = model.bound(texts, passes=passes, seed=0)
    return bound.nats, bound.errors, bound.tokens.double()


def compared(before: tuple[Tensor, ...], after: tuple[Tensor, ...] | None = None) -> dict[str, Any]:
    """Nats per residue with its error over chains; and the difference from before, chain by chain."""
    values, _, residues = before if after is None else after
    each = values / residues
    told = {"nats_per_residue": float(each.mean()), "error": float(each.std()) / math.sqrt(len(each))}
    if after is not None:
        change = each - before[0] / residues
        told |= {"change": float(change.mean()), "change_error": float(change.std()) / math.sqrt(len(change))}
    return told


def fasta(path: Path, texts: Sequence[str]) -> str:
    path.write_text("".join(f">{i}\n{text}\n" for i, text in enumerate(texts)))
    return str(path)


def measured(steps: int, passes: int) -> dict[str, Any]:
    """The whole experiment."""
    table = germlines()
    train, held_out = split(chains(table, "mouse"))
    human = split(chains(table, "human"))[1]
    base = unmask.load("sapiens")
    sets = {"mouse": held_out, "human": human}
    before = {name: nats(base, texts, passes) for name, texts in sets.items()}
    made: dict[str, Any] = {
        "command": "python -m benchmarks.finetune --json docs/results/finetune.json",
        "chains": {"mouse, training": len(train), "mouse, held out": len(held_out), "human": len(human)},
        "steps": steps,
        "passes": passes,
        "before": {name: compared(found) for name, found in before.items()},
        "after": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        sources = [fasta(Path(folder) / f"{name}.fasta", some) for name, some in (("a", train), ("b", held_out))]
        prepare(sources[0], data, tokenizer=base.tokenizer, valid=sources[1])
        for number, (name, settings) in enumerate(RUNS.items()):
            began = time.process_time()
            out = Path(folder) / f"run-{number}"
            tuned = unmask.train(data, out=out, init="sapiens", steps=steps, **SETTINGS, **settings)
            trained = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
            after = {kind: compared(before[kind], nats(tuned, texts, passes)) for kind, texts in sets.items()}
            seconds = round(time.process_time() - began)
            made["after"][name] = after | {"cpu_seconds": seconds, "last_validation": trained["nats_per_token"]}
    return made


def report(made: dict[str, Any]) -> str:
    """The table of docs/finetuning.md."""

    def cell(found: dict[str, Any]) -> str:
        change = f" ({found['change']:+.3f} ± {found['change_error']:.3f})" if "change" in found else ""
        return f"{found['nats_per_residue']:.3f} ± {found['error']:.3f}{change}"

    rows = [("Sapiens before", made["before"]), *((f"fine-tuned {name}", made["after"][name]) for name in RUNS)]
    rows[2] = ("fine-tuned, adapters of rank 8", rows[2][1])
    lines = ["| model | mouse, held out (change) | human (change) |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {name} | {cell(found['mouse'])} | {cell(found['human'])} |" for name, found in rows)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--passes", type=int, default=16, help="masks of each chain in a bound")
    parser.add_argument("--json", type=Path, help="store the numbers there")
    chosen = parser.parse_args()
    torch.set_num_threads(min(2, torch.get_num_threads()))
    made = measured(chosen.steps, chosen.passes)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(made, indent=1) + "\n")
    print(report(made))


if __name__ == "__main__":
    sys.exit(main())
