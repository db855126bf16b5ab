"""Tables about samplers: look-ahead, parallel decoding, orders, infilling, puzzles."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import markdown, stored, with_error

WINDOWS = ("1", "2", "4", "8", "16", "32", "64")


def ahead_tokens() -> str:
    box = stored("ahead-counts")["box"]
    rows = [
        [f"`{name}`", *(f"{at[w]['tokens_per_pass']:.2f}" if w in at else "" for w in WINDOWS)]
        for name, at in box.items()
        if "rejection" not in name
    ]
    return markdown(["W =", *WINDOWS], rows)


def ahead_rejection() -> str:
    box, windows = stored("ahead-counts")["box"], ("5", "8", "16", "32")
    named = {"rejection as published": "kjv-anyorder, rejection as published", "`ahead`": "kjv-anyorder"}
    rows = [
        [label, *(f"{box[name][w]['tokens_per_pass']:.2f}" if w in box[name] else "" for w in windows)]
        for label, name in named.items()
    ]
    return markdown(["W =", *windows], rows)


def ahead_lengths() -> str:
    text = stored("ahead-counts")["text"]
    rows = [[f"L = {int(length):,}", *(f"{at[w]:.1f}" for w in WINDOWS[1:])] for length, at in text.items()]
    return markdown(["W =", *WINDOWS[1:]], rows)


def ahead_rounds() -> str:
    rounds = stored("ahead-counts")["rounds"]
    orders = {
        "random order": ("random", ".1f"),
        "left to right": ("left-to-right", ".0f"),
        "a hidden Markov chain, random order": ("hidden, random", ".1f"),
    }
    rows = [
        [label, *(with_error(at["mean"], at["error"], form) for at in rounds[name].values())]
        for label, (name, form) in orders.items()
    ]
    return markdown(["L =", *(f"{int(length):,}" for length in rounds["random"])], rows)


def ahead_seconds() -> str:
    windows = ("none", "1", "2", "4", "8", "16", "24", "32", "auto")
    rows = [
        [f"`{name}`", *(f"{1e3 * at[w]:,.0f}" if w in at else "" for w in windows)]
        for name, at in stored("ahead-seconds")["seconds"].items()
    ]
    return markdown(["W =", *windows], rows)


def ahead_small() -> str:
    levels = stored("ahead-seconds")["passes"]["1"]["levels"]
    per_pass = stored("ahead-counts")["text"]["1024"]
    passes = {name: 1e3 * sum(at.values()) / len(at) for name, at in levels.items()}
    token = {name: one / per_pass.get(name, 1) for name, one in passes.items()}

    def cell(value: float) -> str:
        return f"{value:.1f}" if value < 100 else f"{value:,.0f}"

    head = [name if name.isdigit() else name.replace("-", " ") for name in passes]
    rows = [["a pass", *map(cell, passes.values())], ["a token", *map(cell, token.values())]]
    return markdown(["W =", *head], rows)


def profile() -> str:
    at = stored("profile-kjv")["profile"]
    shown = (0, 32, 64, 96, 127)
    row = ["h(n), nats", *(with_error(at["nats"][n], at["errors"][n], ".2f") for n in shown)]
    return markdown(["visible tokens n", *map(str, shown)], [row])


def parallel() -> str:
    names = ("equal", "optimal", "others")
    rows = [
        [str(row["steps"]), *(with_error(row[name], row[f"{name}_error"], ".2f") for name in names)]
        for row in stored("profile-kjv")["costs"]
    ]
    return markdown(["calls N", "equal sizes", "optimal sizes", "chosen on others"], rows)


def bias_variation() -> str:
    rows = stored("bias")["variation"]
    names = [name for name in rows[0] if name not in ("switch", "steps")]
    cells = [[str(row["switch"]), str(row["steps"]), *(f"{row[name]:.3f}" for name in names)] for row in rows]
    return markdown(["switches with", "N", *names], cells)


def bias_nats() -> str:
    rows = stored("bias")["judged"]
    first, *others = [name for name in rows[0] if name != "steps"]
    cells = [
        [
            str(row["steps"]),
            with_error(*row[first], ".4f"),  # type: ignore[misc]
            *(with_error(*row[name], "+.4f") for name in others),  # type: ignore[misc]
        ]
        for row in rows
    ]
    return markdown(["N of 64", first, *(f"{name}, less that" for name in others)], cells)


def orders() -> str:
    cells = [
        [
            row["order"],
            str(row["steps"] or "-"),
            f"{row['calls']:.2f}",
            f"{row['draws']:.1f}",
            f"{row['variation']:.3f}",
            with_error(*row["nats"]),
        ]
        for row in stored("orders")["rows"]
    ]
    return markdown(["order", "steps", "calls", "draws", "total variation", "-log p, nats"], cells)


def infill() -> str:
    cells = [
        [
            str(row["gap"]),
            row["way"],
            str(row["particles"]),
            with_error(row["excess_nats"], row["error"], ".2f"),
            f"{row['same']:.0%}",
        ]
        for row in stored("infill")["rows"]
    ]
    return markdown(["hidden tokens", "way", "particles", "nats above the original", "same tokens"], cells)


def insertion() -> str:
    at = stored("insertion")["chain, insertion"]
    network, truth = at["mean length"]
    distance = "total variation of lengths"
    rows = [
        ["bound, nats, of a held-out string", with_error(at["bound, nats"], at["its error"]), f"{at['truth, nats']}"],
        ["nats of samples under the truth", f"{at['nats of samples']}", f"{at['truth, nats']}"],
        ["mean length", f"{network}", f"{truth}"],
        [
            "distance of lengths to the truth",
            f"{at[distance]}",
            f"{at['of as many exact draws']} (as many exact draws)",
        ],
        ["calls per text", f"{at['calls per text']}", ""],
    ]
    return markdown(["", "network", "truth"], rows)


def sudoku4() -> str:
    rows = [row for row in stored("sudoku4")["orders"] if not row["order"].endswith((" 8 a call", " 16 a call"))]
    rows.sort(key=lambda row: -row["calls"])  # stable: as they were measured, where calls are equal
    cells = [
        [row["order"], f"{row['valid']:.3f}", f"{row['total_variation']:.3f}", f"{row['calls']:.4g}"] for row in rows
    ]
    return markdown(["order", "valid", "total variation", "calls"], cells)


def share(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return f"{row['part']:.2f} [{low:.2f}, {high:.2f}]"


def sudoku(corpus: str) -> str:
    by_order: dict[str, dict[int, dict[str, Any]]] = {}
    for row in stored(corpus)["orders"]:
        if row["temperature"] == 1:
            by_order.setdefault(row["order"], {})[row["clues"]] = row
    clues = list(next(iter(by_order.values())))
    cells = [[name, *(share(at[n]) for n in clues), f"{at[clues[0]]['calls']:.1f}"] for name, at in by_order.items()]
    return markdown(["order", *(f"{n} clues" for n in clues), f"calls with {clues[0]} clues"], cells)


def nae_sat() -> str:
    rows = stored("nae-sat")["orders"]
    nothing, given = (
        {row["order"]: row for row in rows if row["given"] == key} for key in ("nothing", "the observations")
    )
    cells = [
        [
            name,
            with_error(row["right"], row["error"]),
            share(row["all_right"]),
            f"{row['calls']:.1f}",
            with_error(given[name]["right"], given[name]["error"]),
            share(given[name]["all_right"]),
        ]
        for name, row in nothing.items()
    ]
    return markdown(["order", "right", "all right", "calls", "right, observations given", "all right, given"], cells)


def coverage() -> str:
    names = ("corpus", "mean", "mean_bca")
    cells = [
        [cell["law"], str(cell["sequences"]), *(f"{cell[name]:.3f}" for name in names)]
        for cell in stored("coverage")["cells"]
    ]
    head = ["nats per token", "sequences", "corpus perplexity", "mean of perplexities", "the same mean, BCa (scipy)"]
    return markdown(head, cells)


TABLES = {
    "ahead-tokens": ahead_tokens,
    "ahead-rejection": ahead_rejection,
    "ahead-lengths": ahead_lengths,
    "ahead-rounds": ahead_rounds,
    "ahead-seconds": ahead_seconds,
    "ahead-small": ahead_small,
    "profile": profile,
    "parallel": parallel,
    "bias-variation": bias_variation,
    "bias-nats": bias_nats,
    "orders": orders,
    "infill": infill,
    "insertion": insertion,
    "sudoku4": sudoku4,
    "sudoku6": lambda: sudoku("sudoku6"),
    "sudoku9": lambda: sudoku("sudoku9"),
    "nae-sat": nae_sat,
    "coverage": coverage,
}
