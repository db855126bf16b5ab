"""Redesign stretches of antibodies' heavy chains: python -m benchmarks.antibody --figure docs/antibodies.png

Stretches of public heavy chains are blanked and filled by first-hitting, left to right and by confidence. Recovery is
the part of residues that come out as they were; pseudo-perplexity is exp of the mean -log p of a filled residue given
all others. No clock is involved.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import unmask
from unmask import plan
from unmask.samplers import decoding

# Heavy-chain variable domains of licensed antibodies, as public collections have them.
CHAINS = {
    "trastuzumab": "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
    "SRWGGDGFYAMDYWGQGTLVTVSS",
    "adalimumab": "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYC"
    "AKVSYLSTASSLDYWGQGTLVTVSS",
    "nivolumab": "QVQLVESGGGVVQPGRSLRLDCKASGITFSNSGMHWVRQAPGKGLEWVAVIWYDGSKRYYADSVKGRFTISRDNSKNTLFLQMNSLRAEDTAVYYC"
    "ATNDDYWGQGTLVTVSS",
    "ipilimumab": "QVQLVESGGGVVQPGRSLRLSCAASGFTFSSYTMHWVRQAPGKGLEWVTFISYDGNNKYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAIYYC"
    "ARTGWLGPFDYWGQGTLVTVSS",
    "atezolizumab": "EVQLVESGGGLVQPGGSLRLSCAASGFTFSDSWIHWVRQAPGKGLEWVAWISPYGGSTYYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
    "ARRHWPGGFDYWGQGTLVTVSS",
    "ustekinumab": "EVQLVQSGAEVKKPGESLKISCKGSGYSFTTYWLGWVRQMPGKGLDWIGIMSPVDSDIRYSPSFQGQVTMSVDKSITTAYLQWNSLKASDTAMYYC"
    "ARRRPGQGYFDFWGQGTLVTVSS",
}
SMOOTHING = {"sapiens": 0.1}  # what the arguments inside its file say
STRETCHES = ("CDR-H2", "CDR-H3", "framework 3")
ORDERS: dict[str, dict[str, Any]] = {
    "first-hitting": {"plan": plan.first_hitting},
    "first-hitting, unsmoothed": {"plan": plan.first_hitting},
    "left to right": {"plan": plan.left_to_right},
    "confidence": {"sampler": decoding.low_confidence()},
    "first-hitting, T = 0.5": {"plan": plan.first_hitting, "temperature": 0.5},
    "confidence, greedy": {"sampler": decoding.low_confidence(), "temperature": 0.0},
    "parallel, 4 calls": {"plan": plan.parallel, "steps": 4},
}


class Unsmoothed(nn.Module):
    """A network trained with label smoothing, without it: of the law (1 - eps) p + eps/V that it learnt, p.

    The special ids' share of eps/V is gone with them, which makes the floor of the others 1/(1 - eps S/V) as large.
    """

    def __init__(self, network: Any, smoothing: float) -> None:
        super().__init__()
        self.network, self.vocab_size, self.mask_id = network, network.vocab_size, network.mask_id
        each = smoothing / network.vocab_size
        self.floor = each / (1 - each * int(network.suppressed.sum()))

    def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        return (self.network(tokens, time, rows).double().softmax(-1) - self.floor).clamp(min=0).log()


def stretches(chain: str) -> dict[str, slice]:
    """CDR-H2, framework 3 and CDR-H3 by IMGT's borders, in a chain with a CDR-H2 of eight residues."""
    found = re.search(r"Y[YF]C(.+)WG[QRK]G", chain)
    assert found is not None
    cysteine, end = found.start(1), found.end(1)
    return {
        "CDR-H2": slice(cysteine - 46, cysteine - 38),
        "framework 3": slice(cysteine - 38, cysteine),
        "CDR-H3": slice(cysteine, end),
    }


def pseudo_nats(model: unmask.Model, tokens: Tensor, where: slice) -> Tensor:
    """-log p of each residue of a stretch given all others, float64 [B, stretch]: one residue masked at a time."""
    positions = range(where.start, where.stop)
    nats = []
    for p in positions:
        canvas = tokens.clone()
        canvas[:, p] = model.denoiser.mask_id
        with torch.inference_mode():
            logits = model.denoiser(canvas, rows=torch.full((len(tokens), 1), p))[:, 0].double()
        nats.append(-logits.log_softmax(-1).gather(1, tokens[:, p : p + 1]).squeeze(1))
    return torch.stack(nats, 1)


def masked(model: unmask.Model, masks: int, holes: int = 30) -> str:
    """One call of the network with 30 residues masked at random: how many are the likeliest, and their -log p."""
    lines = ["| chain | residues | recovered of 30 | -log p, nats |", "|---|---|---|---|"]
    for name, chain in CHAINS.items():
        tokens = _ids(model, chain).repeat(masks, 1)
        generator = torch.Generator().manual_seed(0)
        at = torch.stack([torch.randperm(len(chain), generator=generator)[:holes] for _ in range(masks)])
        truth = tokens.gather(1, at)
        with torch.inference_mode():
            logits = model.denoiser(tokens.scatter(1, at, model.denoiser.mask_id), rows=at).double()
        nats = -logits.log_softmax(-1).gather(-1, truth.unsqueeze(-1)).squeeze(-1).mean(1)
        right = (logits.argmax(-1) == truth).double().sum(1)
        (count, error), (mean, spread) = measured([right]), measured([nats])
        lines.append(f"| {name} | {len(chain)} | {count:.1f} ± {error:.1f} | {mean:.2f} ± {spread:.2f} |")
    return "\n".join(lines)


