"""The molecules in the box by MOSES's measures: 1,000 samples at temperature 1 and at some lower ones.

    python -m recipes.molecules [MODEL]

Prints a Markdown table. Novelty is against MOSES's training SMILES as the benchmark ships them, which are canonical.
"""

from __future__ import annotations

import sys
from itertools import islice

import unmask
from unmask.data import corpora
from unmask.evaluate.judge.molecules import PROPERTIES, Molecules, canonical, judged

NUM, HELD_OUT = 1_000, 10_000
SETTINGS: tuple[dict[str, float], ...] = (
    {},
    {"temperature": 0.9},
    {"temperature": 0.8},
    {"top_p": 0.95},
    {"top_p": 0.9},
)


def main() -> None:
    model = unmask.load(sys.argv[1] if len(sys.argv) > 1 else "molecules")
    moses = corpora.load("moses")
    training = set(moses.texts("train"))
    spread = sorted(training)[:: len(training) // 1_000]
    same = sum(canonical(smiles) == smiles for smiles in spread)
    print(f"{same} of {len(spread)} training SMILES are RDKit's canonical ones here\n", file=sys.stderr)
    held_out = list(islice(moses.texts("valid"), HELD_OUT))
    print(f"| setting | valid | unique | novel | {' | '.join(f'{name} distance' for name in PROPERTIES)} |")
    print("|---|---|---|---|" + "---|" * len(PROPERTIES))
    others = list(moses.texts("valid"))[-NUM:]
    print(row("other held-out molecules", judged(others, training=training, held_out=held_out)))
    for setting in SETTINGS:
        made = model.sample(NUM, seed=0, batch=250, **setting)  # type: ignore[arg-type]
        name = ", ".join(f"{key.replace('_', '-')} {value}" for key, value in setting.items()) or "temperature 1"
        print(row(name, judged(made.text, training=training, held_out=held_out)), flush=True)


def row(name: str, found: Molecules) -> str:
    shares = (found.validity, found.uniqueness, found.novelty or 0.0)
    distances = (found.distance[name] for name in PROPERTIES)
    return f"| {name} | {' | '.join(f'{x:.3f}' for x in shares)} | {' | '.join(f'{x:.3f}' for x in distances)} |"


if __name__ == "__main__":
    main()
