"""From a finished run to a model in the box: half precision, measured as it is shipped, with its card.

    python -m recipes.box kjv runs/kjv
    python -m recipes.box kjv                   the card's samples anew, where a seed gives other tokens than before

The first writes src/unmask/box/kjv and tests/box/kjv.json, the held-out sequences and the bound that a test checks it
by; the second changes the card alone.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import torch

import unmask
from unmask.data import corpora
from unmask.data.tokens import TokenFile
from unmask.models import pretrained
from unmask.models.files import sha256_of
from unmask.text.model import Model
from unmask.training.config import read_toml

ROOT = Path(__file__).parents[1]
BOX, CHECKS = ROOT / "src/unmask/box", ROOT / "tests/box"
SEQUENCES, PASSES, SEED = 256, 8, 0
SLICE, SLICE_PASSES = 24, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--notes", help="what else its card should say, for example measured validity")
    chosen = parser.parse_args()
    made = ship(chosen.name, chosen.run, chosen.notes) if chosen.run else resample(chosen.name)
    print(f"{made.name}: {made.denoiser.card.bound:.4f} ± {made.denoiser.card.bound_error:.4f} bits per token")


def ship(name: str, run: Path, notes: str | None = None) -> Model:
    """Store the run's model in half precision, measure what was stored, and write its card and its check."""
    corpus = corpora.load(read_toml(ROOT / f"recipes/{name}.toml")["data"])
    held_out = TokenFile.open(corpora.prepared(corpus.name) / "valid.tokens")
    trained = unmask.load(run)
    folder = BOX / name
    _, header = pretrained.read_config(run / "model")
    pretrained.save(folder, trained.denoiser, half=True, extra=header["extra"])
    trained.tokenizer.save(folder / "tokenizer.json")

    stored = unmask.load(folder)
    tokens = spread(held_out, SEQUENCES)
    bits, estimate = bits_per_token(stored, tokens, PASSES)
    # Over the sequences: the error that includes which sequences happened to be held out.
    error = float(bits.std()) / math.sqrt(len(bits))
    card = replace(
        trained.denoiser.card,
        data=f"{corpus.name}: {corpus.note}",
        license=corpus.licence,
        bound=float(bits.mean()),
        bound_error=error,
        estimate_error=estimate,
        held_out=f"{len(tokens)} held-out sequences of {held_out.length} tokens, {PASSES} passes each",
        command=f"unmask train --config recipes/{name}.toml --out runs/{name}",
        notes="; ".join(filter(None, [trained.denoiser.card.notes, notes])),
        samples=stored.sample(3, seed=SEED).text,
    )
    pretrained.save(folder, stored.denoiser, card=card, half=True, extra=header["extra"])

    few = tokens[:: len(tokens) // SLICE][:SLICE]
    slice_bits, _ = bits_per_token(stored, few, SLICE_PASSES)
    check = {
        "sha256": sha256_of(folder / pretrained.WEIGHTS),
        "passes": SLICE_PASSES,
        "bits_per_token": float(slice_bits.mean()),
        "error": float(slice_bits.std()) / math.sqrt(len(few)),
        "tokens": few.tolist(),
    }
    CHECKS.mkdir(exist_ok=True)
    (CHECKS / f"{name}.json").write_text(json.dumps(check) + "\n")
    print(json.dumps(asdict(card), indent=2))
    return replace(unmask.load(folder), name=name)


def resample(name: str) -> Model:
    """Give the card of a model in the box the samples that the seed gives now; the weights stay as they are."""
    folder = BOX / name
    stored, before = unmask.load(folder), sha256_of(folder / pretrained.WEIGHTS)
    _, header = pretrained.read_config(folder)
    card = replace(stored.denoiser.card, samples=stored.sample(3, seed=SEED).text)
    pretrained.save(folder, stored.denoiser, card=card, half=True, extra=header["extra"])
    assert sha256_of(folder / pretrained.WEIGHTS) == before, "float16 weights survive the way to float32 and back"
    return replace(unmask.load(folder), name=name)


def spread(file: TokenFile, num: int) -> torch.Tensor:
    """At most ``num`` sequences, evenly spaced."""
    num = min(num, len(file))
    return file.sequences(torch.arange(num) * len(file) // num)


def bits_per_token(model: Model, tokens: torch.Tensor, passes: int) -> tuple[torch.Tensor, float | None]:
    """The bound of each sequence in bits per token, and the estimate's error of their mean; None where it is exact."""
    scale = 1 / tokens.shape[1] / math.log(2)
    if model.left_to_right:
        with torch.inference_mode():
            return unmask.objective.left_to_right(model.denoiser, tokens).double() * scale, None
    bound = unmask.nelbo(model.denoiser, tokens, passes=passes, schedule=model.schedule)
    return bound.nats * scale, bound.error_of_estimate / math.log(2)


if __name__ == "__main__":
    main()
