"""What sampling costs, as ratios measured in one run: our samplers against the published ones, on two networks.

    python -m benchmarks.sampling                        all parts, about half an hour on a quiet machine
    python -m benchmarks.sampling --part steps --part parts --network tiny
    python -m benchmarks.sampling --quick                counts of operations and shapes, without a clock
    python -m benchmarks.sampling --report FILE          tables and a picture of what an earlier run saved

One process, one thread, CPU time; the variants take turns in five rounds (the tiny network's in 25), and a ratio is the
median of the rounds' own ratios, with the least and the largest. Weights are random, which changes no cost. A step is
measured from the middle of a run; a whole sequence is multiplied up from it, and the tables say so (the tiny network's
whole runs are made as well, once, as a check). The published sampler is given the plain network: torch's own
kernels, nothing folded, the head everywhere, probabilities made in the passes and precisions of the published codebases
(``WAYS``), and torch.rand's random numbers.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask import plan
from unmask.draw import exponential_race
from unmask.networks.ddit import DDiT, DDiTConfig
from unmask.samplers import published
from unmask.schedule import Linear

WAYS = {  # the precisions of the probabilities that are kept, and of the race that draws from them
    "float32": ("float32", "float32"),  # as MDLM published it
    "float64": ("float64", "float64"),  # as ReMDM and BD3-LM repaired it
    "float64, cast": ("float32", "float64"),  # as others did, in the draw alone
}
MATMUL = "nothing but products"
VARIANTS = (
    "ours, one row a call",
    "ours, 16 rows a call",
    "full head, one-row draw",
    "full head, full-canvas float32 draw",
    "full head, full-canvas float64 draw",
    *(f"coupled {way}, {step}" for way in WAYS for step in ("call", "cached")),
    MATMUL,
)
STEPS = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    heads: int
    length: int
    vocab: int
    inner: int = 1  # steps of one measurement
    rounds: int = 5

    def network(self) -> DDiT:
        """Random weights, and a head that is not all zeros. The mask is the last of the V ids."""
        torch.manual_seed(0)
        config = DDiTConfig(self.vocab, self.vocab - 1, self.length, self.width, self.layers, self.heads)
        made = DDiT(config).eval()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        return made.requires_grad_(False)

    def flops(self, rows: int = 1, *, everywhere: bool = False) -> float:
        """Multiplications and additions of one call for one sequence; elementwise work is not counted.

        The fast path has its first block's projections already, and computes queries, MLP and head of the last at
        ``rows`` alone.
        """
        length, width = self.length, self.width
        at = length if everywhere else rows
        whole = 2 * 12 * width * width + 4 * length * width  # of a block, per position
        if everywhere:
            return float(length * (self.layers * whole + 2 * width * self.vocab))
        first = length * (whole - 2 * 3 * width * width)
        last = length * 2 * 2 * width * width + at * (2 * 10 * width * width + 4 * length * width)
        return float(first + (self.layers - 2) * length * whole + last + at * 2 * width * self.vocab)


SIZES = {
    "small": Size(12, 768, 12, 1024, 50_258),
    "tiny": Size(4, 256, 4, 256, 4_096, inner=5, rounds=25),
    "smallest": Size(3, 16, 2, 16, 500),  # for --quick
}


class Everywhere:
    """The network called as the published codebases do: no rows, so the last block and the head are everybody's."""

    def __init__(self, network: Any) -> None:
        self.network, self.vocab_size, self.mask_id = network, network.vocab_size, network.mask_id

    def __call__(self, tokens: Tensor, time: Tensor | None = None) -> Tensor:
        return self.network(tokens, time)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class AsPublished:
    """The published ancestral sampler with its cache, pass by pass, in the published precisions, with torch.rand."""

    network: Any
    kept: torch.dtype
    drawn: torch.dtype

    @classmethod
    def of(cls, network: DDiT, way: str) -> AsPublished:
        return cls(Everywhere(network), *(published.PRECISIONS[name] for name in WAYS[way]))

    def stream(self, x: Tensor, times: Tensor) -> Iterator[Tensor]:
        """The canvas after each step; a network output serves all steps up to the first that changes something."""
        random, mu, mask_id = torch.Generator().manual_seed(0), None, self.network.mask_id
        for t, s in itertools.pairwise(times):
            if not bool((x == mask_id).any()):
                return
            mu = self.mean(x, t) if mu is None else mu
            leave, stay = published.ancestral_law(Linear(), s, t)
            weights = mu * leave
            weights[..., mask_id] = stay
            new = torch.where(x == mask_id, self.race(weights, random), x)
            x, mu = new, None if bool((new != x).any()) else mu
            yield x
        if bool((x == mask_id).any()):
            mu = self.mean(x, times[-1]) if mu is None else mu
            yield torch.where(x == mask_id, self.race(mu, random), x)

    def mean(self, x: Tensor, t: Tensor) -> Tensor:
        """mu [B, L, V]; the mask is one of the V ids here. MDLM makes log mu first, and visible tokens certain."""
        with torch.inference_mode():
            logits = self.network(x, t.expand(len(x)))
            log_mu = logits - torch.logsumexp(logits, -1, keepdim=True)
            visible = (x != self.network.mask_id).nonzero(as_tuple=True)
            log_mu[visible] = -torch.inf
            log_mu[(*visible, x[visible])] = 0.0
            return log_mu.to(self.kept).exp()

    def race(self, weights: Tensor, random: torch.Generator) -> Tensor:
        return published.winner(weights, torch.rand(weights.shape, dtype=self.drawn, generator=random))


