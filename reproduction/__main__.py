"""``python -m reproduction``: the command line. 0 if every requested item is written, 1 if one failed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from reproduction import files
from reproduction.item import Settings
from reproduction.items import ITEMS, WITH_SUBJECTS, module
from unmask.cli import ready
from unmask.cli.command import Command
from unmask.cli.options import guarded
from unmask.files import write_whole

HELP = "An item's name, several, 'all', or 'list', which names them"


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """Reproduce the paper's figures and tables, with the measured numbers next to the paper's."""

    names: tuple[str, ...] = ("list",)
    fast: bool = False
    """Small versions, which take minutes instead of hours."""
    out: str = "results"
    """The folder for NAME.md, NAME.json and NAME.png of each item, and for CLAIMS.md, the summary of all claims."""
    seed: int = 0
    """The seed of all random numbers."""
    checkpoint: str | None = None
    """Your own model as one more subject: a run's folder, a name that unmask models lists, or ORG/NAME on the hub."""
    subject: str | None = None
    """Measure this subject alone (oracle, kjv, your checkpoint), and keep the others of the result stored in OUT."""
    judge: str = "smollm2"
    """The judge for texts of trained models. The oracle is judged by the true model."""
    json: bool = False
    """Print one JSON line for each item instead of a sentence."""
    resume: bool = False
    """Store finished parts in OUT/cells and reuse them, so that an interrupted run can continue."""
    verdicts: bool = False
    """Measure nothing; recompute the verdicts from the numbers stored in OUT."""


PROGRAM = "python -m reproduction"
COMMAND = Command(
    PROGRAM,
    ReproduceOptions,
    {"names": HELP},
    (f"{PROGRAM} list", f"{PROGRAM} largest_gumbel variance_reduction --fast --out results"),
)


def main(arguments: Sequence[str]) -> int:
    """Run ``python -m reproduction`` and return its exit code."""
    chosen = COMMAND.parsed(arguments)
    return guarded(PROGRAM, lambda: _reproduce(chosen))


def _reproduce(chosen: ReproduceOptions) -> int:
    names = chosen.names or ("list",)
    if chosen.verdicts:
        files.judge_again(Path(chosen.out))
        return 0
    if "list" in names:
        width = max(map(len, ITEMS))
        for number, name in enumerate(ITEMS, 1):
            print(f"{number:>2} {name:<{width}}  {module(name).TITLE} ({module(name).PAPER})")
        return 0
    names = ITEMS if "all" in names else names
    for name in names:
        module(name)  # a misspelt name is refused before anything is computed
        if chosen.subject is not None and name not in WITH_SUBJECTS:
            raise ValueError(f"--subject is for items with several subjects: {', '.join(WITH_SUBJECTS)}; got {name}")
    settings = Settings(
        "fast" if chosen.fast else "full",
        seed=chosen.seed,
        checkpoint=chosen.checkpoint,
        subject=chosen.subject,
        judge=chosen.judge,
        cells=str(Path(chosen.out) / "cells") if chosen.resume else None,
    )
    return reproduce(names, settings, Path(chosen.out), as_json=chosen.json)


def reproduce(names: Sequence[str], settings: Settings, out: Path, *, as_json: bool = False) -> int:
    """Run items in order, each written when it is done; one that fails does not stop the others."""
    failed = []
    begun = time.perf_counter()
    for name in names:
        item = module(name)
        print(f"{name}: {item.TITLE} ...", file=sys.stderr, flush=True)
        started = time.perf_counter()
        before = files.found(out, name) if settings.subject is not None else None
        try:
            if before is not None:
                files.check_same(asdict(settings), before)
            result = item.run(settings)
        except (ValueError, OSError, ImportError) as error:
            print(f"{name}: failed: {error}", file=sys.stderr)
            failed.append(name)
            continue
        seconds = time.perf_counter() - started
        written = files.rendered(name, item.TITLE, item.PAPER, settings, result, seconds, before)
        files.write(out, written)
        claims = item.claims(result.tables | result.data)
        verdicts: list[str] = [claim.outcome for claim in claims]
        if as_json:
            print(
                json.dumps({"item": name, "seconds": round(seconds, 1), "files": sorted(written), "claims": verdicts})
            )
        else:
            shown = ", ".join(f"{verdicts.count(one)} {one}" for one in dict.fromkeys(verdicts)) or "no claim"
            print(f"{name}: {shown}; {seconds:.0f} s; {', '.join(sorted(written))}", flush=True)
            for claim in claims:
                print(f"  {claim.outcome}: {claim.says} ({claim.on})", flush=True)
        for note in result.notes:
            print(f"  {note}", file=sys.stderr)
    if len(failed) < len(names):
        write_whole(out / "CLAIMS.md", files.summary(out).encode())
    print(
        f"{len(names) - len(failed)} of {len(names)} items in {time.perf_counter() - begun:.0f} s, in {out}",
        file=sys.stderr,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    ready()
    sys.exit(main(sys.argv[1:]))
