"""Tables about models, audits, the paper's claims, and the results that the README names."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from benchmarks.tables import RESULTS, markdown, stored, with_error
from recipes import box
from unmask.auditing.orders import ONE_TOKEN

MOSES = ("valid", "unique@1000", "unique@10000", "Novelty", "FCD/Test", "SNN/Test", "Frag/Test", "Scaf/Test", "Filters")
OUTCOMES = ("holds", "fails", "not decided", "no verdict")


def finetuning() -> str:
    result = stored("finetune")
    rows = [["Sapiens before", *(with_error(*result["before"][of].values()) for of in ("mouse", "human"))]]
    for way, after in result["after"].items():
        values = [with_error(after[of]["nats_per_residue"], after[of]["error"]) for of in ("mouse", "human")]
        changes = [with_error(after[of]["change"], after[of]["change_error"], "+.3f") for of in ("mouse", "human")]
        cells = [f"{value} ({change})" for value, change in zip(values, changes, strict=True)]
        rows.append([f"fine-tuned, {way}", *cells])
    return markdown(["model", "mouse, held out (change)", "human (change)"], rows)


def moses() -> str:
    result = stored("moses")
    runs = result["measured"] | {f"{name}, published": at for name, at in result["published"].items()}
    return markdown(["", *MOSES], [[name, *(f"{at[key]:.3f}" for key in MOSES)] for name, at in runs.items()])


def audits() -> str:
    rows = []
    for name, at in stored("audits").items():
        (low, high), largest = at["interval"], f"above {at['interval'][0] or 0:.1f}"
        verdict = "exact" if "float32" in at["precision"] else "no fault seen"  # a small budget finds less
        if at["law"] in ("grid", "truncated"):
            verdict, largest = f"**fault: {at['precision']}**", f"{at['maximum']:.2f} ({low:.2f} to {high:.2f})"
        elif not at["exact"]:
            verdict, largest = f"**fault: {at['verdict'].rpartition('; ')[2]}**", ""
        numbers = f"{at['numbers']:.1e}".replace("e+0", "e")
        rows.append([f"`{name}`", f"{at['package']} {at['version']}", at["what"], verdict, largest, numbers])
    return markdown(["`NAME`", "package", "what it is", "verdict", "M, 95%", "random numbers"], rows)


def order_audits() -> str:
    head = ["order", "", "leftness, one token left", "sharp, float32", "sharp, float64", "nats lost", "T", "verdict"]
    rows = []
    for name, at in stored("audited-orders").items():
        by = {(one["rows"], one["dtype"]): one for one in at["choices"]}
        chosen = [by[key] for key in ((ONE_TOKEN, "float32"), ("sharp", "float32"), ("sharp", "float64"))]
        left = ["all at once" if one["error"] is None else with_error(one["leftness"], one["error"]) for one in chosen]
        faults = [*(["from the left"] if at["leftmost"] else []), *(["entropy lost"] if at["biased"] else [])]
        costs = [
            with_error(at["lost"], at["lost_error"]),
            with_error(at["temperature"], at["temperature_error"], ".2f"),
        ]
        what = at["what"] + (f"; {at['package']} {at['version']}" if at["package"] else "")
        verdict = f"**fault: {' and '.join(faults)}**" if faults else "no fault found"
        rows.append([f"`{name.removeprefix('ours: ')}`", what, *left, *costs, verdict])
    return markdown(head, rows)


def items() -> list[dict[str, Any]]:
    """The stored items of the reproduction that have claims."""
    named = (stored(path.stem) for path in sorted(RESULTS.glob("*.json")))
    return [about for about in named if "claims" in about and "item" in about]


def claims() -> str:
    rows, total = [], Counter[str]()
    for about in items():
        counts = Counter(claim["outcome"] for claim in about["claims"])
        total += counts
        link = f"[{about['item']}](results/{about['item']}.md)"
        rows.append([link, about["paper"], *(str(counts[name] or "") for name in OUTCOMES)])
    rows.append(["all", "", *(str(total[name]) for name in OUTCOMES)])
    return markdown(["item", "in the paper", *OUTCOMES], rows)


def measured(number: dict[str, Any]) -> str:
    if number["value"] is None:
        return f"{number['what']}: not known"
    error = f" ± {number['error']:.2g}" if number["error"] else ""
    return f"{number['what']}: {number['value']:.3g}{error}"


def claims_with(*outcomes: str) -> str:
    """The claims with a range that have an outcome, each with the number that lies furthest against it."""

    def room(number: dict[str, Any]) -> float:
        value, low, high = number["value"] or 0, number["low"], number["high"]
        sides = [side for side, end in ((value - (low or 0), low), ((high or 0) - value, high)) if end is not None]
        return min(sides) / (number["error"] or 1)

    rows = []
    for about in items():
        for claim in about["claims"]:
            bounded = [n for n in claim["numbers"] if n["low"] is not None or n["high"] is not None]
            if claim["outcome"] in outcomes and bounded:
                worst = min(bounded, key=room)
                more = f"; {len(bounded) - 1} more" if len(bounded) > 1 else ""
                subject = re.split("[:,]", claim["on"])[0]
                rows.append([about["item"], claim["says"], subject, measured(worst) + more, claim["outcome"]])
    return markdown(["item", "the paper says", "on", "measured, what lies furthest against it", "outcome"], rows)


def solved(corpus: str, clues: int) -> str:
    rows = stored(corpus)["orders"]
    part = {row["order"]: row["part"] for row in rows if (row["clues"], row["temperature"]) == (clues, 1)}
    return f"{part['random']:.0%} in random order, {part['margin']:.0%} with the largest margin first"


def headlines() -> str:
    """The results that the README names."""
    counts, seconds = stored("ahead-counts")["box"], stored("ahead-seconds")["seconds"]["kjv-anyorder"]
    gain = {name: f"{at['mixed']:.1f}" for name, at in stored("traffic")["lengths"].items()}
    molecules, char_rnn = stored("moses")["measured"]["molecules"], stored("moses")["published"]["CharRNN"]
    per_call = {name: counts[name]["32"]["tokens_per_pass"] for name in ("kjv", "kjv-anyorder")}
    fast, slow = (1e3 * seconds[key] for key in ("auto", "none"))
    perplexity = published_perplexity()
    rows = [
        ["tokens per network call of `kjv-anyorder`, exact", f"{per_call['kjv-anyorder']:.1f}, looking 32 ahead"],
        ["CPU time of such a text", f"{fast:.0f} ms instead of {slow:.0f}: {slow / fast:.1f} times less"],
        ["calls for an exact text of 128 tokens by `kjv`", f"{128 / per_call['kjv']:.1f}, looking 32 ahead"],
        [
            "throughput of 16 concurrent requests of 16 lengths, against one at a time",
            f"{gain['kjv-ar']} times (`kjv-ar`), {gain['kjv-anyorder']} (`kjv-anyorder`), {gain['kjv']} (`kjv`)",
        ],
        ["6 x 6 Sudoku with 10 clues, solved by `sudoku`", solved("sudoku6", 10)],
        ["9 x 9 Sudoku with 32 clues, solved by `sudoku9`", solved("sudoku9", 32)],
        [
            "10,000 molecules by `molecules`, MOSES's own measures",
            f"{molecules['valid']:.0%} valid, {molecules['Novelty']:.0%} of these new, FCD {molecules['FCD/Test']:.2f} "
            f"(CharRNN {char_rnn['FCD/Test']:.2f})",
        ],
        [
            "published float32 sampler, from 100 to 50,000 steps",
            f"perplexity falls from {perplexity[100]:.0f} to {perplexity[50_000]:.0f}",
        ],
    ]
    return markdown(["what", "measured"], rows)


def published_perplexity() -> dict[int, float]:
    """Of the oracle by N, with the published float32 sampler."""
    cells = stored("published_steps")["tables"]["cells"]
    rows = [dict(zip(cells["columns"], row, strict=True)) for row in cells["rows"]]
    chosen = ("oracle", "published (MDLM), float32")
    return {row["N"]: row["perplexity"] for row in rows if (row["subject"], row["sampler"]) == chosen}


TABLES = {
    "models": box.table,
    "finetuning": finetuning,
    "moses": moses,
    "audits": audits,
    "order-audits": order_audits,
    "claims": claims,
    "claims-failing": lambda: claims_with("fails"),
    "claims-open": lambda: claims_with("not decided", "no verdict"),
    "headlines": headlines,
}