def half(size: Size, batch: int = 1) -> Tensor:
    """Canvases of which a random half is visible."""
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(size.vocab - 1, (batch, size.length), generator=random)
    return torch.where(torch.rand(batch, size.length, generator=random) < 0.5, size.vocab - 1, tokens)


def ours(model: Any, canvas: Tensor, **options: Any) -> Iterator[object]:
    """Steps of ``unmask.sample``, run after run."""
    while True:
        yield from unmask.stream(model, canvas, **options)


def full_canvas(model: Everywhere, canvas: Tensor, precision: str) -> Iterator[object]:
    """First-hitting with the full head and a draw at every position, of which one is kept."""
    dtype, random = published.PRECISIONS[precision], torch.Generator().manual_seed(0)
    while True:
        x = canvas.clone()
        with torch.inference_mode():
            mu = torch.softmax(model(x).flatten(0, 1).to(dtype), -1)
            ids = published.winner(mu, torch.rand(mu.shape, dtype=dtype, generator=random))
            at = int((x.flatten() == model.mask_id).nonzero()[0])
            x.view(-1)[at] = ids[at]
        yield x


def coupled(network: DDiT, canvas: Tensor, way: str, empty: bool) -> Iterator[object]:
    """Steps of the published ancestral sampler with its cache: ones that call the network, or ones that need not.

    The grid is so fine that nothing is unmasked; a step's cost does not depend on that.
    """
    run = AsPublished.of(network, way)
    times = torch.linspace(0.5, 0.5 - 1e-9, 1000, dtype=torch.float64)

    def begun() -> Iterator[object]:
        return run.stream(canvas.clone(), times)

    if not empty:
        return (next(begun()) for _ in itertools.count())
    steps = begun()
    next(steps)  # this one called the network
    return steps


