"""The parts of the demo in order. Under a minute on two cores; something always moves."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time as clock
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

import unmask
from examples.demo import fault, picture
from examples.demo.waiting import waiting
from unmask.cli.view import picture as blocks
from unmask.cli.view import view
from unmask.text.requests import TextSample

Made = TypeVar("Made")
Run = Callable[[Callable[[unmask.Step], None]], Made]

# The upper half of a handwritten 2 (the UCI digits, number 1744, held out): 32 of its 64 grey levels.
HALF_DIGIT = "0 2 11 16 13 2 0 0 0 11 15 12 16 7 0 0 0 7 6 0 14 8 0 0 0 0 0 1 16 6 0 0"
VERSE = "In the beginning God ____ the heaven and the ____."
STORY = 1  # the seed
SECONDS_TO_WATCH = 5.0

NEXT = """
What to type next{activate}:
  unmask infill kjv "And God said, ______"  fill the blanks of a text
  unmask sample                             another story; --number 4
  unmask sample kjv --steps 32              another model in fewer calls
  unmask models                             list the models
  unmask serve                              a web page, and OpenAI's API
  unmask train book.txt --out runs/book     your own text, after pip install '.[train]'
  unmask audit --help                       test your sampler for truncation
  python -c "import unmask; print(unmask.load('kjv').sample(steps=64).text)\""""


@torch.inference_mode()
def main() -> int:
    started = clock.monotonic()
    with waiting("reading the models"):
        names = ("stories", "kjv", "kjv-ar", "digits", "molecules")
        stories, kjv, ar, digits, molecules = map(unmask.load, names)
    heading(f"A verse with blanks: {VERSE}")
    canvas = torch.tensor([kjv.rows.blanks(VERSE).ids])
    for seed in (2, 3, 4):
        text = watched(kjv, canvas, partial(_filled, kjv, seed), seconds=0.5)
        print(indented(text.text[0]))

    heading("A story, from left to right, the order that its network knows best (stories, 256 network calls)")
    empty = torch.full((1, stories.length or 0), stories.denoiser.mask_id)
    text = watched(stories, empty, lambda show: stories.sample(seed=STORY, callback=show), seconds=SECONDS_TO_WATCH)
    print(indented(wrapped(text.text[0])))

    heading("A text of the King James Bible, unmasked in a random order (kjv, 128 network calls)")
    empty = torch.full((1, kjv.length or 0), kjv.denoiser.mask_id)
    text = watched(kjv, empty, lambda show: kjv.sample(seed=3, callback=show), seconds=SECONDS_TO_WATCH)
    print(indented(wrapped(text.text[0])))

    heading("Half a digit given, completed three times (digits)")
    blanked = f"{HALF_DIGIT} {'_' * 32}"
    canvas = torch.tensor(digits.rows.blanks(blanked).ids).expand(3, -1)
    drawn = watched(digits, canvas, lambda show: digits.infill(blanked, 3, seed=1, callback=show), seconds=2.0).tokens
    given = [*map(int, HALF_DIGIT.split()), *[0] * 32]
    upper = (blocks(given, 17) or "").split("\n")[:4]
    masked = ["··" * 8] * 4
    print(indented(beside(["\n".join(upper + masked), *(blocks(row, 17) or "" for row in drawn.tolist())])))

    heading("Ten molecules as SMILES (molecules)")
    canvas = torch.full((10, molecules.length or 0), molecules.denoiser.mask_id)
    made = watched(molecules, canvas, lambda show: molecules.sample(10, seed=1, callback=show))
    print(indented("\n".join(made.text)))
    the_fault(kjv, ar)
    the_picture(digits, drawn.tolist(), given)
    inside = shutil.which("unmask") is not None
    print(NEXT.format(activate="" if inside else f", after `. {os.path.relpath(sys.prefix)}/bin/activate`"))
    print(f"\n{clock.monotonic() - started:.0f} seconds.")
    return 0


def _filled(model: unmask.Model, seed: int, show: Callable[[unmask.Step], None]) -> TextSample:
    return model.infill(VERSE, seed=seed, callback=show)


def the_fault(kjv: unmask.Model, judge: unmask.Model) -> None:
    """One table for the trained model and one for the oracle."""

    def of_kjv(canvas: Tensor, mask_id: int, run: Run[unmask.Sample]) -> unmask.Sample:
        return watched(kjv, canvas, run)

    def of_the_truth(canvas: Tensor, mask_id: int, run: Run[unmask.Sample]) -> unmask.Sample:
        with view(None, canvas, mask_id, stream=sys.stdout, with_canvas=False) as show:
            return run(show)

    heading("Float32 truncation: one model and one N, sampled as published (token and mask in one draw) and exactly")
    rows = fault.of_the_box(kjv, judge, of_kjv, num=4, steps=100_000)
    print(indented(fault.table(rows, 100_000)))
    note = f"Four samples of 128 tokens. Entropy: nats per sequence. Perplexity: under {judge.name}."
    print(indented(wrapped(note)), end="\n\n")
    rows = fault.of_the_oracle(of_the_truth, num=8, length=32, steps=1_000)
    print(indented(fault.table(rows, 1_000)))
    note = "With 50,257 tokens, as in GPT-2, 1,000 steps are enough. Here the judge is the true model."
    print(indented(wrapped(note)), end="\n\n")
    print(indented(wrapped(fault.EXPLANATION)))


def the_picture(digits: unmask.Model, completed: list[list[int]], given: list[int]) -> None:
    where = Path("demo.png")
    try:
        with waiting(f"drawing {where}"):
            picture.draw(where, completed, digits.sample(8, seed=5).tokens.tolist(), given)
        print(f"\nPicture: {where.resolve()}")
    except ModuleNotFoundError:
        print("\n(install 'unmask[plot]' to get a picture)")


def heading(text: str) -> None:
    print(f"\n{wrapped(text)}\n", flush=True)


def indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


def wrapped(text: str) -> str:
    """Filled to the terminal's width, with room for an indentation."""
    width = min(100, max(20, shutil.get_terminal_size().columns - 2))
    return "\n".join(textwrap.fill(line, width) for line in text.splitlines())


def beside(pictures: list[str], width: int = 20) -> str:
    """Pictures of eight lines next to each other."""
    lines = [picture.split("\n") for picture in pictures]
    return "\n".join("".join(line.ljust(width) for line in row) for row in zip(*lines, strict=True))


def watched(model: unmask.Model, canvas: Tensor, run: Run[Made], *, seconds: float = 0.0) -> Made:
    """Sample while showing the canvas, slowly enough to watch; nothing is shown without a terminal."""
    pause = seconds if sys.stdout.isatty() else 0.0
    mask_id = model.denoiser.mask_id
    with view(model.tokenizer, canvas, mask_id, stream=sys.stdout, width=model.rows.token_width) as show:

        def slowly(step: unmask.Step) -> None:
            show(step)
            clock.sleep(pause / max(step.planned, 1))

        return run(slowly)
