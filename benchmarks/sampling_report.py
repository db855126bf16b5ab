"""The tables and the picture of ``benchmarks.sampling``, from the JSON that it saves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

NETWORKS = {"small": "small (12 x 768, L = 1024, V = 50,258)", "tiny": "tiny (4 x 256, L = 256, V = 4,096)"}


def tables(result: dict[str, Any]) -> str:
    """Everything that is there, as Markdown."""
    made: list[str] = []
    for name, title in NETWORKS.items():
        for part in ("steps", "alone"):
            if name in result.get(part, {}):
                made += _steps(result[part][name], title, part)
                made += _beside(result[part][name], result["sizes"][name])
    for part, make in (
        ("whole", _whole),
        ("parts", _parts),
        ("memory", _memory),
        ("tricks", _tricks),
        ("growth", _growth),
        ("batches", _batches),
        ("anyorder", _any_order),
        ("threads", _threads),
        ("compile", _compile),
    ):
        for name, found in result.get(part, {}).items():
            made += [f"### {part}: {NETWORKS.get(name, name)}", "", *make(found), ""]
    return "\n".join(made)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _ratio(found: dict[str, float]) -> str:
    return f"{found['median']:.2f}x ({found['least']:.2f} to {found['largest']:.2f})"


def _steps(found: dict[str, Any], title: str, part: str) -> list[str]:
    seconds = _table(
        ("one step", "CPU ms", "least to largest"),
        (
            [name, f"{1e3 * at['median']:.1f}", f"{1e3 * at['least']:.1f} to {1e3 * at['largest']:.1f}"]
            for name, at in found["seconds"].items()
        ),
    )
    against = _table(
        ("a sequence, against", "calls", "ours, s (multiplied)", "theirs, s (multiplied)", "ratio"),
        [
            [
                f"coupled ancestral with the cache, N = {int(steps):,}, {kind}",
                f"{at['calls']:.0f}",
                f"{at['seconds']['ours']:,.1f}",
                f"{at['seconds'][kind]:,.1f}",
                _ratio(at["ratio"][kind]),
            ]
            for steps, at in found["sequences"].items()
            for kind in at["ratio"]
        ]
        + [[f"first-hitting, {name}", "L", "", "", _ratio(at)] for name, at in found["first-hitting"].items()],
    )
    matmul = found["matmul"]
    rate = (
        f"A step of ours runs at {_ratio(matmul['fraction']).replace('x', '')} of the float32 matmul rate, "
        f"{matmul['flops_per_second'] / 1e9:.0f} GFLOP/s on one thread."
    )
    exponents = {
        kind: _exponent({int(n): at["seconds"][kind] for n, at in found["sequences"].items()})
        for kind in next(iter(found["sequences"].values()))["seconds"]
    }
    grows = "Growth with N, 50 to 50,000, as an exponent: " + ", ".join(f"{k} {v:.2f}" for k, v in exponents.items())
    return [f"### {part}: {title}", "", *seconds, "", *against, "", rate, "", grows + ".", ""]


def _beside(found: dict[str, Any], size: dict[str, Any]) -> list[str]:
    """Sequences in batches, from the medians of the steps, whose cost is proportional to B."""
    from benchmarks.sampling import Size, whole_sequence

    seconds = {name: at["median"] for name, at in found["seconds"].items()}
    of = Size(**size)

    def ratio(steps: int, kind: str, batch: int) -> float:
        return whole_sequence(of, seconds, steps, kind, batch) / whole_sequence(of, seconds, steps, "ours", batch)

    kinds = next(iter(found["sequences"].values()))["ratio"]
    rows = [
        [f"N = {steps:,}, {kind}", *(f"{ratio(steps, kind, batch):.1f}x" for batch in (1, 4, 16))]
        for steps in (1000, 10_000, 50_000)
        for kind in kinds
    ]
    return [*_table(("of a batch (multiplied), against coupled", "B = 1", "B = 4", "B = 16"), rows), ""]


def _exponent(seconds: dict[int, float]) -> float:
    from benchmarks.sampling import exponent

    return exponent(seconds)


def _whole(found: dict[str, float]) -> list[str]:
    """Each against ours of the same batch."""
    said = []
    for kind, seconds in found.items():
        ours = found["ours, B = 4" if kind.endswith("B = 4") else "ours"]
        said.append(f"{kind} {seconds:.1f} s" + ("" if seconds == ours else f", {seconds / ours:.2f}x"))
    return [f"CPU seconds of a sequence in whole runs at N = 1,000: {'; '.join(said)}."]


def _parts(found: dict[str, float]) -> list[str]:
    return _table(found, [[f"{100 * share:.2f}%" for share in found.values()]])


def _memory(found: dict[str, float]) -> list[str]:
    return _table(("one step", "MB beyond the weights"), ([name, f"{mb:,.0f}"] for name, mb in found.items()))


def _tricks(found: dict[str, Any]) -> list[str]:
    rows = ([name, f"{1e3 * at['seconds']:.1f}", _ratio(at)] for name, at in found.items())
    return _table(("without", "CPU ms", "of the time with all"), rows)


def _growth(found: dict[str, Any]) -> list[str]:
    return _table(
        ("a sequence token by token, with", "ours", "coupled float32, all calls"),
        (
            [
                f"{axis} from {min(sizes := [*map(int, at['ours']['seconds'])])} to {max(sizes):,}: exponent",
                *(f"{at[kind]['exponent']:.2f}" for kind in ("ours", "float32")),
            ]
            for axis, at in found.items()
        ),
    )


def _batches(found: dict[str, Any]) -> list[str]:
    return _table(
        [f"B = {batch}" for batch in found], [[f"{at['tokens_per_second']:.2f} tokens/s" for at in found.values()]]
    )


def _any_order(found: dict[str, Any]) -> list[str]:
    each = [(1, length, at) for length, at in found["lengths"].items()]
    each += [(batch, max(found["lengths"], key=int), at) for batch, at in found.get("batches", {}).items()]
    rows = [
        [
            str(batch),
            f"{int(length):,}",
            *(
                f"{at['milliseconds_per_token'][kind]:.1f}"
                for kind in ("bidirectional", "visible", "order", "left-to-right")
            ),
            f"{at['bidirectional_to_order']:.1f}x",
            f"{at['order_to_left_to_right']:.2f}x",
            f"{at['cache_megabytes']:.1f}",
        ]
        for batch, length, at in each
    ]
    head = (
        "B",
        "L",
        "bidirectional, ms a token",
        "visible",
        "any order, cached",
        "left to right, cached",
        "any order against bidirectional",
        "against left to right",
        "cache, MB",
    )
    grows = ", ".join(f"{kind} {ratio:.2f}x" for kind, ratio in found["growth"].items())
    return [*_table(head, rows), "", f"Cost of a token from the least L to the largest: {grows}."]


def _threads(found: dict[str, float]) -> list[str]:
    return _table(("a step of the tiny network", "ms by the clock"), ([k, f"{v:.1f}"] for k, v in found.items()))


def _compile(found: dict[str, Any]) -> list[str]:
    if "failed" in found:
        return [f"torch.compile does not work here: {found['failed']}"]
    warm = found["warming_up"]
    return [
        f"{_ratio(found['speedup'])} as fast; warming up took {warm['cpu_seconds']:.0f} s of CPU in this process "
        f"and {warm['seconds']:.0f} s by the clock."
    ]


def picture(result: dict[str, Any], path: Path) -> None:
    """Seconds of a sequence over N, ours and the published ones, for each network."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the picture needs matplotlib: pip install 'unmask[plot]'") from error
    found = result["steps"]
    figure = Figure(figsize=(5.5 * len(found), 4.2), layout="constrained")
    labels = {"ours": "unmask", "float32": "coupled, cached, float32", "float64": "coupled, cached, float64"}
    for axes, (name, at) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        for kind, colour in zip(labels, ("#1b7837", "#762a83", "#2166ac"), strict=True):
            over = {int(n): one["seconds"][kind] for n, one in at["sequences"].items()}
            axes.loglog(list(over), list(over.values()), "o-", color=colour, label=labels[kind])
        axes.set(title=NETWORKS[name], xlabel="steps N", ylabel="CPU seconds of a sequence, multiplied from steps")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)
