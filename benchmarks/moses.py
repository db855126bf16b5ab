"""MOSES's own measures of generated molecules, by its package, beside its published baselines.

    pip install --no-deps molsets==0.3.1 fcd_torch==1.0.7     (both carry their data and weights)
    unmask sample molecules --number 10000 --seed 0 --json --output samples.jsonl
    python -m benchmarks.moses samples.jsonl --name molecules [--output docs/results/moses.json]
    python -m benchmarks.moses train --name "training molecules" [--output docs/results/moses.json]

The package is of 2020 and needs two names that RDKit and pandas have dropped since; they are put back here, and nothing
else is changed. ``train`` in place of the file measures molecules of MOSES's own training set. --output adds a row to
the file, or replaces that of the same name.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

PACKAGES = "pip install --no-deps molsets==0.3.1 fcd_torch==1.0.7"
SHOWN = ("valid", "unique@1000", "unique@10000", "Novelty", "FCD/Test", "SNN/Test", "Frag/Test", "Scaf/Test", "Filters")
# Of the table of MOSES's repository (molecularsets/moses, README at dd7ed6a), the means without their deviations.
PUBLISHED = {
    "CharRNN": (0.9748, 1.0, 0.9994, 0.8419, 0.0732, 0.6015, 0.9998, 0.9242, 0.9943),
    "VAE": (0.9767, 1.0, 0.9984, 0.6949, 0.099, 0.6257, 0.9994, 0.9386, 0.997),
    "JTN-VAE": (1.0, 1.0, 0.9996, 0.9143, 0.3954, 0.5477, 0.9965, 0.8964, 0.976),
    "NGram": (0.2376, 0.974, 0.9217, 0.9694, 5.5069, 0.5209, 0.9846, 0.5302, 0.9582),
}


def moses() -> Any:
    """The package, with what it misses."""
    import pandas

    six = types.ModuleType("rdkit.six")
    six.iteritems = lambda table: iter(table.items())  # type: ignore[attr-defined]
    sys.modules.setdefault("rdkit.six", six)
    if not hasattr(pandas.DataFrame, "append"):
        pandas.DataFrame.append = lambda one, other, **options: pandas.concat([one, other], **options)
    try:
        return importlib.import_module("moses")
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}: {PACKAGES}") from error


def texts(samples: str, number: int) -> list[str]:
    if samples == "train":
        every = moses().get_dataset("train")  # in an order of its own, so the first ones are not typical
        return [str(one) for one in every[:: max(1, len(every) // number)][:number]]
    lines = Path(samples).read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines][:number]


def measured(molecules: list[str]) -> dict[str, float]:
    sizes = [size for size in (1_000, 10_000) if size <= len(molecules)]
    found = moses().get_all_metrics(molecules, k=sizes, n_jobs=1, device="cpu", batch_size=256)
    return {name: float(value) for name, value in found.items()}


def table(stored: dict[str, Any]) -> str:
    lines = [f"| | {' | '.join(SHOWN)} |\n|{'---|' * (len(SHOWN) + 1)}"]
    rows = {**stored["measured"], **{f"{name}, published": one for name, one in stored["published"].items()}}
    return "\n".join([*lines, *(shown(name, values) for name, values in rows.items())])


def shown(name: str, values: dict[str, float]) -> str:
    cells = ("" if one not in values else f"{values[one]:.3f}" for one in SHOWN)
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", nargs="?", help="a file of unmask sample --json, or train")
    parser.add_argument("--name", help="of the row; by default the file's")
    parser.add_argument("--number", type=int, default=10_000)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    if chosen.samples is None:
        parser.error("name a file of samples, or train")
    molecules = texts(chosen.samples, chosen.number)
    stored: dict[str, Any] = {"measured": {}}
    if chosen.output is not None and chosen.output.exists():
        stored = json.loads(chosen.output.read_text())
    row = {"samples": len(molecules), **measured(molecules)}
    stored["measured"][chosen.name or chosen.samples] = row
    stored["published"] = {name: dict(zip(SHOWN, values, strict=True)) for name, values in PUBLISHED.items()}
    print(table(stored))
    if chosen.output is not None:
        chosen.output.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
