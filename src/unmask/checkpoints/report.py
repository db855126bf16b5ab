"""The description of a checkpoint that ``unmask inspect`` prints: no weights are read and nothing is run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from unmask.checkpoints.contents import Scan, look
from unmask.checkpoints.formats import recognise
from unmask.files import parsed

TOKENIZERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "encoder.json",
    "dict.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
# Modules whose functions could run a program when such a file is unpickled; containers are harmless.
RUNS = (
    "os",
    "posix",
    "nt",
    "subprocess",
    "sys",
    "builtins",
    "importlib",
    "runpy",
    "shutil",
    "socket",
    "pty",
    "ctypes",
    "pickle",
    "operator",
    "webbrowser",
    "code",
    "multiprocessing",
    "marshal",
    "types",
)
HARMLESS = (
    "builtins.set",
    "builtins.frozenset",
    "builtins.list",
    "builtins.dict",
    "builtins.tuple",
    "builtins.object",
    "builtins.int",
    "builtins.long",
    "builtins.float",
    "builtins.bool",
    "builtins.str",
    "builtins.unicode",
    "builtins.bytes",
    "builtins.bytearray",
    "builtins.complex",
    "builtins.slice",
    "types.SimpleNamespace",
)
SHOWN = 5


def inspect(path: str | Path, **override: Any) -> dict[str, Any]:
    """Everything that the files say. ValueError if they cannot be read; an unknown format is reported, not raised."""
    scan = look(path)
    report: dict[str, Any] = {
        "path": str(scan.path),
        "format": None,
        "files": list(scan.files),
        "weights": list(scan.weights),
        "megabytes": sum(tensor.bytes for tensor in scan.tensors.values()) / 1e6,
        "tensors": len(scan.tensors),
        "parameters": sum(tensor.count for tensor in scan.tensors.values()),
        "dtypes": _dtypes(scan),
        "has_average": scan.ema,
        "pickled": list(scan.pickled),
        "runs": dangerous(scan.pickled),
    }
    try:
        adapter = recognise(scan)
        report["format"] = adapter.NAME
        report |= adapter.about(scan, **override)
        there = [name for name in TOKENIZERS if (scan.folder / name).is_file()]
        for name in there:
            if name.endswith(".json"):
                parsed(scan.folder / name)
    except (ValueError, ImportError) as error:
        return report | {"can_be_sampled": False, "why_not": " ".join(str(error).split())}
    report.setdefault("tokenizer", ", ".join(there) or None)
    return report | _verdict(report)


def dangerous(pickled: tuple[str, ...]) -> list[str]:
    """The globals with which unpickling could run a program."""
    return [
        name
        for name in pickled
        if (name.split(".")[0] in RUNS and name not in HARMLESS) or name == "torch.storage._load_from_bytes"
    ]


def lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    what = report["format"] or "of no known kind"
    variant = report.get("variant")
    lines = [f"{report['path']}: {what}" + (f", {variant}" if variant not in (None, what) else "")]
    dtypes = ", ".join(f"{dtype} {count:,}" for dtype, count in report["dtypes"].items())
    size = f"{report['megabytes']:.1f} MB, {report['tensors']} tensors"
    lines.append(f"  weights     {_few(report['weights'])}: {size}")
    lines.append(f"  parameters  {report['parameters']:,} (values stored: {dtypes})")
    sizes = {name: report.get(name) for name in ("layers", "width", "heads", "length", "block")}
    if any(sizes.values()):
        lines.append(f"  network     {', '.join(f'{name} {size}' for name, size in sizes.items() if size)}")
    if "mask_id" in report:
        vocab = f" of {report['vocab_size']:,} ids" if report.get("vocab_size") else ""
        lines.append(f"  mask        {report['mask_id']}{vocab}; never drawn: {_few(report.get('special_ids') or [])}")
        lines.append(f"  time        {report.get('time') or 'none'}")
        lines.append(f"  tokenizer   {report.get('tokenizer') or 'none'}")
    used = ", used" if report.get("ema") else ", not used" if report["has_average"] else ""
    lines.append(
        f"  average     {'EMA weights are inside' if report['has_average'] else 'no EMA weights inside'}{used}"
    )
    for name in ("missing", "unexpected", "wrong"):
        if report.get(name):
            lines.append(f"  {name:<11} {_few(report[name])}")
    if report["pickled"]:
        lines.append(f"  pickle      names {_few(report['pickled'], 12)}; none was imported or run")
    if report["runs"]:
        lines.append(f"  WARNING     unpickling it could run a program: {_few(report['runs'])}")
    possible = "possible" if report.get("tokenizer") else f"token ids only: {report.get('needs') or 'no tokenizer'}"
    lines.append(f"  sampling    {possible if report['can_be_sampled'] else 'not possible: ' + report['why_not']}")
    return lines


def _verdict(report: dict[str, Any]) -> dict[str, Any]:
    why = None
    for name in ("missing", "wrong"):
        if report.get(name):
            why = f"{len(report[name])} tensors are {name}: {_few(report[name])}"
    return {"can_be_sampled": why is None, "why_not": why}


def _dtypes(scan: Scan) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for tensor in scan.tensors.values():
        counts[tensor.dtype] += tensor.count
    return dict(counts.most_common())


def _few(items: list[Any], shown: int = SHOWN) -> str:
    more = f", and {len(items) - shown} more" if len(items) > shown else ""
    return ", ".join(map(str, items[:shown])) + more if items else "none"
