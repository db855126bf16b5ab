"""An item as files: NAME.md to read, NAME.json with every number, PNGs, and CLAIMS.md, the sum of what is there."""

from __future__ import annotations

import importlib
import io
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from unmask import __version__
from unmask.models.files import write_whole
from unmask.reproduce.item import Claim, Drawing, ItemResult, Settings, Table

DRAW = "the exponential race, each position with its own noise"  # unless a table says otherwise
VERDICT = {True: "yes", False: "no", None: "not decided"}
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
    name: str, title: str, paper: str, settings: Settings, result: ItemResult, seconds: float
) -> dict[str, bytes]:
    """The files of an item by name, all in memory: an error here leaves nothing behind."""
    files = {f"{name}{'-' + key if key else ''}.png": png(draw) for key, draw in result.pictures.items()}
    files = {path: content for path, content in files.items() if content}
    about = {
        "item": name,
        "title": title,
        "paper": paper,
        "settings": asdict(settings),
        "seconds": round(seconds, 1),
        "version": __version__,
        "draw": DRAW,
        "machine": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "processor": platform.machine(),
        },
        "claims": [asdict(claim) for claim in result.claims],
        "notes": list(result.notes),
        "tables": {
            key: {"columns": table.columns, "rows": table.rows} for key, table in (result.tables | result.data).items()
        },
        "texts": dict(result.texts),
    }
    files[f"{name}.json"] = as_json(about).encode()
    files[f"{name}.md"] = markdown(about, result, sorted(path for path in files if path.endswith(".png"))).encode()
    return files


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Every file whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        write_whole(folder / path, content)


def markdown(about: Mapping[str, Any], result: ItemResult, pictures: list[str]) -> str:
    command = f"unmask reproduce {about['item']}" + (" --fast" if about["settings"]["size"] == "fast" else "")
    if about["settings"]["seed"]:
        command += f" --seed {about['settings']['seed']}"
    machine = about["machine"]
    lines = [
        f"# {about['title']}",
        "",
        f"{about['paper']}. `{command}`, {about['seconds']:.0f} s with torch {machine['torch']} on a CPU. "
        f"Version {about['version']}; draws of tokens: {about['draw']}.",
        "",
    ]
    lines += [text for path in pictures for text in (f"![{about['title']}]({path})", "")]
    if result.claims:
        lines += [claims_table(result.claims), ""]
    for key, table in result.tables.items():
        lines += [f"## {key}", "", table_markdown(table), ""]
    for heading, text in result.texts.items():
        lines += [f"## {heading}", "", "```text", text.strip().replace("```", "'''"), "```", ""]
    lines += [f"- {note}" for note in result.notes]
    return "\n".join(lines).rstrip() + "\n"


def claims_table(claims: tuple[Claim, ...]) -> str:
    rows = tuple((c.says, c.paper, c.measured, c.on, VERDICT[c.holds]) for c in claims)
    return table_markdown(Table(("the paper says", "its value", "measured", "on", "holds"), rows))


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
    """One line for each row of a table, so that a long table stays readable and a change shows where it is."""
    tables = {key: table["rows"] for key, table in about["tables"].items()}
    holes = {key: {**table, "rows": f"rows of {key}"} for key, table in about["tables"].items()}
    text = json.dumps(plain({**about, "tables": holes}), indent=1)
    for key, rows in tables.items():
        lines = ",\n".join(f"    {json.dumps(plain(row))}" for row in rows)
        text = text.replace(json.dumps(f"rows of {key}"), f"[\n{lines}\n   ]")
    return text + "\n"


def plain(value: Any) -> Any:
    """What JSON can hold: numbers of numpy become Python's, and what is not finite None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def png(draw: Drawing) -> bytes:
    """A picture's bytes; none where matplotlib, an extra, is not installed."""
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
        # No date and no version inside: the same numbers are the same bytes.
        sheet.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()


def summary(folder: Path) -> str:
    """All claims of the items whose JSON is in a folder."""
    lines = ["# What the paper says, and what was measured", ""]
    for path in sorted(folder.glob("*.json")):
        about = json.loads(path.read_text(encoding="utf-8"))
        if about.get("claims"):
            claims = tuple(Claim(**claim) for claim in about["claims"])
            how = f"size {about['settings']['size']}, {about['seconds']:.0f} s; draws of tokens: {about['draw']}"
            lines += [f"## [{about['title']}]({about['item']}.md)", "", f"{about['paper']}; {how}.", ""]
            lines += [claims_table(claims), ""]
    return "\n".join(lines).rstrip() + "\n"
