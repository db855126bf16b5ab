"""The pictures of docs/serving.md, from a running server with the bundled models.

unmask serve kjv kjv-ar digits molecules sudoku --port 8000
python -m tests.serve.screenshots http://127.0.0.1:8000/ docs
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from tests.serve.browser import Page, chromium, missing

TEXT = (
    "In the beginning God created ________________________ the earth was without form, and void; and ________________ "
    "upon the face of the deep. And the Spirit of God ________________ the waters."
)
MANY = {"model": "kjv", "steps": 100_000}
FAULT = {**MANY, "sampler": "ancestral", "seed": 1, "number": 8, "length": 64}
EXACT = {"model": "kjv", "sampler": "first-hitting", "seed": 24}


@dataclass(frozen=True)
class Shot:
    """A window, what the link says, and where to look."""

    width: int
    height: int
    state: dict[str, object]
    scheme: str = "light"
    colour: str = "when"
    at: int | None = None  # the call to stop at; the last one without


SHOTS = {
    "page": Shot(1360, 1010, FAULT | {"compare": urlencode(MANY | {"sampler": "published-law"})}),
    "page-dark": Shot(1280, 600, EXACT | {"text": TEXT}, "dark", "sure"),
    "page-phone": Shot(390, 844, {"model": "digits", "sampler": "first-hitting", "seed": 1}, at=40),
}


def main(address: str, folder: Path) -> None:
    if reason := missing():
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as driver:
        page = Page(driver, address)
        page.patience = 1800.0  # sixteen sequences of a real model
        for name, shot in SHOTS.items():
            page.size(shot.width, shot.height)
            page.scheme(shot.scheme)
            page.open(f"#{urlencode(shot.state)}")
            page.finished()
            page.js(f"document.querySelector('[name=colour][value={shot.colour}]').click()")
            page.js("scrub.value = arguments[0] ?? scrub.max; scrub.dispatchEvent(new Event('input'))", shot.at)
            if shot.width < 700:
                page.js("document.getElementById('stage').scrollIntoView()")
            page.settled()
            driver.save_screenshot(str(folder / f"{name}.png"))
            _compressed(folder / f"{name}.png")


def _compressed(file: Path) -> None:
    """The same picture in 256 colours: half of the bytes."""
    from PIL import Image

    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
