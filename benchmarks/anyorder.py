"""Seconds per sequence of masked, any-order and left-to-right sampling, and of a training step of each.

    python -m benchmarks.anyorder                        the paper's small network, L = 256, 512, 1024
    python -m benchmarks.anyorder --quick                a few seconds, to see that it works
    python -m benchmarks.anyorder --step-costs kjv       a training step under each rule of attention

Sampling is token by token, in float32, one sequence or a batch, through ``unmask.sample``, plan and draw included. A
run is not made to its end: it is begun at several numbers of visible tokens, and a sequence costs L times the mean of
what a token costs there. The networks take turns, so that whatever else the machine does falls on all. The weights are
random, which changes no cost.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import unmask
from unmask.networks.any_order import AnyOrderConfig, OneStream
from unmask.networks.causal import Causal, twin
from unmask.networks.config import blocks_of
from unmask.networks.ddit import DDiT, preset
from unmask.networks.visible import VisibleDDiT
from unmask.sampling import Step
from unmask.training import data as find_data
from unmask.training.config import TrainConfig
from unmask.training.defaults import resolve
from unmask.training.learner import Learner
from unmask.training.loop import make_accelerator
from unmask.training.network import of_config

TARGET_SPEEDUP, TARGET_TO_TWIN = 65.0, 2.5
MASKED = ("bidirectional", "visible", "order")
LEFT_TO_RIGHT = "left-to-right"


@dataclass(frozen=True)
class Setting:
    preset: str = "small"
    vocab: int = 50_257
    lengths: tuple[int, ...] = (256, 512, 1024)
    levels: tuple[float, ...] = (0.05, 0.275, 0.5, 0.725, 0.95)  # the parts of a sequence that are visible
    tokens: int = 6  # measured at each level and length
    rounds: int = 3
    batch: int = 1  # sequences side by side; what is found is per sequence


class _Enough(Exception):
    """Leaves a run."""


def paces(run: Callable[[Callable[[Step], None]], object], tokens: int) -> list[float]:
    """Seconds from each Step of a run to the next, without the first, which reads the prompt and the weights."""
    times: list[float] = []

    def note(step: Step) -> None:
        times.append(time.process_time())
        if len(times) > tokens:
            raise _Enough

    with suppress(_Enough):
        run(note)
    return [after - before for before, after in pairwise(times)]


def network(kind: str, setting: Setting, length: int) -> DDiT | OneStream | Causal:
    torch.manual_seed(0)
    if kind == LEFT_TO_RIGHT:
        return Causal(twin(preset(setting.preset, setting.vocab, length))).eval()
    config = preset(setting.preset, setting.vocab, length)
    if kind == "order":
        return OneStream(blocks_of(twin(config), AnyOrderConfig)).eval()
    return (VisibleDDiT if kind == "visible" else DDiT)(config).eval()


def begun(
    made: DDiT | OneStream | Causal, length: int, known: int, batch: int
) -> Callable[[Callable[[Step], None]], object]:
    """A run of sampling that begins with so many visible tokens: the first ones, or each sequence's own random set."""
    random = torch.Generator().manual_seed(known)
    tokens = torch.randint(made.vocab_size, (batch, length), generator=random)
    left_to_right = isinstance(made, Causal)
    ranks = torch.arange(length) if left_to_right else torch.rand(batch, length, generator=random).argsort(1)
    canvas = torch.where(ranks < known, tokens, made.mask_id)
    return lambda note: unmask.sample(made, canvas=canvas, callback=note)