def steppers(size: Size, names: Sequence[str] = ()) -> dict[str, Iterator[object]]:
    """Everything that is compared, or some of it, each as an iterator that makes one step."""
    network = size.network()
    fast, canvas, empty = network.for_sampling(), half(size), torch.full((1, size.length), size.vocab - 1)
    make: dict[str, Callable[[], Iterator[object]]] = {
        "ours, one row a call": lambda: ours(fast, canvas),
        "ours, 16 rows a call": lambda: ours(fast, empty, plan=plan.parallel, steps=max(size.length // 16, 1)),
        "full head, one-row draw": lambda: ours(Everywhere(network), canvas),
        "full head, full-canvas float32 draw": lambda: full_canvas(Everywhere(network), canvas, "float32"),
        "full head, full-canvas float64 draw": lambda: full_canvas(Everywhere(network), canvas, "float64"),
        MATMUL: lambda: products(size),
    }
    for way in WAYS:
        make[f"coupled {way}, call"] = lambda way=way: coupled(network, canvas, way, False)  # type: ignore[misc]
        make[f"coupled {way}, cached"] = lambda way=way: coupled(network, canvas, way, True)  # type: ignore[misc]
    return {name: make[name]() for name in names or VARIANTS}


def in_turns(run: dict[str, Iterator[object]], inner: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of a step, of each variant in each round; where steps are short, a round before does not count.

    Each round begins with another variant: what one leaves behind in the caches does not always fall on the same.
    """
    found: dict[str, list[float]] = {name: [] for name in run}
    names = list(run)
    for number in range(-1 if inner > 1 else 0, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seconds = of_a_step(run[name], 1 if number < 0 else inner)
            if number >= 0:
                found[name].append(seconds)
    return found


def of_a_step(steps: Iterator[object], count: int) -> float:
    """CPU seconds of one of the next so many steps."""
    started = time.process_time()
    for _ in range(count):
        next(steps)
    return (time.process_time() - started) / count


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "largest": max(values)}


def products(size: Size) -> Iterator[object]:
    """As many operations as a step of ours has, all in products of the network's own sizes."""
    a, b = torch.randn(size.length, size.width), torch.randn(4 * size.width, size.width)
    count = max(1, round(size.flops() / (8.0 * size.length * size.width**2)))
    while True:
        with torch.inference_mode():
            for _ in range(count):
                made = torch.nn.functional.linear(a, b)
        yield made


def whole_sequence(size: Size, seconds: dict[str, float], steps: int, kind: str, batch: int = 1) -> float:
    """A sequence in N steps, multiplied up: E-NFE calls, and for the published the steps between them.

    Beside others in a batch it costs the published sampler more: its cache holds only as long as none of them changes.
    A call of ours has no row but those that ask in it.
    """
    calls = unmask.theory.expected_nfe(steps, size.length * (1 if kind == "ours" else batch))
    if kind == "ours":
        one, many = seconds["ours, one row a call"], seconds["ours, 16 rows a call"]
        return calls * (one + (many - one) / 15 * (size.length / calls - 1))
    return calls * seconds[f"coupled {kind}, call"] + (steps - calls) * seconds[f"coupled {kind}, cached"]


def steps(size: Size) -> dict[str, Any]:
    """Seconds of each kind of step, and of whole sequences: ratios to ours, round by round."""
    run = steppers(size)
    found = in_turns(run, size.inner, size.rounds)
    del run
    gc.collect()
    return compared(size, found)


def compared(size: Size, found: dict[str, list[float]]) -> dict[str, Any]:
    """Seconds of each kind of step, by round, as ratios to ours and as whole sequences."""
    rounds = [{name: values[i] for name, values in found.items()} for i in range(size.rounds)]
    result: dict[str, Any] = {
        "seconds": {name: spread(values) for name, values in found.items()},
        "first-hitting": {
            name: spread([one[name] / one["ours, one row a call"] for one in rounds])
            for name in found
            if name.startswith("full head")
        },
        "sequences": {},
    }
    for count in STEPS:
        each = {kind: [whole_sequence(size, one, count, kind) for one in rounds] for kind in ("ours", *WAYS)}
        result["sequences"][count] = {
            "calls": unmask.theory.expected_nfe(count, size.length),
            "seconds": {kind: statistics.median(values) for kind, values in each.items()},
            "ratio": {kind: spread([a / b for a, b in zip(each[kind], each["ours"], strict=True)]) for kind in WAYS},
        }
    result["matmul"] = {
        "flops_per_second": size.flops() / statistics.median(found[MATMUL]),
        "fraction": spread([one[MATMUL] / one["ours, one row a call"] for one in rounds]),
    }
    return result


def parts(size: Size) -> dict[str, float]:
    """Shares of a first-hitting run's time: the body, the head, the draw, and the loop around them."""
    network: Any = size.network().for_sampling()
    spent = dict.fromkeys(("body", "head", "draw"), 0.0)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            started = time.process_time()
            result = function(*given, **named)
            spent[name] += time.process_time() - started
            return result

        return run

    network.states, inner = timed("body", network.states), network.network
    inner.logits = timed("head", inner.logits)
    calls = ours(network, half(size), draw=timed("draw", exponential_race))
    next(calls)
    spent.update(dict.fromkeys(spent, 0.0))
    started = time.process_time()
    for _ in range(5 * size.inner**2):
        next(calls)
    total = time.process_time() - started
    shares = {name: seconds / total for name, seconds in spent.items()}
    return shares | {"rest": 1 - sum(shares.values()), "outside the network": 1 - shares["body"] - shares["head"]}


def exponent(seconds: dict[int, float]) -> float:
    """The slope of log seconds over log size, by least squares."""
    x, y = torch.tensor(list(seconds), dtype=torch.float64).log(), torch.tensor(list(seconds.values())).double().log()
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def main() -> None:
    from benchmarks import sampling_more, sampling_report

    every = (
        "steps",
        "alone",
        "whole",
        "parts",
        "memory",
        "tricks",
        "growth",
        "batches",
        "anyorder",
        "threads",
        "compile",
    )
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="count operations and look at shapes; no clock")
    parser.add_argument("--part", action="append", choices=every, help="only these parts")
    parser.add_argument("--network", action="append", choices=("small", "tiny"), help="only this network")
    parser.add_argument("--output", metavar="FILE", help="save there as JSON, after each part; others' parts stay")
    parser.add_argument("--report", metavar="FILE", help="print the tables of a saved run")
    parser.add_argument("--picture", metavar="FILE", help="and draw them there")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.quick:
        print(json.dumps(sampling_more.counts(SIZES["smallest"]), indent=1))
        return
    saved = Path(chosen.report or chosen.output or "")
    result: dict[str, Any] = json.loads(saved.read_text()) if saved.is_file() else {}
    if not chosen.report:
        for name, part, run in _work(chosen.part or every, chosen.network or ("tiny", "small"), sampling_more):
            print(f"{part}, {name}", file=sys.stderr, flush=True)
            result.setdefault(part, {})[name] = json.loads(json.dumps(run()))
            result["sizes"] = {size: asdict(SIZES[size]) for size in ("small", "tiny")}
            if chosen.output:
                saved.write_text(json.dumps(result, indent=1) + "\n")
    print(sampling_report.tables(result))
    if chosen.picture:
        sampling_report.picture(result, Path(chosen.picture))


def _work(chosen: Any, networks: Any, more: Any) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """What is to be measured, in the order of the parts."""
    of_size: dict[str, Callable[[Size], Any]] = {
        "steps": steps,
        "parts": parts,
        "tricks": more.tricks,
        "batches": more.batches,
        "compile": more.compiled,
    }
    of_tiny: dict[str, Callable[[Size], Any]] = {"alone": more.alone, "whole": more.whole, "growth": more.growth}
    for part in chosen:
        for name in networks:
            size = SIZES[name]
            if part == "compile" and name == "small" and len(chosen) > 1:
                continue  # minutes for one number: ask for it alone
            if part in of_size:
                yield name, part, lambda run=of_size[part], size=size: run(size)
            elif part == "memory":
                yield name, part, lambda name=name: more.memory(name)
            elif name == "tiny" and part in of_tiny:
                yield name, part, lambda run=of_tiny[part], size=size: run(size)
            elif name == "tiny" and part == "threads":
                yield name, part, more.threads
            elif name == "small" and part == "anyorder":
                yield name, part, more.any_order


if __name__ == "__main__":
    main()
