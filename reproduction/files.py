"""An item as files: NAME.md, NAME.json with every number, PNGs, and CLAIMS.md, the summary of a folder."""

from __future__ import annotations

import importlib
import io
import json
import math
import platform
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from reproduction.item import Drawing, ItemResult, Settings, Table
from reproduction.items import ITEMS, module
from reproduction.verdict import Claim, Number
from unmask import __version__
from unmask.files import write_whole

DRAW = "the exponential race, each position with its own noise"  # unless a table says otherwise
OUTCOMES = ("holds", "fails", "not decided", "no verdict")
WIDTH = 120  # of a line of text
LONG = 30  # rows of a table; longer ones are not in NAME.md
INK = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.92",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "axes.axisbelow": True,
}
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#e08214", "#762a83", "#6b6b6b", "#17a2b8")


def rendered(
    name: str,
    title: str,
    paper: str,
    settings: Settings,
    result: ItemResult,
    seconds: float,
    before: Mapping[str, Any] | None = None,
) -> dict[str, bytes]:
    """The files of an item by name, all in memory, so that an error leaves nothing behind.

    before: its stored result, of which the subjects that were not measured now are kept.
    """
    files = {f"{name}{'-' + key if key else ''}.png": png(draw) for key, draw in result.pictures.items()}
    files = {path: content for path, content in files.items() if content}
    about = {
        "item": name,
        "title": title,
        "paper": paper,
        "settings": asdict(settings) | {"cells": settings.cells is not None},
        "seconds": round(seconds, 1),
        "version": __version__,
        "draw": DRAW,
        "machine": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "processor": platform.machine(),
        },
        "notes": list(result.notes),
        "pictures": sorted(files),
        "shown": list(result.tables),
        "tables": {
            key: {"columns": table.columns, "rows": table.rows} for key, table in (result.tables | result.data).items()
        },
        "texts": dict(result.texts),
    }
    made = json.loads(as_json(about))
    return files | judged(made if before is None else joined(made, before))