def measured(values: list[Tensor]) -> tuple[float, float]:
    """The mean over chains of the mean over fills, and its standard error with the chains as they are."""
    mean = sum(float(v.mean()) for v in values) / len(values)
    variance = sum(float(v.var()) / len(v) if len(v) > 1 else 0.0 for v in values)
    return mean, math.sqrt(variance) / len(values)


def redesign(
    model: unmask.Model, judge: unmask.Model, wanted: list[str], number: int, judged: int, say: Callable[[str], None]
) -> Any:
    """Every stretch by every order: recovery, pseudo-perplexity in nats, distinct fills and calls."""
    smoothing = SMOOTHING.get(model.name, 0.0)
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for stretch in wanted:
        cells = results[stretch] = {}
        places = {name: stretches(chain)[stretch] for name, chain in CHAINS.items()}
        own = [pseudo_nats(judge, _ids(judge, CHAINS[name]), at).mean(1) for name, at in places.items()]
        cells["the chain itself"] = {"recovery": (1.0, 0.0), "nats": (measured(own)[0], 0.0), "distinct": 1, "calls": 0}
        for how, options in ORDERS.items():
            recovered, nats, distinct, calls = [], [], [], []
            for seed, (name, at) in enumerate(places.items()):
                chain = CHAINS[name]
                blank = chain[: at.start] + "_" * (at.stop - at.start) + chain[at.stop :]
                plain = replace(model, denoiser=Unsmoothed(model.denoiser, smoothing))
                out = (plain if "unsmoothed" in how else model).infill(blank, number, seed=seed, **options)
                truth = _ids(model, chain)[:, at]
                recovered.append((out.tokens[:, at] == truth).double().mean(1))
                filled = torch.cat([_ids(judge, text) for text in out.text[:judged]])
                nats.append(pseudo_nats(judge, filled, at).mean(1))
                distinct.append(len(set(out.text)) / number)
                calls.append(float(out.nfe.double().mean()))
            cells[how] = {
                "recovery": measured(recovered),
                "nats": measured(nats),
                "distinct": sum(distinct) / len(distinct),
                "calls": sum(calls) / len(calls),
            }
            say(f"{stretch}, {how}: {json.dumps(cells[how])}")
    return results


def table(results: Any) -> str:
    lines = ["| stretch | order | calls | recovery, % | pseudo-perplexity | distinct, % |", "|---|---|---|---|---|---|"]
    for stretch, cells in results.items():
        for how, cell in cells.items():
            (recovery, error), (nats, spread) = cell["recovery"], cell["nats"]
            perplexity = math.exp(nats)
            lines.append(
                f"| {stretch} | {how} | {cell['calls']:.1f} | {100 * recovery:.1f} ± {100 * error:.1f} | "
                f"{perplexity:.2f} ± {perplexity * spread:.2f} | {100 * cell['distinct']:.0f} |"
            )
    return "\n".join(lines)


def figure(results: Any, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown, axes = plt.subplots(1, 2, figsize=(10, 3.4))
    width = 0.8 / len(ORDERS)
    for i, how in enumerate(ORDERS):
        at = [x + (i - (len(ORDERS) - 1) / 2) * width for x in range(len(results))]
        recovery = [cells[how]["recovery"] for cells in results.values()]
        nats = [cells[how]["nats"] for cells in results.values()]
        axes[0].bar(at, [100 * r for r, _ in recovery], width, yerr=[100 * e for _, e in recovery], label=how)
        axes[1].bar(at, [math.exp(m) for m, _ in nats], width, yerr=[math.exp(m) * e for m, e in nats])
    for i, cells in enumerate(results.values()):
        own = math.exp(cells["the chain itself"]["nats"][0])
        label = "the chain itself" if i == 0 else None
        axes[1].hlines(own, i - 0.42, i + 0.42, colors="black", linestyles="dashed", label=label)
    for axis, title in zip(axes, ("recovery, %", "pseudo-perplexity of the filled residues"), strict=True):
        axis.set_xticks(range(len(results)), list(results))
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=7, frameon=False)
    shown.tight_layout()
    shown.savefig(path, dpi=110)


def _ids(model: unmask.Model, chain: str) -> Tensor:
    return torch.tensor([model.tokenizer.encode(chain)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="sapiens")
    parser.add_argument("--judge", help="of pseudo-perplexity; the model itself by default")
    parser.add_argument("--number", type=int, default=32, help="fills of each chain, stretch and order")
    parser.add_argument("--judged", type=int, help="how many of them are judged")
    parser.add_argument("--stretches", nargs="+", choices=STRETCHES, default=list(STRETCHES))
    parser.add_argument("--masked", type=int, help="only predict 30 masked residues, for so many masks of each chain")
    parser.add_argument("--json", type=Path, help="write the numbers there")
    parser.add_argument("--read", type=Path, nargs="+", help="tell and draw what --json wrote, and sample nothing")
    parser.add_argument("--figure", type=Path)
    chosen = parser.parse_args()
    if chosen.read:
        results = {k: v for path in chosen.read for k, v in json.loads(path.read_text()).items()}
        _tell(results, chosen)
        return
    model = unmask.load(chosen.model)
    if chosen.masked:
        print(masked(model, chosen.masked))
        return
    judge = unmask.load(chosen.judge) if chosen.judge else model
    judged = chosen.judged or chosen.number
    results = redesign(
        model, judge, chosen.stretches, chosen.number, judged, lambda line: print(line, file=sys.stderr, flush=True)
    )
    _tell(results, chosen)


def _tell(results: Any, chosen: argparse.Namespace) -> None:
    print(table(results))
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))
    if chosen.figure:
        figure(results, chosen.figure)


if __name__ == "__main__":
    main()
