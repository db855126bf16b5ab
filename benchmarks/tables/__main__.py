"""Write the tables of README and docs again: see ``benchmarks.tables``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.tables import ROOT, models, sampling, systems

TABLES: dict[str, Callable[[], str]] = sampling.TABLES | systems.TABLES | models.TABLES
MARKED = re.compile(r"<!-- table: (?P<name>[\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def generated(text: str) -> str:
    """A page with every marked table written again."""

    def region(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in TABLES:
            raise ValueError(f"there is no table {name!r}; benchmarks/tables has {', '.join(sorted(TABLES))}")
        return f"<!-- table: {name} -->\n\n{TABLES[name]()}\n\n<!-- end -->"

    return MARKED.sub(region, text)


def main(arguments: list[str]) -> int:
    changed = [page for page in pages() if generated(page.read_text()) != page.read_text()]
    for page in changed:
        print(page.relative_to(ROOT))
        if "--check" not in arguments:
            page.write_text(generated(page.read_text()))
    return 1 if changed and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
