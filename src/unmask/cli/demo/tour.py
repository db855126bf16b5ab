"""What the demo shows, one after the other. Under two minutes on two cores."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time as clock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import unmask
from unmask.cli.demo import fault, picture
from unmask.cli.view import picture as blocks
from unmask.cli.view import view
from unmask.text.model import TextSample

# The upper half of a handwritten 2 (the UCI digits, number 1744, held out): 32 of its 64 grey levels.
HALF_DIGIT = "0 2 11 16 13 2 0 0 0 11 15 12 16 7 0 0 0 7 6 0 14 8 0 0 0 0 0 1 16 6 0 0"
VERSE = "In the beginning God ____ the heaven and the ____."
SECONDS_TO_WATCH = 5.0

NEXT = """
What to type next{activate}:
  unmask sample                                       another text; --steps 32, --temperature 0.8, --number 4, --json
  unmask infill kjv "And God said, ________________"  fill the blanks of a text
  unmask models                                       what is in the box
  unmask serve                                        a page to watch it think, and OpenAI's API
  unmask train book.txt --out runs/book               your own text, then: unmask sample runs/book
  unmask audit --help                                 does your sampler have the fault?
  python -c "import unmask; print(unmask.load('kjv').sample(2, steps=64, seed=1).text)\""""


@torch.inference_mode()
def main() -> int:
    started = clock.monotonic()
    kjv, digits, molecules = map(unmask.load, ("kjv", "digits", "molecules"))
    heading("A text, unmasked token by token in a random order (kjv, 128 network calls)")
    print(indented(wrapped(watched(kjv, lambda show: kjv.sample(seed=3, callback=show)))))

    heading(f"A verse with blanks: {VERSE}")
    for text in kjv.infill(VERSE, 3, seed=2).text:
        print(indented(text))

    heading("Half a digit given, completed three times (digits)")
    drawn = digits.infill(f"{HALF_DIGIT} {'_' * 32}", 3, seed=1).tokens
    given = [*map(int, HALF_DIGIT.split()), *[0] * 32]
    upper = (blocks(given, 17) or "").split("\n")[:4]
    masked = ["··" * 8] * 4
    print(indented(beside(["\n".join(upper + masked), *(blocks(row, 17) or "" for row in drawn.tolist())])))

    heading("Ten molecules as SMILES (molecules)")
    print(indented("\n".join(molecules.sample(10, seed=1).text)))

    heading("The same model and N, sampled as published (float32, tokens and mask in one draw) and exactly")
    rows = fault.of_the_box(kjv, unmask.load("kjv-ar"))
    print(indented(fault.table(rows)))
    print(indented(f"Entropy: nats per sequence. {rows[0].judge}"))
    print(indented("Two samples differ by chance: with 4,096 tokens it begins near N = 10,000. Look at the cost."))

    heading("The fault itself: 50,257 tokens, N = 1,000, and the truth is the judge")
    rows = fault.of_the_oracle()
    print(indented(fault.table(rows)))
    print(indented(fault.EXPLANATION))
    where = Path("demo.png")
    try:
        picture.draw(where, drawn.tolist(), digits.sample(8, seed=5).tokens.tolist(), given)
        print(f"\nThe picture of it: {where.resolve()}")
    except ModuleNotFoundError:
        print("\n(pip install 'unmask[plot]' to have it drawn)")
    inside = shutil.which("unmask") is not None
    print(NEXT.format(activate="" if inside else f", after `. {os.path.relpath(sys.prefix)}/bin/activate`"))
    print(f"\n{clock.monotonic() - started:.0f} seconds.")
    return 0


def heading(text: str) -> None:
    print(f"\n{text}\n", flush=True)


def indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


def wrapped(text: str, width: int = 100) -> str:
    return "\n".join(textwrap.fill(line, width) for line in text.splitlines())


def beside(pictures: list[str], width: int = 20) -> str:
    """Pictures of eight lines next to each other."""
    lines = [picture.split("\n") for picture in pictures]
    return "\n".join("".join(line.ljust(width) for line in row) for row in zip(*lines, strict=True))


def watched(model: unmask.Model, run: Callable[[Callable[[unmask.Step], None]], TextSample]) -> str:
    """Sample with the canvas shown as it fills in, at a pace that eyes follow; off a terminal, the text alone."""
    canvas = torch.full((1, model.length or 0), model.denoiser.mask_id)
    live = sys.stdout.isatty()
    with (
        view(model.tokenizer, canvas, model.denoiser.mask_id, stream=sys.stdout, width=model.token_width) as show,
        _paced(show, SECONDS_TO_WATCH if live else 0.0) as callback,
    ):
        return run(callback).text[0]


@contextmanager
def _paced(show: Callable[[unmask.Step], None], seconds: float) -> Iterator[Callable[[unmask.Step], None]]:
    def slowly(step: unmask.Step) -> None:
        show(step)
        clock.sleep(seconds / step.planned)

    yield slowly