def seconds_per_token(setting: Setting, length: int) -> dict[str, dict[float, float]]:
    """Of each network at each level, for one of the batch: the least over the rounds of the median over tokens."""
    networks = {kind: network(kind, setting, length) for kind in (*MASKED, LEFT_TO_RIGHT)}
    found: dict[str, dict[float, float]] = {kind: {} for kind in networks}
    for round_ in range(setting.rounds):
        for level in setting.levels:
            for kind, made in networks.items():
                # A bidirectional call costs the same at every level: one of them is enough.
                if kind == "bidirectional" and (round_ or level != setting.levels[len(setting.levels) // 2]):
                    continue
                count = min(setting.tokens, 2) if kind in ("bidirectional", "visible") else setting.tokens
                known = min(round(level * length), length - count - 1)
                pace = statistics.median(paces(begun(made, length, known, setting.batch), count))
                found[kind][level] = min(pace / setting.batch, found[kind].get(level, math.inf))
    return found


def cache_bytes(setting: Setting, length: int) -> int:
    """The any-order network's cache for one sequence; the left-to-right twin's has the same size."""
    sizes = preset(setting.preset, setting.vocab, length)
    return 2 * sizes.layers * sizes.width * length * 4


def sampling(setting: Setting) -> dict[str, Any]:
    result: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "preset": setting.preset,
        "batch": setting.batch,
        "lengths": {},
    }
    for length in setting.lengths:
        per_token = {kind: statistics.mean(at.values()) for kind, at in seconds_per_token(setting, length).items()}
        whole = {kind: pace * length for kind, pace in per_token.items()}
        result["lengths"][length] = {
            "seconds_per_sequence": whole,
            "milliseconds_per_token": {k: 1e3 * v for k, v in per_token.items()},
            "bidirectional_to_order": whole["bidirectional"] / whole["order"],
            "bidirectional_to_visible": whole["bidirectional"] / whole["visible"],
            "order_to_left_to_right": whole["order"] / whole[LEFT_TO_RIGHT],
            "cache_megabytes": cache_bytes(setting, length) / 1e6,
        }
    by_length = result["lengths"]
    first, last = by_length[min(by_length)], by_length[max(by_length)]
    result["growth"] = {
        kind: last["milliseconds_per_token"][kind] / first["milliseconds_per_token"][kind]
        for kind in (*MASKED, LEFT_TO_RIGHT)
    }
    result["met"] = {
        "speedup": last["bidirectional_to_order"] >= TARGET_SPEEDUP,
        "to_left_to_right": last["order_to_left_to_right"] <= TARGET_TO_TWIN,
        "growth": result["growth"]["order"] <= 1.05 * result["growth"][LEFT_TO_RIGHT],
    }
    return result


@contextmanager
def learners(data: str, ways: dict[str, dict[str, Any]], **options: Any) -> Iterator[tuple[Any, dict[str, Learner]]]:
    """The data, and a learner for each way: what TrainConfig says with these options, less what a way says."""
    with tempfile.TemporaryDirectory() as out:
        config = TrainConfig(data, out=out, device="cpu", steps=1_000_000, warmup=100, ema=0.99, **options)
        accelerator, found = make_accelerator(config), find_data.find(config)
        tokens, made = found.train, {}
        for name, way in ways.items():
            own = resolve(
                replace(config, **way), tokens=len(tokens) * tokens.length, length=tokens.length, device="cpu"
            )
            made[name] = Learner(own, of_config(own, tokens.vocab_size, tokens.length), accelerator)
        yield found, made


def step_costs(data: str, rounds: int, **options: Any) -> dict[str, Any]:
    """CPU seconds of a training step of each kind of attention, in turns: medians, and medians of the ratios."""
    ways: dict[str, dict[str, Any]] = {kind: {"attention": kind, "objective": "count"} for kind in MASKED[:2]}
    ways |= {"order": {"attention": "order", "convolution": 0}, LEFT_TO_RIGHT: {"objective": LEFT_TO_RIGHT}}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with learners(data, ways, **options) as (found, made):
        for number in range(-1, rounds):
            for name, learner in made.items():
                started = time.process_time()
                learner.update(found.train, Path(learner.config.out))
                if number >= 0:
                    seconds[name].append(time.process_time() - started)
    base = seconds["bidirectional"]
    return {
        name: {
            "seconds": statistics.median(values),
            "of_bidirectional": statistics.median(a / b for a, b in zip(values, base, strict=True)),
        }
        for name, values in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--step-costs", metavar="DATA", help="CPU seconds of a training step of each kind")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sizes = {"preset": "tiny", "batch": 4} if arguments.quick else {"preset": "mini", "convolution": 3, "batch": 32}
    sizes |= {"dropout": 0.0, "optimizer": "muon", "learning_rate": 3e-3}
    if arguments.step_costs:
        result = step_costs(arguments.step_costs, 1 if arguments.quick else 7, **sizes)
    elif arguments.quick:
        result = sampling(Setting("tiny", 100, (32, 64), (0.2, 0.8), 3, 1))
    else:
        result = sampling(Setting(arguments.preset))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
