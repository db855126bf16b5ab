"""``make demo``: a canvas filling in, the float32 fault measured and gone, and the picture of it.

Needs no trained network: the model is a hidden Markov model fitted to the text of this project's licence, for which the
optimal masked model is computed exactly.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from importlib.metadata import files
from pathlib import Path

import numpy as np
import torch

import unmask
from unmask import theory

TYPE_NEXT = """
Next{activate}:
  unmask --help                                      the command line
  unmask train LICENSE --out runs/first --steps 200  train on a text (half a minute), then: unmask sample runs/first
  python -c "import unmask; help(unmask.sample)"     the sampler and all its arguments
  docs/paper_map.md                                  where each algorithm, proposition and equation is"""

BLANK = "\u00b7"


def main() -> int:
    torch.set_num_threads(1)
    text = licence()
    alphabet = sorted(set(text))
    ids = torch.tensor([alphabet.index(c) for c in text])
    print(f"Fitting a hidden Markov model to {len(text):,} characters; its optimal masked model is exact.\n")
    model = unmask.HiddenMarkovOracle.fit(ids, vocab_size=len(alphabet), states=24, iterations=12)
    watch(model, alphabet)
    fault()
    picture = Path("fault.png")
    try:
        draw_fault(picture)
        print(f"\nThe picture of it: {picture.resolve()}")
    except ModuleNotFoundError:
        print("\n(pip install 'unmask[plot]' to have it drawn)")
    inside = shutil.which("unmask") is not None
    print(TYPE_NEXT.format(activate="" if inside else f", after `. {os.path.relpath(sys.prefix)}/bin/activate`"))
    return 0


def licence() -> str:
    """Any English text will do; this one is always there."""
    for folder in (Path(__file__).parents[2], Path.cwd()):
        if (folder / "LICENSE").is_file():
            return (folder / "LICENSE").read_text()
    found = [path for path in files("unmask") or [] if path.name == "LICENSE"]
    if not found:
        raise ValueError("the demo reads the project's LICENSE file, and it is not installed")
    return found[0].read_text()


def watch(model: unmask.HiddenMarkovOracle, alphabet: list[str]) -> None:
    """One canvas, filled token by token in the planned order; live on a terminal, three lines elsewhere."""
    length = 48
    canvas = torch.full((1, length), model.mask_id)
    live = sys.stdout.isatty()
    print("First-hitting sampling: the order and the times are drawn first, then one token per call.")
    for step in unmask.stream(model, canvas.clone(), seed=4):
        unmask.apply(step, canvas, model.mask_id)
        shown = "".join(alphabet[t] if t < len(alphabet) else BLANK for t in canvas[0].tolist()).replace("\n", " ")
        if live:
            print(f"\r  {shown}  call {step.calls} of {step.planned}, tau {float(step.tau[0, 0]):.3f}", end="")
            sys.stdout.flush()
            time.sleep(0.02)
        elif step.calls in (step.planned // 3, step.planned * 2 // 3, step.planned):
            print(f"  {shown}  call {step.calls} of {step.planned}")
    print("\n" if live else "")


def fault(vocabulary: int = 50_257, steps: int = 1_000, draws: int = 6_000) -> None:
    """One coupled step over a flat position, as published samplers draw it: how often does the mask come off?"""
    p = torch.full((vocabulary + 1,), 1 / steps / vocabulary, dtype=torch.float64)
    p[-1] = 1 - 1 / steps
    maximum = theory.maximum_gumbel("float32")
    print(f"The fault: one of N = {steps:,} coupled steps, {vocabulary:,} tokens and the mask in one categorical.")
    print(f"  float32 Gumbels never exceed {maximum:.4f}, so the mask hardly ever loses to a small probability:")
    print(f"  {'draw':<16}{'unmasked, of ' + format(draws, ','):>24}{'expected':>12}")
    for name, draw in (("exact", unmask.draw.inverse_cdf), ("float32 Gumbel", unmask.draw.gumbel(torch.float32))):
        generator = torch.Generator().manual_seed(0)
        left = 0
        for _ in range(draws // 50):
            left += int((draw(p.log().expand(50, -1), [generator] * 50) != vocabulary).sum())
        print(f"  {name:<16}{left:>24}{draws / steps if name == 'exact' else '':>12}")
    print("  unmask draws from float64, and plans which position is unmasked when: neither can go wrong.")


def draw_fault(path: Path) -> None:
    """Prop. 5.2 as a picture: what float32 does to one coupled step, by how sure the network is and by N."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    vocabulary, steps = 50_257, np.unique(np.logspace(1.5, 4.7, 25).astype(int))
    rank = np.arange(1, vocabulary + 1)
    positions = {
        "sure (one token at 0.9)": np.r_[0.9, np.full(vocabulary - 1, 0.1 / (vocabulary - 1))],
        "typical of text (Zipf)": 1 / rank / (1 / rank).sum(),
        "unsure (flat)": np.full(vocabulary, 1 / vocabulary),
    }
    maximum = theory.maximum_gumbel("float32")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8))
    for (name, mu), colour in zip(positions.items(), ("#1b7837", "#e08214", "#762a83"), strict=True):
        ratio = [
            float(theory.unmasking_probability(mu, 0.5, 0.5 - 0.5 / n, maximum) / ((0.5 / n) / (0.5 + 0.5 / n)))
            for n in steps
        ]
        left.semilogx(steps, ratio, label=name, color=colour, lw=2)
    left.axhline(1, color="0.6", lw=1, ls="--", label="exact: all alike")
    left.set(xlabel="sampling steps N", ylabel="chance to be unmasked / exact", ylim=(0, 1.1))
    left.set_title("float32 unmasks sure positions first", fontsize=11)
    left.legend(frameon=False, fontsize=8, loc="center right", bbox_to_anchor=(1, 0.62))
    zipf = positions["typical of text (Zipf)"]
    coupled = [np.r_[zipf * (0.5 / n) / (0.5 + 0.5 / n), 0.5 / (0.5 + 0.5 / n)] for n in steps]
    temperature = []
    for law in coupled:
        shifted = theory.shifted_probabilities(law, maximum)[:-1]
        temperature.append(float(theory.effective_temperature(zipf, shifted / shifted.sum())))
    right.semilogx(steps, temperature, color="#e08214", lw=2, label="coupled step in float32")
    right.axhline(1, color="0.6", lw=1, ls="--", label="exact")
    right.set(xlabel="sampling steps N", ylabel="effective temperature", ylim=(0.5, 1.05))
    right.set_title("and draws its tokens at a lower temperature", fontsize=11)
    right.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