def joined(made: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """A result of one subject with the stored rows of the others, and of its samplers that could not be run now."""
    check_same(made["settings"], before)
    tables = {}
    for key, table in made["tables"].items():
        at, stored = table["columns"].index("subject"), before["tables"][key]["rows"]
        which = [table["columns"].index(name) for name in ("subject", "sampler") if name in table["columns"]]
        new = {tuple(row[i] for i in which) for row in table["rows"]}
        order = list(dict.fromkeys(row[at] for row in [*stored, *table["rows"]]))
        rows = [*(row for row in stored if tuple(row[i] for i in which) not in new), *table["rows"]]
        tables[key] = {**table, "rows": sorted(rows, key=lambda row: order.index(row[at]))}
    return {
        **made,
        "settings": {**made["settings"], "subject": None, "cells": True},
        "tables": tables,
        "notes": list(dict.fromkeys([*before["notes"], *made["notes"]])),
        "pictures": sorted({*before["pictures"], *made["pictures"]}),
        "texts": {**before["texts"], **made["texts"]},
    }


def check_same(settings: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Refuse to join results of different sizes, seeds or judges."""
    for key in ("size", "seed", "judge"):
        if settings[key] != before["settings"][key]:
            raise ValueError(
                f"the stored {before['item']} has {key} {before['settings'][key]} and not {settings[key]}: "
                "measure all of its subjects anew, without --subject"
            )


def judged(about: Mapping[str, Any]) -> dict[str, bytes]:
    """NAME.json and NAME.md from stored numbers, with the claims that follow from them."""
    claims = claims_of(about)
    told = [{**asdict(claim), "outcome": claim.outcome, "power": claim.power} for claim in claims]
    name = about["item"]
    return {f"{name}.json": as_json({**about, "claims": told}).encode(), f"{name}.md": markdown(about, claims).encode()}


def claims_of(about: Mapping[str, Any]) -> list[Claim]:
    """The claims that follow from an item's stored tables, by the current rule."""
    claims: list[Claim] = module(about["item"]).claims(tables_of(about))
    return claims


def tables_of(about: Mapping[str, Any]) -> dict[str, Table]:
    return {
        key: Table(tuple(table["columns"]), tuple(tuple(row) for row in table["rows"]))
        for key, table in about["tables"].items()
    }


def stored(folder: Path) -> list[dict[str, Any]]:
    """The items whose JSON is in a folder, in the order of the items."""
    return [about for name in ITEMS if (about := found(folder, name)) is not None]


def found(folder: Path, name: str) -> dict[str, Any] | None:
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def judge_again(folder: Path) -> None:
    """Rewrite every NAME.json, NAME.md and CLAIMS.md of a folder from the stored numbers."""
    for about in stored(folder):
        write(folder, judged(about))
    write(folder, {"CLAIMS.md": summary(folder).encode()})


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write every file atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        write_whole(folder / path, content)


def markdown(about: Mapping[str, Any], claims: list[Claim]) -> str:
    command = f"python -m reproduction {about['item']}" + (" --fast" if about["settings"]["size"] == "fast" else "")
    if about["settings"]["seed"]:
        command += f" --seed {about['settings']['seed']}"
    command += f" --subject {about['settings']['subject']}" if about["settings"].get("subject") else ""
    command += " --resume" if about["settings"].get("cells") else ""
    lines = [
        f"# {about['title']}",
        "",
        wrapped(
            f"{about['paper']}. `{command}`, {_took(about)} with torch {about['machine']['torch']} on a CPU. "
            f"Version {about['version']}; draws of tokens: {about['draw']}."
        ),
        "",
    ]
    lines += [text for path in about["pictures"] for text in (f"![{about['title']}]({path})", "")]
    lines += [f"Claims: {outcomes(claims)} ([with their numbers](CLAIMS.md)).", ""]
    tables = tables_of(about)
    for key in about["shown"]:
        rows = len(tables[key].rows)
        table = table_markdown(tables[key]) if rows <= LONG else f"{rows} rows, in {about['item']}.json."
        lines += [f"## {key}", "", table, ""]
    for heading, text in about["texts"].items():
        shown = [wrapped(line) for line in text.strip().replace("```", "'''").split("\n")]
        lines += [f"## {heading}", "", "```text", *shown, "```", ""]
    lines += [wrapped(f"- {note}", after="  ") for note in about["notes"]]
    return "\n".join(lines).rstrip() + "\n"


def wrapped(text: str, after: str = "") -> str:
    """A line of text as lines of at most WIDTH characters, all but the first after this indentation."""
    how: dict[str, Any] = {"replace_whitespace": False, "expand_tabs": False, "break_on_hyphens": False}
    return textwrap.fill(text, WIDTH, subsequent_indent=after, break_long_words=False, **how)


def _took(about: Mapping[str, Any]) -> str:
    """What was kept of an interrupted run took no time in the last one."""
    parts = "in parts, the last of " if about["settings"].get("cells") else ""
    return f"{parts}{about['seconds']:.0f} s"


COLUMNS = ("the paper says", "its value", "measured", "holds if", "on", "told from", "outcome")


def claims_table(claims: list[Claim]) -> str:
    rows = [
        (
            one.says,
            one.paper,
            "; ".join(f"{number.what}: {_value(number)}" for number in _some(one)) + _rest(one),
            ", ".join(dict.fromkeys(_range(number) for number in _some(one))),
            one.on,
            f"{one.power:.2g} away" if one.power is not None and math.isfinite(one.power) else "-",
            one.outcome + _open(one) + (f" ({one.note})" if one.note else ""),
        )
        for one in claims
    ]
    return table_markdown(Table(COLUMNS, tuple(rows)))


def _open(one: Claim) -> str:
    """What would decide a claim that is not decided, and how much of it lies against the paper."""
    if one.outcome in ("holds", "fails"):
        return ""
    told = [f"takes n = {_rounded(one.needed)}"] if one.needed else []
    told += [f"{len(one.outside)} of {len(one.numbers)} values against the paper"] if one.outside else []
    return ": " + "; ".join(told) if told else ""


def _some(one: Claim) -> list[Number]:
    """All numbers of a claim, or of many those outside their range and the three that come nearest to its end."""

    def room(number: Number) -> float:
        return min(number.high - (number.value or 0), (number.value or 0) - number.low) / (number.error or 1)

    return list(one.numbers) if len(one.numbers) <= 6 else sorted(one.numbers, key=room)[: 3 + len(one.outside)]


def _rest(one: Claim) -> str:
    more = len(one.numbers) - len(_some(one))
    return f"; and {more} more that are further from the end of their range" if more else ""


def _rounded(n: int) -> str:
    """Rounded to two digits: it is an estimate."""
    step = 10 ** max(0, len(str(n)) - 2)
    return f"{math.ceil(n / step) * step:,}"


def _value(number: Number) -> str:
    if number.value is None:
        return "not known"
    value = cell(float(number.value))
    if not number.n:
        return value
    return f"{number.value:+.3g} ± {number.error:.2g} (n = {number.n:,})" if number.error is not None else value


def _range(number: Number) -> str:
    low, high = (math.isfinite(end) for end in (number.low, number.high))
    if low and high:
        return f"{number.low:.4g} to {number.high:.4g}" if number.low != number.high else f"exactly {number.low:.4g}"
    return f"at least {number.low:.4g}" if low else f"at most {number.high:.4g}" if high else "-"


def table_markdown(table: Table) -> str:
    lines = [" | ".join(cell(name) for name in table.columns), " | ".join("---" for _ in table.columns)]
    lines += [" | ".join(cell(value) for value in row) for row in table.rows]
    return "\n".join(f"| {line} |" for line in lines)


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return "-" if math.isnan(value) else str(value)
        return f"{value:.4g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def as_json(about: Mapping[str, Any]) -> str:
    """One line per table row, so that a long table stays readable and its diffs are small."""
    tables = {key: table["rows"] for key, table in about["tables"].items()}
    holes = {key: {**table, "rows": f"rows of {key}"} for key, table in about["tables"].items()}
    text = json.dumps(plain({**about, "tables": holes}), indent=1)
    for key, rows in tables.items():
        lines = ",\n".join(f"    {json.dumps(plain(row))}" for row in rows)
        text = text.replace(json.dumps(f"rows of {key}"), f"[\n{lines}\n   ]")
    return text + "\n"


def plain(value: Any) -> Any:
    """A value that JSON can hold: numpy numbers become Python's, and non-finite ones None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def png(draw: Drawing) -> bytes:
    """The bytes of a figure; empty if matplotlib, an extra, is not installed."""
    try:
        matplotlib = importlib.import_module("matplotlib")
        figure = importlib.import_module("matplotlib.figure")
    except ImportError:
        return b""
    importlib.import_module("matplotlib.backends.backend_agg")
    with matplotlib.rc_context({**INK, "axes.prop_cycle": matplotlib.cycler(color=COLOURS)}):
        sheet = figure.Figure(figsize=(8, 3.4), layout="constrained")
        draw(sheet)
        buffer = io.BytesIO()
        # No date and no version inside: the same numbers give the same bytes.
        sheet.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()


RULE = """# What the paper says, and what was measured

Each claim gives its numbers a range. A number's interval reaches as many standard errors to either side as Student's t
needs for a chance of 0.00135 beyond either end (three, for many samples; of k numbers of one claim 0.00135 / k each).
The claim **holds** if the whole interval lies in the range, **fails** if none of it does, and is **not decided**
otherwise. "Told from" is the power: a true value that far from the end of its range is told with probability 0.9. What
is computed and not sampled has no error and no power.

What is not decided says which n would decide it, if the values are as measured. Where that is more than ten times the n
of the run, the claim has **no verdict**; neither has a claim without a range, whose numbers depend on the machine or
could not be had. The factor of ten was chosen after the first results had been seen, and so were the larger n of some
items whose first run decided nothing. To keep either from hiding a failure, an open claim shows every value that lies
outside its range, and how many there are. The factor never changes "fails". A claim that was measured twice had two
chances to be wrong. What Figure 7 is compared with and where entropies count were corrected after the results had been
seen. This page is made from the stored numbers by `python -m reproduction --verdicts`."""


def outcomes(claims: Iterable[Claim]) -> str:
    """How many of the claims have each outcome, in words."""
    counts: Counter[str] = Counter(claim.outcome for claim in claims)
    return ", ".join(f"{counts[name]} {name}" for name in OUTCOMES if counts[name]) or "none"


def summary(folder: Path) -> str:
    """All claims of the items whose JSON is in a folder."""
    found = {about["item"]: claims_of(about) for about in stored(folder)}
    every = [claim for claims in found.values() for claim in claims]
    leaning = sum(bool(_open(one)) and bool(one.outside) for one in every)
    lines = [RULE, "", f"{outcomes(every)}. Of those without a decision, {leaning} have a value against the paper.", ""]
    for about in stored(folder):
        how = f"size {about['settings']['size']}, {_took(about)}; draws of tokens: {about['draw']}"
        lines += [f"## [{about['title']}]({about['item']}.md)", "", wrapped(f"{about['paper']}; {how}."), ""]
        lines += [claims_table(found[about["item"]]), ""]
    return "\n".join(lines).rstrip() + "\n"
