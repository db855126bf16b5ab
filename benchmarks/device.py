"""What sampling costs on an accelerator: seconds per call, waits per call, against the published sampler.

    python -m benchmarks.device                          this machine's accelerator, a few minutes
    python -m benchmarks.device --device cuda:1 --preset small --length 1024 --vocab 50257 --batch 8
    python -m benchmarks.device --device cpu --quick     a few seconds, to see that it works
    python -m benchmarks.device --output device.json     the rows as JSON too

The runs take turns in several rounds; the table has the median of each and its ratio to the published sampler's, of one
round at a time. Weights are random, which changes no cost. Waits are counted by torch's profiler: synchronisations and
copies back that the CUDA runtime saw, per call (0 is what docs/on_a_gpu.md promises for plans). Fast-dLLM's rule, a
threshold on the confidence, is run by this project's sampler: its published code needs its own model.

No figure of this benchmark is in the documentation yet, because the project has no accelerator: please send yours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import unmask
from unmask import plan
from unmask.devices import chosen
from unmask.networks.ddit import DDiT, preset
from unmask.samplers import decoding, published

WAITING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "hipStreamSynchronize")
BASE = "published ancestral"


@dataclass(frozen=True)
class Setting:
    preset: str = "small"
    length: int = 256
    vocab: int = 50_257
    batch: int = 4
    steps: int = 64
    rounds: int = 5


def runs(setting: Setting) -> dict[str, dict[str, Any]]:
    """The options of each sampler, by its name in the table."""
    few = {"steps": setting.steps}
    return {
        BASE: {"sampler": published.Coupled(), **few},
        "first-hitting": {},
        "parallel": few,
        "ancestral": {"plan": plan.ancestral, **few},
        "largest confidence": {"sampler": decoding.confidence(), **few},
        "Fast-dLLM's threshold": {"sampler": decoding.threshold(0.9)},
        "looking 8 ahead": {"ahead": 8},
    }


def measured(network: Any, setting: Setting, options: dict[str, Any]) -> tuple[float, int]:
    """Seconds of one run, until the device is idle, and its calls."""
    idle(network)
    start = time.perf_counter()
    made = unmask.sample(network, num=setting.batch, length=setting.length, seed=0, **options)
    idle(network)
    return time.perf_counter() - start, made.calls


def idle(network: Any) -> None:
    if next(network.parameters()).device.type != "cpu":
        torch.accelerator.synchronize()


def waits(network: Any, setting: Setting, options: dict[str, Any]) -> float | None:
    """Synchronisations per call, by the profiler; None where there is no CUDA runtime to ask."""
    if next(network.parameters()).device.type != "cuda":
        return None
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        _, calls = measured(network, setting, options)
    seen = sum(event.count for event in profile.key_averages() if event.key in WAITING)
    return max(0, seen - 2) / calls  # without the two of ``measured``


def table(network: Any, setting: Setting, tell: Callable[[str], object] = print) -> list[dict[str, Any]]:
    """One row for each sampler."""
    options, seconds, calls = runs(setting), {}, {}
    for number in range(setting.rounds + 1):  # the first warms up
        for name, how in options.items():
            spent, calls[name] = measured(network, setting, how)
            seconds.setdefault(name, []).append(spent)
        tell(f"round {number} of {setting.rounds}")
    rows = []
    for name, how in options.items():
        times = seconds[name][1:]
        ratios = [base / own for base, own in zip(seconds[BASE][1:], times, strict=True)]
        each = statistics.median(times) / calls[name]
        row = {"run": name, "calls": calls[name], "seconds": statistics.median(times), "per_call": each}
        rows.append(row | {"ratio": statistics.median(ratios), "waits": waits(network, setting, how)})
    return rows


def shown(rows: Sequence[dict[str, Any]]) -> str:
    """The table in Markdown."""
    lines = [
        "| run | calls | ms per call | seconds | faster than published | waits per call |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        count = "not counted" if row["waits"] is None else f"{row['waits']:.2f}"
        cells = (row["run"], row["calls"], f"{1e3 * row['per_call']:.2f}", f"{row['seconds']:.2f}")
        lines.append("| " + " | ".join(map(str, (*cells, f"{row['ratio']:.2f}x", count))) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    usual = Setting()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--preset", default=usual.preset)
    for name in ("length", "vocab", "batch", "steps", "rounds"):
        parser.add_argument(f"--{name}", type=int, default=getattr(usual, name))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args(arguments)
    setting = Setting(given.preset, given.length, given.vocab, given.batch, given.steps, given.rounds)
    if given.quick:
        setting = Setting("tiny", length=16, vocab=64, batch=2, steps=4, rounds=1)
    device = torch.device(chosen(given.device))
    torch.manual_seed(0)
    network = DDiT(preset(setting.preset, setting.vocab, setting.length)).to(device).eval()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    rows = table(network, setting)
    print(f"{name}, torch {torch.__version__}, {setting}\n{shown(rows)}")
    if given.output is not None:
        record = {"device": name, "torch": torch.__version__, "setting": vars(setting), "rows": rows}
        given.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
