"""Masked against uniform state: the same network, data and number of steps, on a Markov chain whose law is known."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import unmask
from reproduction.item import ItemResult, Settings, Table, Tables
from reproduction.keep import kept
from reproduction.verdict import Claim, Number, claim, mean
from unmask.network import inference
from unmask.networks.config import preset
from unmask.networks.ddit import DDiT
from unmask.networks.uniform import UniformDDiT
from unmask.noise import generator
from unmask.processes import process_of
from unmask.training.masking import of_step

TITLE = "Masked against uniform state, at equal network, data and compute"
PAPER = "not in the paper: after the bounds that UDLM (2412.10193) and DUO (2506.10892) report"
MASKED, UNIFORM, TOLD = "masked", "uniform", "uniform, told the time"
VARIANTS: dict[str, dict[str, Any]] = {
    MASKED: {},
    "masked, told the time": {"conditioning": "time"},
    UNIFORM: {"kind": UniformDDiT},
    TOLD: {"kind": UniformDDiT, "conditioning": "time"},
}
BOUND, JUDGED = "bound above the truth, nats per token", "samples by the truth above its entropy, nats per token"


def sizes(settings: Settings) -> dict[str, int]:
    return settings.pick(
        full={"ids": 12, "length": 16, "layers": 2, "width": 64, "heads": 2, "batch": 64, "steps": 1200, "rows": 512},
        fast={"ids": 8, "length": 8, "layers": 1, "width": 32, "heads": 2, "batch": 32, "steps": 200, "rows": 256},
        tiny={"ids": 3, "length": 4, "layers": 1, "width": 16, "heads": 2, "batch": 8, "steps": 4, "rows": 8},
    )


def run(settings: Settings) -> ItemResult:
    chosen, seeds = sizes(settings), settings.pick(full=6, fast=4, tiny=2)
    name = hashlib.sha256(repr((unmask.__version__, chosen, [*VARIANTS])).encode()).hexdigest()[:16]
    folder = Path(settings.cells) if settings.cells else None
    rows = []
    for seed in range(settings.seed, settings.seed + seeds):
        made = kept(folder and folder / f"uniform-{name}-{seed}.pt", lambda seed=seed: compared(seed, chosen))  # type: ignore[misc]
        rows += [(variant, seed, *made[variant].tolist()) for variant in VARIANTS]
    results = Table(("variant", "seed", BOUND, JUDGED, "calls for each sequence"), tuple(rows))
    size = Table(tuple(chosen), (tuple(chosen.values()),))
    note = (
        "Every variant sees the same sequences, drawn anew for each step from the chain of its seed. Samples are exact "
        "for the trained network: first-hitting, and uniformisation with the fewest jumps (tail 0.001)."
    )
    return ItemResult({"results": results, "sizes": size}, {"": drawing(results)}, (note,))


def chain(seed: int, ids: int) -> unmask.MarkovOracle:
    """A chain in which some moves are much more frequent than others."""
    random = generator(0, seed, "chain")
    weights = torch.rand(ids + 1, ids, generator=random, dtype=torch.float64).pow(2)
    first, *moves = weights / weights.sum(1, keepdim=True)
    return unmask.MarkovOracle(first, torch.stack(moves))


def compared(seed: int, chosen: dict[str, int]) -> dict[str, Tensor]:
    """Each variant trained on one seed: its bound, its samples judged by the truth, and their calls."""
    truth, length, rows = chain(seed, chosen["ids"]), chosen["length"], chosen["rows"]
    held_out = truth.sample(rows, length, generator(0, seed, "held out"))
    found = {}
    for variant, choices in VARIANTS.items():
        network = trained(seed, chosen, truth, choices)
        bound = unmask.nelbo(network, held_out, passes=32, seed=seed, by="time", batch=512)
        sample = unmask.sample(network, num=rows, length=length, seed=seed)
        above = (bound.nats + truth.log_likelihood(held_out)).mean() / length
        judged = -truth.log_likelihood(sample.tokens).clamp(min=-1e3).mean() / length - truth.entropy(length) / length
        found[variant] = torch.stack((above, judged, sample.nfe.double().mean()))
    return found


def trained(seed: int, chosen: dict[str, int], truth: unmask.MarkovOracle, choices: dict[str, Any]) -> DDiT:
    """The objective of the process by time, AdamW with a cosine decay; nothing differs between variants but choices."""
    torch.manual_seed(generator(0, seed, "weights").initial_seed())
    shape = {name: chosen[name] for name in ("layers", "width", "heads")}
    kind, other = choices.get("kind", DDiT), {name: value for name, value in choices.items() if name != "kind"}
    network: DDiT = kind(preset("tiny", chosen["ids"], chosen["length"], dropout=0.0, **shape, **other))
    process, steps, batch = process_of(network), chosen["steps"], chosen["batch"]
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.0)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    drawn: dict[str, Any] = {"batch": batch, "length": chosen["length"], "schedule": unmask.Linear(), "seed": seed}
    network.train()
    for step in range(steps):
        x0 = truth.sample(batch, chosen["length"], generator(step, seed, "data"))
        masking = of_step(process, "time", "stratified", step=step, **drawn)
        loss = masking.weighted(process.terms(network, x0, masking, "time")).mean() / chosen["length"]
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        rate.step()
    with inference(network):
        return network.eval()


def claims(tables: Tables) -> list[Claim]:
    """The rules were written before the run: the directions are those of the published bounds and of the theory."""
    size, results = tables["sizes"].records()[0], tables["results"]
    seeds = len(set(results.column("seed")))
    on = (
        f"Markov chains of {size['ids']} ids, {size['length']} tokens, {seeds} seeds, {size['layers']} blocks of width "
        f"{size['width']}, {size['steps']} steps of {size['batch']} sequences"
    )

    def worse(a: str, b: str, what: str) -> Number:
        pairs = zip(results.where(variant=a).column(what), results.where(variant=b).column(what), strict=True)
        return mean(f"{a}, above {b}", (x - y for x, y in pairs))

    return [
        claim("the bound of uniform state is above that of a masked model", "higher perplexities", on,
              worse(TOLD, MASKED, BOUND).at_least(0)),
        claim("a uniform-state network gains from the time, by 0.01 nats or more", "the optimum depends on it", on,
              worse(UNIFORM, TOLD, BOUND).at_least(0.01)),
        claim("exact samples of both are judged alike by the truth: within 0.05 nats", "no statement", on,
              worse(TOLD, MASKED, JUDGED).within(-0.05, 0.05)),
        claim("samples of uniform state without the time are judged worse, by 0.01 nats or more", "no statement", on,
              worse(UNIFORM, TOLD, JUDGED).at_least(0.01)),
    ]  # fmt: skip


def drawing(results: Table) -> Any:
    def draw(sheet: Any) -> None:
        sheet.set_size_inches(9, 2.8)
        for axes, what in zip(sheet.subplots(1, 2, sharey=True), (BOUND, JUDGED), strict=True):
            for i, variant in enumerate(VARIANTS):
                values = results.where(variant=variant).column(what)
                axes.plot(values, [i] * len(values), "o")
            axes.set(xlabel=what, yticks=range(len(VARIANTS)))
            axes.set_yticklabels(VARIANTS)

    return draw
