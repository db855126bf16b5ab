"""Tables about speed and serving."""

from __future__ import annotations

from functools import cache
from typing import Any

from benchmarks.sampling import Size, exponent, whole_sequence
from benchmarks.tables import markdown, stored

NETWORKS = ("small", "tiny")
KINDS = ("float32", "float64", "float64, cast")


@cache
def sampling() -> Any:
    return stored("sampling")


def ratio(at: dict[str, float]) -> str:
    return f"{at['median']:.2f}x ({at['least']:.2f} to {at['largest']:.2f})"


def published(steps: tuple[int, ...] = (1000, 50_000)) -> str:
    """The ratio of one sequence at several N."""
    measured = sampling()["steps"]
    rows = [
        [f"N = {n:,}, {kind}", *(ratio(measured[name]["sequences"][str(n)]["ratio"][kind]) for name in NETWORKS)]
        for n in steps
        for kind in KINDS
    ]
    return markdown(["published sampler", *NETWORKS], rows)


def steps() -> str:
    measured = sampling()["steps"]
    rows = [
        [f"first-hitting, {variant}", *(ratio(measured[name]["first-hitting"][variant]) for name in NETWORKS)]
        for variant in measured["small"]["first-hitting"]
    ]
    return "\n".join([published((1000, 10_000, 50_000)), *markdown([], rows).splitlines()[2:]])


def one_step() -> str:
    rows = []
    for name in NETWORKS:
        measured, memory = sampling()["steps"][name], sampling()["memory"][name]
        fraction, flops = measured["matmul"]["fraction"], measured["matmul"]["flops_per_second"]
        rows.append(
            [
                name,
                f"{1e3 * measured['seconds']['ours, one row a call']['median']:,.0f} ms",
                f"{ratio(fraction).replace('x', '')} of {flops / 1e9:.0f} GFLOP/s",
                f"{memory['ours, one row a call']:,.0f}",
                f"{memory['coupled float32, call']:,.0f}",
                f"{memory['coupled float64, call']:,.0f}",
            ]
        )
    return markdown(["", "a step", "of the rate of float32 products", "MB", "MB, published float32", "float64"], rows)


def parts() -> str:
    names = ("body", "head", "draw", "rest")
    rows = [[name, *(f"{sampling()['parts'][name][part]:.2%}" for part in names)] for name in NETWORKS]
    return markdown(["part of a run", *names], rows)


def growth() -> str:
    """Exponents of the cost of a run."""
    rows = []
    for name in NETWORKS:
        sequences = sampling()["steps"][name]["sequences"]
        of = {
            kind: exponent({int(n): at["seconds"][kind] for n, at in sequences.items()}) for kind in ("ours", "float32")
        }
        rows.append([f"N from 50 to 50,000, {name}", *(f"{value:.2f}" for value in of.values())])
    for axis, at in sampling()["growth"]["tiny"].items():
        sizes = [int(size) for size in at["ours"]["seconds"]]
        label = f"{axis} from {min(sizes):,} to {max(sizes):,}, tiny"
        rows.append([label, *(f"{at[kind]['exponent']:.2f}" for kind in ("ours", "float32"))])
    return markdown(["cost grows with", "exponent, ours", "published, float32"], rows)


def batches() -> str:
    rows = []
    for n in (1000, 10_000, 50_000):
        for kind in ("float32", "float64"):
            cells = []
            for part, name in (("steps", "small"), ("alone", "tiny")):
                seconds = {variant: at["median"] for variant, at in sampling()[part][name]["seconds"].items()}
                size = Size(**sampling()["sizes"][name])
                for batch in (1, 4, 16):
                    theirs, ours = (whole_sequence(size, seconds, n, who, batch) for who in (kind, "ours"))
                    cells.append(f"{theirs / ours:.1f}x")
            rows.append([f"N = {n:,}, {kind}", *cells])
    return markdown(["published sampler", "small, B = 1", "4", "16", "tiny, alone, B = 1", "4", "16"], rows)


def throughput() -> str:
    measured = sampling()["batches"]
    rows = [[name, *(f"{at['tokens_per_second']:.2f}" for at in measured[name].values())] for name in NETWORKS]
    return markdown(["", *(f"B = {batch}" for batch in measured["small"])], rows)


def savings() -> str:
    tricks = sampling()["tricks"]
    rows = [[name, *(ratio(tricks[one][name]) for one in NETWORKS)] for name in tricks["small"] if name != "with all"]
    return markdown(["plain form", *NETWORKS], rows)


def milliseconds(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def cached() -> str:
    measured = sampling()["anyorder"]["small"]
    runs = [(1, int(length), at) for length, at in measured["lengths"].items()]
    runs += [(int(batch), 1024, at) for batch, at in measured["batches"].items()]
    kinds = ("bidirectional", "visible", "order", "left-to-right")
    rows = [
        [
            str(batch),
            f"{length:,}",
            *(milliseconds(at["milliseconds_per_token"][kind]) for kind in kinds),
            f"{at['bidirectional_to_order']:.3g}x",
        ]
        for batch, length, at in runs
    ]
    head = ["B", "L", "bidirectional", "visible", "any order, cached", "left to right, cached", "gain of any order"]
    return markdown(head, rows)


def threads() -> str:
    at = sampling()["threads"]["tiny"]

    def one(count: int, waiting: str, machine: str) -> float:
        return float(at[f"{count} threads, {waiting}, {machine}"])

    machines = ("idle", "beside a busy process")
    rows = [
        [label, *(f"{one(count, waiting, machine):.1f}" for machine in machines)]
        for label, count, waiting in (
            ("1", 1, "passive"),
            ("2, asleep (`passive`)", 2, "passive"),
            ("2, spinning (`active`)", 2, "active"),
        )
    ]
    return markdown(["threads, while waiting", "idle machine", "beside a busy process"], rows)


def traffic() -> str:
    rows = [
        [
            f"`{name}`",
            f"{at['equal']:.2f}",
            f"{at['mixed']:.2f}",
            f"{at['kept']:.2f}",
            *(f"{at[f'{key} tokens/s']:,.0f}" for key in ("equal alone", "equal", "mixed")),
        ]
        for name, at in stored("traffic")["lengths"].items()
    ]
    return markdown(["model", "one length", "16 lengths", "kept", "tokens/s alone", "16 at a time", "16 lengths"], rows)


def behind() -> str:
    rows = [
        [f"`{name}`", large, *(f"{at[key]:.2f} s" for key in ("alone", "behind", "worst")), f"{at['ratio']:.1f}"]
        for name, large_requests in stored("traffic")["behind"].items()
        for large, at in large_requests.items()
    ]
    return markdown(["model", "behind", "alone", "median", "worst", "worst / alone"], rows)


def refused() -> str:
    rows = [
        [request, f"{at['seconds']:.2f} s", f"{at['megabytes']:.0f} MB"]
        for request, at in stored("traffic")["giants"].items()
    ]
    return markdown(["request", "rejected after", "memory"], rows)


TABLES = {
    "published": published,
    "steps": steps,
    "one-step": one_step,
    "parts": parts,
    "growth": growth,
    "batches": batches,
    "throughput": throughput,
    "savings": savings,
    "cached": cached,
    "threads": threads,
    "traffic": traffic,
    "behind": behind,
    "refused": refused,
}
