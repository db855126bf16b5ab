"""Guided sampling of real models, with numbers: ``python -m benchmarks.guidance words|stories|scaffold|logp|motif``.

words      texts of kjv that contain three given words
stories    stories that contain three given words; the model goes from block to block
scaffold   molecules that contain a benzene ring, by their SMILES, judged by rdkit
logp       molecules towards a logP, by a linear estimate on the way and rdkit at the end
motif      antibodies of sapiens with a motif somewhere in CDR-H3
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask.guides import classifier
from unmask.model import Model
from unmask.samplers.guided import log_mean_exp
from unmask.text.requests import TextSample

WORDS = ("Moses", "water", "king")
STORY = (" dragon", " cake", " river")  # a space before each, so that a driver is no river
BENZENE = "c1ccccc1"
CHAIN = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSR"
    "____________WGQGTLVTVSS"
)
MOTIF = "GYY"


def told(name: str, made: TextSample, hits: int, **more: Any) -> dict[str, Any]:
    """What a run gave: how many texts have what was asked for, and what the particles say."""
    found: dict[str, Any] = {"run": name, "texts": len(made.text), "hits": hits, "calls": made.calls} | more
    found["distinct"] = len(set(made.text))
    if made.population is not None:
        found["particles"] = made.population.log_weights.shape[1]
        found["least effective"] = round(float(made.population.effective.min()), 2)
        found["log evidence"] = round(float(log_mean_exp(made.population.log_evidence)), 2)
    found["seconds"] = round(made.seconds, 1)
    print(json.dumps(found), flush=True)
    return found


def hits(made: TextSample, *words: str) -> int:
    """How many texts have all the words."""
    return sum(all(word in text for word in words) for text in made.text)


def words(number: int, particles: int, name: str = "kjv", asked: tuple[str, ...] = WORDS) -> list[dict[str, Any]]:
    model = unmask.load(name)
    free = model.sample(number, seed=1)
    guided = model.sample(number, seed=1, contains=asked)
    repaired = model.sample(max(number // particles, 1), seed=1, contains=asked, particles=particles)
    print(guided.text[0], repaired.text[0], sep="\n\n")
    runs = {"free": free, "guided": guided, "particles": repaired}
    called = f"{name},{','.join(asked)}"
    return [told(f"{called}: {kind}", made, hits(made, *asked)) for kind, made in runs.items()]


def stories(number: int, particles: int) -> list[dict[str, Any]]:
    return words(number, particles, "stories", STORY)


def scaffold(number: int, particles: int) -> list[dict[str, Any]]:
    from rdkit import Chem

    model, ring = unmask.load("molecules"), Chem.MolFromSmiles("c1ccccc1")

    def rings(made: TextSample) -> int:
        found = [Chem.MolFromSmiles(text) for text in made.text]
        return sum(one is not None and one.HasSubstructMatch(ring) for one in found)

    free = model.sample(number, seed=1)
    guided = model.sample(number, seed=1, contains=[BENZENE])
    repaired = model.sample(max(number // particles, 1), seed=1, contains=[BENZENE], particles=particles)
    runs = {"free": free, "guided": guided, "particles": repaired}
    return [told(f"benzene: {name}", made, rings(made)) for name, made in runs.items()]


def logp(number: int, particles: int, target: float = 4.0, width: float = 0.3) -> list[dict[str, Any]]:
    """h(x) = exp(-(logP(x) - target)^2 / 2 width^2); before the end the same of a linear estimate with its error."""
    from rdkit import Chem
    from rdkit.Chem import Crippen

    model = unmask.load("molecules")
    mask_id, size = model.denoiser.mask_id, model.denoiser.vocab_size

    def judged(ids: list[int]) -> float:
        return float(Crippen.MolLogP(Chem.MolFromSmiles(model.decode(ids)) or Chem.MolFromSmiles("C")))

    free = model.sample(max(number, 200), seed=2)
    values = torch.tensor([judged(row) for row in free.tokens.tolist()], dtype=torch.float64)
    counts = torch.nn.functional.one_hot(free.tokens, size).sum(1).double()
    weights = torch.linalg.lstsq(counts.T @ counts + torch.eye(size), counts.T @ values).solution
    error = float((counts @ weights - values).std())
    share, spread = counts.mean(0) / counts.sum(1).mean(), weights.std()  # of a masked token

    def classify(canvases: Tensor) -> Tensor:
        masked = canvases == mask_id
        left = masked.sum(1)
        mean = torch.where(masked, share @ weights, weights[canvases.clamp(max=size - 1)]).sum(1)
        variance = width**2 + error**2 + left * spread**2
        guess = -((mean - target) ** 2) / (2 * variance)
        for i in (left == 0).nonzero().flatten().tolist():
            guess[i] = -((judged(canvases[i].tolist()) - target) ** 2) / (2 * width**2)
        return guess

    def run(name: str, made: TextSample) -> dict[str, Any]:
        logps = torch.tensor([judged(row) for row in made.tokens.tolist()])
        near = int(((logps - target).abs() < 2 * width).sum())
        more = {"mean logP": round(float(logps.mean()), 2), "sd": round(float(logps.std()), 2)}
        return told(f"logP {target}: {name}", made, near, **more)

    guide = classifier(classify)
    few = max(number // particles, 2)
    return [
        run("free", model.sample(number, seed=1)),
        run("guided", model.sample(number, seed=1, guide=guide)),
        run("particles", model.sample(few, seed=1, guide=guide, particles=particles)),
    ]


def motif(number: int, particles: int) -> list[dict[str, Any]]:
    model: Model = unmask.load("sapiens")
    runs = {
        "free": model.infill(CHAIN, number, seed=1),
        "guided": model.infill(CHAIN, number, seed=1, contains=[MOTIF]),
        "particles": model.infill(CHAIN, max(number // particles, 1), seed=1, contains=[MOTIF], particles=particles),
    }
    return [told(f"CDR-H3 with {MOTIF}: {name}", made, hits(made, MOTIF)) for name, made in runs.items()]


APPLICATIONS = {"words": words, "stories": stories, "scaffold": scaffold, "logp": logp, "motif": motif}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=APPLICATIONS)
    parser.add_argument("--number", type=int, default=16)
    parser.add_argument("--particles", type=int, default=8)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found = APPLICATIONS[chosen.what](chosen.number, chosen.particles)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
