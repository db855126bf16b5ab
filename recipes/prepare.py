"""``python -m recipes.prepare NAME FOLDER``: draw a corpus whose distribution is known, as token files.

The folder is DATA for ``unmask train`` and ``unmask evaluate``. Beside each token file, NAME.nats.npy has the exact
-log p of its sequences, so that ``unmask evaluate`` prints a model's distance from the truth, and
``unmask evaluate truth FOLDER`` the entropy of the data.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from recipes.corpora import synthetic
from unmask.cli import ready
from unmask.cli.command import Command
from unmask.cli.options import guarded
from unmask.cli.prepare import display, summary


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """Draw a synthetic corpus: a new folder with train.tokens, valid.tokens, their exact -log p and tokenizer.json."""

    name: str
    out: str
    tokens: int | None = None
    """The number of training tokens. The default depends on the corpus."""
    held_out_tokens: int | None = None
    """The number of held-out tokens. The default depends on the corpus."""
    seed: int | None = None
    """The seed of the draw. Default: 0."""
    latents: int | None = None
    """For nae-sat: the number of latent bits. Default: 25."""
    observations: int | None = None
    """For nae-sat: the number of observations, each of three latent bits. Default: 275."""


PROGRAM = "python -m recipes.prepare"
COMMAND = Command(
    PROGRAM,
    PrepareOptions,
    {
        "name": "; ".join(f"{name}: {note}" for name, (_, note) in synthetic.ABOUT.items()),
        "out": "The folder to make; it must not exist yet",
    },
    (f"{PROGRAM} sudoku6 data/sudoku6", f"{PROGRAM} nae-sat data/nae --latents 12 --observations 60"),
)


def main(arguments: Sequence[str]) -> int:
    """Run ``python -m recipes.prepare`` and return its exit code."""
    options = {name: value for name, value in asdict(COMMAND.parsed(arguments)).items() if value is not None}

    def prepare() -> None:
        with display(sys.stderr) as progress:
            files = synthetic.prepare(options.pop("name"), options.pop("out"), progress=progress, **options)
        for file in files:
            print(summary(file))

    return guarded(PROGRAM, prepare, stopped=lambda: f"{PROGRAM}: stopped; nothing was written to the folder")


if __name__ == "__main__":
    ready()
    sys.exit(main(sys.argv[1:]))
